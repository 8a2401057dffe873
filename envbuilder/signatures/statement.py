"""In-toto statements about bytes, and signature files: `FILE.intoto.jsonl` next to FILE.

The in-toto project recommends this suffix for files of envelopes, one per line; cosign, gh and
slsa-verifier read them. envbuilder writes a single envelope, which several keys can sign, because
cosign reads one.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError, Hint, InvalidError, SignatureError, printable
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures.envelope import (
    ChangedPayloadError,
    Envelope,
    OtherSubjectError,
    UnknownKeyError,
    UnsignedError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.signatures.keys import PrivateKey, PublicKey

SUFFIX = ".intoto.jsonl"
MOST_ENVELOPES = 16
PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPE = "https://in-toto.io/Statement/v1"
TYPES = frozenset({TYPE, "https://in-toto.io/Statement/v0.1"})
"""The second is what cosign 2 writes; both have the same keys."""


class Subject(Struct, frozen=True, kw_only=True):
    """Bytes that a statement is about: a name, and digests by algorithm."""

    name: Annotated[str, Meta(max_length=4096)] = ""
    digest: dict[str, str]


class Statement(Struct, frozen=True, kw_only=True, rename={"predicate_type": "predicateType"}):
    """What an in-toto statement says; further keys are ignored, as the specification requires."""

    type: str = msgspec.field(name="_type")
    subject: Annotated[tuple[Subject, ...], Meta(min_length=1, max_length=4096)]
    predicate_type: str
    predicate: Any = None


class Signed(Struct, frozen=True, kw_only=True):
    """An accepted signature: what it is about, and the id of the trusted key that made it."""

    name: str
    """The file, as it was named."""
    digest: str
    """The digest of the bytes in hand, with its algorithm: `sha256:…`."""
    type: str
    """The statement's predicate type."""
    keyid: str


def make(subjects: Sequence[Subject], predicate_type: str, predicate: object) -> bytes:
    """Return a statement as JSON; the same arguments give the same bytes."""
    document = {
        "_type": TYPE,
        "subject": [{"name": s.name, "digest": s.digest} for s in subjects],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    return json.dumps(document, sort_keys=True, ensure_ascii=False).encode()


def parse(content: bytes, where: str) -> Statement:
    """Return a statement; raise `WrongTypeError` if the content is none."""
    try:
        statement = decoding.convert(decoding.strict_json(content), Statement)
    except (ValueError, msgspec.ValidationError) as error:
        problem = printable(str(error), 200)
        raise WrongTypeError(
            f"{where}: what is signed is no in-toto statement: {problem}"
        ) from error
    if statement.type not in TYPES:
        shown = printable(statement.type, 100)
        raise WrongTypeError(f"{where}: an in-toto statement of an unknown version: {shown}")
    return statement


def accepted(
    envelope: Envelope,
    trusted: Sequence[PublicKey],
    predicate_type: str,
    digests: Mapping[str, str],
    where: str,
) -> tuple[Statement, Signed]:
    """Return the statement in an envelope if a trusted key made it about the bytes in hand.

    `digests` are those of the bytes in hand, by algorithm, one of which must be a subject's. Raise
    a `SignatureError` otherwise; the signature is checked before anything in the payload is read.
    """
    key = envelopes.signer(envelope, trusted, where)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise WrongTypeError(
            f"{where}: signs a payload of the type {printable(envelope.payload_type, 100)},"
            f" expected {PAYLOAD_TYPE}"
        )
    statement = parse(envelope.content, where)
    if statement.predicate_type != predicate_type:
        raise WrongTypeError(
            f"{where}: signed as {printable(statement.predicate_type, 100)}, expected"
            f" {predicate_type}",
            Hint(
                "It is a signature for another purpose. Sign this file",
                ("sign", "--key", "KEY", where),
            ),
        )
    for algorithm, digest in digests.items():
        if any(s.digest.get(algorithm) == digest for s in statement.subject):
            signed = f"{algorithm}:{digest}"
            return statement, Signed(name=where, digest=signed, type=predicate_type, keyid=key.id)
    raise other_subject(where, digests, digests_of(statement))


def digests_of(statement: Statement) -> list[tuple[str, str]]:
    """Return the digests of all subjects, each with its algorithm."""
    return [*chain.from_iterable(subject.digest.items() for subject in statement.subject)]


def other_subject(
    where: str, digests: Mapping[str, str], signed: Sequence[tuple[str, str]]
) -> OtherSubjectError:
    """Return the error for a signature about other bytes than those in hand."""
    in_hand = ", ".join(f"{a}:{d}" for a, d in digests.items())
    about = printable(", ".join(f"{a}:{d}" for a, d in signed[:3]), 400)
    return OtherSubjectError(
        f"{where}: the signature is about other content: it names {about}; this is {in_hand}",
        "The file was changed, or the signature belongs to another one.",
    )


def path_beside(path: Path) -> Path:
    """Return the path of a file's signatures."""
    return path.with_name(path.name + SUFFIX)


def read_file(path: Path) -> tuple[Envelope, ...]:
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


def write_file(path: Path, payload: bytes, key: PrivateKey) -> Path:
    """Sign a statement and write the signature file; add to signatures of the same statement.

    Return its path. Raise `InvalidError` if another kind of file is there, such as the signed file
    or the key itself, `BuildError` if it cannot be written.
    """
    try:
        existing = read_file(path)
    except InvalidError as error:
        raise InvalidError(
            f"{path}: exists, and is no signature file: nothing was written",
            "Move it away if it is a damaged one.",
        ) from error
    same = (e for e in existing if e.payload_type == PAYLOAD_TYPE and e.content == payload)
    earlier = next(same, None)
    if earlier:
        envelope = envelopes.also_signed(earlier, key)
    else:
        envelope = envelopes.sign(payload, PAYLOAD_TYPE, key)
    hint = "Sign a copy in a folder of yours."
    files.save(path, msgspec.json.encode(envelope) + b"\n", BuildError, hint)
    return path


def require(
    where: str,
    signature_files: Sequence[Path],
    trusted: Sequence[PublicKey],
    predicate_type: str,
    digests: Mapping[str, str],
) -> tuple[Statement, Signed]:
    """Return the first accepted statement about bytes in hand.

    `where` names the signed file. If none is accepted, raise the error that came closest to
    acceptance; `UnsignedError` if there is no signature.
    """
    errors: list[SignatureError] = []
    for candidate in chain.from_iterable(map(read_file, signature_files)):
        try:
            return accepted(candidate, trusted, predicate_type, digests, where)
        except SignatureError as error:
            errors.append(error)
    if not errors:
        names = " or ".join(map(str, signature_files))
        raise UnsignedError(
            f"{where}: not signed: there is no signature in {names}",
            Hint("Sign it", ("sign", "--key", "KEY", where)),
        )
    raise min(errors, key=lambda e: _CLOSEST.index(type(e)))


_CLOSEST = (OtherSubjectError, WrongTypeError, ChangedPayloadError, UnknownKeyError)
