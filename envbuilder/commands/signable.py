"""The files that `sign` and `verify-signature` know, recognized by their content.

A provenance is a statement about an artifact already and is signed as it is. For the others a
statement is made whose subject is the file. `verify-signature` compares both with what is on disk.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build.attestation import documents, provenance
from envbuilder.build.backends import integrity
from envbuilder.bundle import format as bundle_format
from envbuilder.containers.oci import archive
from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import file_sha256
from envbuilder.profiles import library
from envbuilder.signatures import statement as statements
from envbuilder.signatures.envelope import ChangedPayloadError, WrongTypeError
from envbuilder.signatures.statement import Subject

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.signatures.statement import Statement

SBOM = "urn:envbuilder:sbom:v1"
"""The predicate type of a statement about an SBOM's file."""


class Signable(Struct, frozen=True, kw_only=True):
    """A file that can be signed: its statement, and what a signature of it must be about."""

    kind: str
    type: str
    """The statement's predicate type."""
    statement: bytes
    digests: dict[str, str]
    """One of them must be a subject's, by algorithm."""
    note: str = ""
    """What a signature of it does not show here."""


def recognized(path: Path) -> Signable:
    """Return what a file is to `sign`; raise `InvalidError` if it cannot be signed."""
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
    subject = Subject(name=path.name, digest=sha256)
    if keys.get("_type") in statements.TYPES:
        return _provenance(path, content)
    if keys.get("bomFormat") == "CycloneDX":
        kind, type_ = "SBOM", SBOM
    elif {"schema", "profile", "targets"} <= keys.keys():
        kind, type_ = "lock", library.LOCK_TYPE
    else:
        raise InvalidError(
            f"{path}: neither a lock nor a bundle, an SBOM or a provenance",
            "For other files use a general tool, such as cosign sign-blob.",
        )
    made = statements.make([subject], type_, {})
    return Signable(kind=kind, type=type_, statement=made, digests=sha256)


def _bundle(path: Path) -> Signable:
    """Return a bundle, with two subjects: the file for other tools, the manifest for `unbundle`."""
    with bundle_format.opened(path) as reader:
        for _, content in reader.members():
            for _ in content:
                pass
        manifest = reader.digest
    digest = {"sha256": file_sha256(path)}
    subjects = (
        Subject(name=path.name, digest=digest),
        Subject(name=bundle_format.manifest_name(manifest), digest={"sha256": manifest}),
    )
    made = statements.make(subjects, bundle_format.SIGNED_TYPE, {})
    return Signable(kind="bundle", type=bundle_format.SIGNED_TYPE, statement=made, digests=digest)


def _provenance(path: Path, content: bytes) -> Signable:
    statement = statements.parse(content, str(path))
    require_builder(statement, str(path))
    in_hand = _in_hand(path)
    subjects = [d for s in statement.subject for d in s.digest.items()]
    if in_hand and not in_hand.items() & {*subjects}:
        raise statements.other_subject(str(path), in_hand, subjects)
    return Signable(
        kind="provenance",
        type=provenance.PREDICATE,
        statement=content,
        digests=in_hand or statement.subject[0].digest,
        note="" if in_hand else "what it is about is not next to it, and was not compared",
    )


def _in_hand(path: Path) -> dict[str, str]:
    """Return the digest of the artifact next to its provenance, from its bytes; empty if missing.

    Raise `EnvbuilderError` if it is damaged, or is neither an environment nor an image on disk.
    """
    artifact = path.with_name(path.name.removesuffix(provenance.SUFFIX))
    if artifact == path or not artifact.exists():
        return {}
    if integrity.marker(artifact):
        digest = integrity.portable_digest(artifact)
        return {documents.TREE: digest.removeprefix("sha256:")}
    return {"sha256": archive.identity(artifact).removeprefix("sha256:")}


def require_builder(statement: Statement, where: str) -> None:
    """Raise `WrongTypeError` unless a statement is the provenance of a build by envbuilder."""
    try:
        built = statement.predicate["buildDefinition"]["buildType"]
        builder = statement.predicate["runDetails"]["builder"]["id"]
    except (KeyError, TypeError):
        built = builder = "none"
    if statement.predicate_type != provenance.PREDICATE or built != provenance.BUILD_TYPE:
        raise WrongTypeError(f"{where}: not a provenance by envbuilder")
    if builder != provenance.BUILDER:
        raise WrongTypeError(
            f"{where}: names the builder {str(builder)[:100]!r}, expected {provenance.BUILDER}"
        )


def require_same(signable: Signable, signed: Statement, where: str) -> None:
    """Raise `ChangedPayloadError` if a provenance was signed with another content than its file's.

    Other files are compared by their digest.
    """
    if signable.kind == "provenance" and statements.parse(signable.statement, where) != signed:
        raise ChangedPayloadError(
            f"{where}: the signed content is another than the file's",
            "Get both again from where they were signed.",
        )
