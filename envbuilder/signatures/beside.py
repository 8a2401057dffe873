"""Signature files: `FILE.intoto.jsonl` next to FILE, one envelope per line.

The in-toto project recommends this suffix for files of envelopes; cosign, gh and slsa-verifier read
them. envbuilder writes a single envelope, which several keys can sign, because cosign reads one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import first_accepted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.signatures.envelope import Envelope
    from envbuilder.signatures.keys import PrivateKey, PublicKey
    from envbuilder.signatures.statement import Signed, Statement

SUFFIX = ".intoto.jsonl"
MOST_ENVELOPES = 16


def path_for(path: Path) -> Path:
    """Return the path of a file's signatures."""
    return path.with_name(path.name + SUFFIX)


def read(path: Path) -> tuple[Envelope, ...]:
    """Return the envelopes in a signature file, none if it does not exist.

    Raise `InvalidError` if it cannot be read or is malformed.
    """
    try:
        content = files.read(path, decoding.LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = [line for line in content.split(b"\n") if line.strip()]
    if len(lines) > MOST_ENVELOPES:
        raise InvalidError(f"{path}: more than {MOST_ENVELOPES} envelopes")
    return tuple(envelopes.parse(line, f"{path}:{n}") for n, line in enumerate(lines, 1))


def write(path: Path, payload: bytes, key: PrivateKey) -> Path:
    """Sign a statement and write the signature file; add to signatures of the same statement.

    Return its path. Raise `InvalidError` if another kind of file is there, such as the signed file
    or the key itself, `BuildError` if it cannot be written.
    """
    try:
        existing = read(path)
    except InvalidError as error:
        raise InvalidError(
            f"{path}: exists, and is no signature file: nothing was written",
            "Move it away if it is a damaged one, or name another file with --output.",
        ) from error
    same = (
        e for e in existing if e.payload_type == statements.PAYLOAD_TYPE and e.content == payload
    )
    earlier = next(same, None)
    envelope = (
        envelopes.also_signed(earlier, key)
        if earlier
        else envelopes.sign(payload, statements.PAYLOAD_TYPE, key)
    )
    hint = "Name another file with --output."
    files.save(path, envelopes.encode(envelope) + b"\n", BuildError, hint)
    return path


def require(
    where: str,
    signature_files: Sequence[Path],
    trusted: Sequence[PublicKey],
    predicate_type: str,
    digests: Mapping[str, str],
) -> tuple[Statement, Signed]:
    """Return the accepted statement about bytes in hand, from the first file that has one.

    `where` names the signed file. Raise the errors of `refusals` otherwise.
    """
    names = " or ".join(map(str, signature_files))
    return first_accepted(
        (e for path in signature_files for e in read(path)),
        lambda e: statements.accepted(e, trusted, predicate_type, digests, where),
        f"{where}: not signed: there is no signature in {names}",
    )
