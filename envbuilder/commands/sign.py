"""`envbuilder sign` and `verify-signature`: sign files with a key, and check signatures.

The kind of a file is recognized by its contents. A provenance is already a statement about an
artifact, so it is signed as it is. For any other kind of file, a statement about the file is
generated and signed. `verify-signature` compares the signed statement with the files on disk.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from msgspec import Struct

from envbuilder.builds import attestations
from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle_format
from envbuilder.commands.options import EXISTING_FILE, json_option, load_settings
from envbuilder.containers.oci import archive
from envbuilder.core import console, decoding, signatures
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings
from envbuilder.profiles import library

PASSPHRASE = "ENVBUILDER_KEY_PASSPHRASE"  # noqa: S105 (the name of a variable)


@click.command("sign")
@click.argument("files", nargs=-1, type=EXISTING_FILE, metavar="FILE...", required=True)
@click.option("--key", required=True, type=EXISTING_FILE, help="Private key, PKCS#8 in PEM.")
@json_option
def command(files: tuple[Path, ...], key: Path, as_json: bool) -> None:
    """Sign locks, bundles, SBOMs and provenances, each into FILE.intoto.jsonl next to it.

    Keys are P-256 or ed25519, as openssl makes them. The passphrase of an encrypted key is read
    from ENVBUILDER_KEY_PASSPHRASE, or asked for.

    \b
    Examples:
      openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256 -out team.pem
      openssl pkey -in team.pem -pubout -out team.pub
      envbuilder sign --key team.pem profiles/locks/cpu.json
      envbuilder sign --key team.pem cpu.tar cpu.sbom.cdx.json
    """
    private = signatures.read_private_key(key, _passphrase(key), console.progress().note)
    results = []
    for path in files:
        what = recognized(path)
        written = signatures.write_signatures(signatures.path_beside(path), what.statement, private)
        results.append({"name": str(path), "kind": what.kind, "where": str(written)})
    if as_json:
        console.data({"schema": 1, "keyid": private.public.id, "signed": results})
        return
    for result in results:
        console.result(f"{result['name']}: {result['kind']}, signed: {result['where']}")
    console.result(f"key {private.public.id}")


def _passphrase(key: Path) -> Callable[[], bytes]:
    """Return a function that gets a key's passphrase.

    The passphrase is taken from an environment variable or, if that is not set, asked for on the
    terminal. It is never a command-line argument, because other users could read it there. The
    function raises `InvalidError` if the variable is not set and there is no terminal.
    """

    def read() -> bytes:
        if PASSPHRASE in os.environ:
            return os.fsencode(os.environ[PASSPHRASE])
        if not sys.stdin.isatty():
            raise InvalidError(
                f"{key}: the key is encrypted, and there is no terminal to ask for its passphrase",
                f"Set {PASSPHRASE}.",
            )
        asked: str = click.prompt(f"Passphrase of {key}", hide_input=True, err=True)
        return asked.encode()

    return read


@click.command("verify-signature")
@click.argument("files", nargs=-1, type=EXISTING_FILE, metavar="FILE...", required=True)
@click.option(
    "--key",
    multiple=True,
    type=EXISTING_FILE,
    metavar="PUB",
    help=(
        "Public key that must have signed the file; with several, one of them. Without it,"
        " signatures: of the configuration, for locks and bundles."
    ),
)
@json_option
def verify_signature(files: tuple[Path, ...], key: tuple[Path, ...], as_json: bool) -> None:
    """Check who signed files, and that the signatures match their content.

    For a provenance, also checks the builder and the artifact next to it. Exits with 5 if there is
    no signature or none is accepted; the message says which.

    \b
    Examples:
      envbuilder verify-signature --key team.pub profiles/locks/cpu.json
      envbuilder verify-signature --key team.pub cpu.tar.provenance.json
    """
    settings = load_settings()
    signed = [_accepted(path, key, settings) for path in files]
    if as_json:
        console.data({"schema": 1, "signed": signed})
        return
    for accepted in signed:
        console.result(f"{accepted.name}: signed by {accepted.keyid}")
        console.result(f"  {accepted.type}")
        console.result(f"  {accepted.digest}")


def _accepted(path: Path, keys: Sequence[Path], settings: Settings) -> signatures.Signed:
    """Return the signature of a file that was made with one of the given or configured keys.

    Raise `EnvbuilderError` if there is no such signature.
    """
    what = recognized(path)
    required = settings.configuration.signatures
    configured = {"lock": required.locks, "bundle": required.bundles}
    trusted = tuple(map(str, keys)) or configured.get(what.kind)
    if not trusted:
        raise InvalidError(
            f"neither the command nor the configuration names a public key for a {what.kind}",
            "Add --key PUB. For locks and bundles, signatures: in envbuilder.yaml works, too.",
        )
    where = str(path)
    files = [signatures.path_beside(path)]
    statement, signed = signatures.require_signed(
        where, files, signatures.read_public_keys(trusted), what.type, what.digests
    )
    # Other files than a provenance are compared by their digest.
    if what.kind == "provenance" and signatures.parse_statement(what.statement, where) != statement:
        raise signatures.ChangedPayloadError(
            f"{where}: the file differs from the signed content",
            "Get the file and its signature again from the signer.",
        )
    if what.note:
        console.progress().note(f"note: {path}: {what.note}")
    return signed


SBOM = "urn:envbuilder:sbom:v1"
"""Predicate type of a statement about an SBOM file."""


class Signable(Struct, frozen=True, kw_only=True):
    """A file that can be signed.

    This includes the statement to sign, and the file's digests, which the signed statement must
    cover.
    """

    kind: str
    type: str
    """Predicate type of the statement."""
    statement: bytes
    digests: dict[str, str]
    """Algorithm → digest. A subject in the signed statement must have at least one of these
    digests."""
    note: str = ""
    """What a signature of this file does not prove, as a note for the user. Empty if there is no
    such limitation."""


def recognized(path: Path) -> Signable:
    """Recognize the kind of a file, and return what has to be signed for it.

    Raise `InvalidError` if the file cannot be read or is of an unknown kind.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(bundle_format.BLOCK)
            is_bundle = bundle_format.manifest_stated(head) is not None
            content = b"" if is_bundle else head + stream.read(decoding.LARGEST)
        if is_bundle:
            return _bundle(path)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        document = decoding.strict_json(content)
    except ValueError:
        document = None
    keys = document if isinstance(document, dict) else {}
    sha256 = {"sha256": hashlib.sha256(content).hexdigest()}
    subject = signatures.Subject(name=path.name, digest=sha256)
    if keys.get("_type") in signatures.TYPES:
        return _provenance(path, content)
    if keys.get("bomFormat") == "CycloneDX":
        kind = "SBOM"
        type_ = SBOM
    elif {"schema", "profile", "targets"} <= keys.keys():
        kind = "lock"
        type_ = library.LOCK_TYPE
    else:
        raise InvalidError(
            f"{path}: not a lock, bundle, SBOM or provenance file",
            "For other files, use a general-purpose tool such as cosign sign-blob.",
        )
    made = signatures.make_statement([subject], type_, {})
    return Signable(kind=kind, type=type_, statement=made, digests=sha256)


