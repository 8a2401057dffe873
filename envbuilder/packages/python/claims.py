"""Claims: hashes of wheels on indexes that may be unreachable, from public lock files.

A claim is a hash taken from a third-party lock file. It allows a profile to be locked even if the
index cannot be queried; the download confirms or refutes it. No part of a claim is written from
memory: each names its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from envbuilder.core import resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import decode, parse_yaml, read_text
from envbuilder.core.text import shown

if TYPE_CHECKING:
    from pathlib import Path


# The syntax of a METADATA file, including environment markers. One line, because it is written into
# such a file.
RequiresDist = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f]*\Z")]


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything read from a claims file."""


class Metadata(_Strict, frozen=True):
    """The requirements of the wheels of a release."""

    requires_dist: tuple[RequiresDist, ...]
    provenance: types.Provenance
    by: types.Sentence
    requires_python: types.Sentence = ""


class ClaimedFile(_Strict, frozen=True):
    """One wheel: its name and hash, and the source that states them."""

    file: types.FilePath
    sha256: types.Sha256
    by: types.Sentence
    provenance: Literal["read", "claim"] = "claim"
    """`read` if the bytes themselves were hashed, which `by` then states."""
    size: int | None = None
    size_about: int | None = None
    """About how many bytes: a source that does not state each file's exact size."""


class Claim(_Strict, frozen=True):
    """The wheels of one release on one index."""

    distribution: types.Distribution
    version: types.FileVersion
    index: types.Source
    metadata: Metadata
    files: tuple[ClaimedFile, ...]


def load(path: Path) -> Claim:
    """Read the claim in one file; raise `InvalidError` naming file and key."""
    text = read_text(path)
    claim = decode(parse_yaml(text, str(path)), Claim, str(path), text)
    _check(claim, path)
    return claim


def _check(claim: Claim, path: Path) -> None:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name, parse_wheel_filename
    from packaging.version import Version

    for line in claim.metadata.requires_dist:
        try:
            Requirement(line)
        except InvalidRequirement as error:
            raise InvalidError(
                f"{path}: metadata.requires_dist: {shown(line)}: not a requirement"
            ) from error
    try:
        expected = (canonicalize_name(claim.distribution), Version(claim.version))
    except ValueError as error:
        raise InvalidError(f"{path}: version: {shown(claim.version)} is not a version") from error
    listed = set()
    for entry in claim.files:
        try:
            name, version, _, _ = parse_wheel_filename(entry.file)
        except ValueError as error:
            raise InvalidError(
                f"{path}: files: {shown(entry.file)}: not the name of a wheel"
            ) from error
        if (name, version) != expected:
            raise InvalidError(
                f"{path}: files: {entry.file}: is not {claim.distribution} {claim.version}"
            )
        if entry.file in listed:
            raise InvalidError(f"{path}: files: {entry.file}: appears twice")
        listed.add(entry.file)


def load_all(folder: Path | None = None) -> tuple[Claim, ...]:
    """Return all shipped claims, in the order of their file names."""
    folder = folder or resources.profiles_dir() / "claims"
    return tuple(load(path) for path in sorted(folder.glob("*.yaml")))