def _bundle(path: Path) -> Signable:
    """Return what has to be signed for a bundle: a statement with two subjects.

    The first subject is the file, which other tools check. The second subject is the manifest,
    which `unbundle` checks.
    """
    with bundle_format.opened(path) as reader:
        for _, content in reader.members():
            for _ in content:
                pass
        manifest = reader.digest
    digest = {"sha256": file_sha256(path)}
    subjects = (
        signatures.Subject(name=path.name, digest=digest),
        signatures.Subject(name=bundle_format.manifest_name(manifest), digest={"sha256": manifest}),
    )
    made = signatures.make_statement(subjects, bundle_format.SIGNED_TYPE, {})
    return Signable(kind="bundle", type=bundle_format.SIGNED_TYPE, statement=made, digests=digest)


def _provenance(path: Path, content: bytes) -> Signable:
    statement = signatures.parse_statement(content, str(path))
    _require_builder(statement, str(path))
    in_hand = _in_hand(path)
    subjects = signatures.digests_of(statement)
    if in_hand and not in_hand.items() & {*subjects}:
        raise signatures.other_subject(str(path), in_hand, subjects)
    return Signable(
        kind="provenance",
        type=attestations.PREDICATE,
        statement=content,
        digests=in_hand or statement.subject[0].digest,
        note=""
        if in_hand
        else "the artifact was not compared, because it is not in the same folder",
    )


def _in_hand(path: Path) -> dict[str, str]:
    """Return the digest of the artifact next to a provenance, keyed by the digest's algorithm.

    The digest is computed from the artifact's contents. Return an empty mapping if the artifact is
    missing. Raise `EnvbuilderError` if the artifact is damaged, or is neither an environment nor an
    image.
    """
    artifact = path.with_name(path.name.removesuffix(attestations.SUFFIXES["provenance"]))
    if artifact == path or not artifact.exists():
        return {}
    if integrity.marker(artifact):
        return {attestations.TREE: integrity.portable_digest(artifact).removeprefix("sha256:")}
    return {"sha256": archive.identity(artifact).removeprefix("sha256:")}


def _require_builder(statement: signatures.Statement, where: str) -> None:
    """Raise `WrongTypeError` unless the statement is the provenance of a build by envbuilder."""
    try:
        built = statement.predicate["buildDefinition"]["buildType"]
        builder = statement.predicate["runDetails"]["builder"]["id"]
    except (KeyError, TypeError):
        built = builder = "none"
    if statement.predicate_type != attestations.PREDICATE or built != attestations.BUILD_TYPE:
        raise signatures.WrongTypeError(f"{where}: not a provenance statement by envbuilder")
    if builder != attestations.BUILDER:
        raise signatures.WrongTypeError(
            f"{where}: the provenance names the builder {str(builder)[:100]!r}, expected"
            f" {attestations.BUILDER}"
        )
