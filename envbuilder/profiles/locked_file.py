"""Locked files, and the check that kind, name, version, file name and source agree.

Each field is decisive on its own somewhere: the kind for whether a file is installed at all, the
file name for what an installer takes it for. A lock in which they differ would state one thing and
do another.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from msgspec import Meta, Struct

from envbuilder.core import types

if TYPE_CHECKING:
    from collections.abc import Iterable


MAIN = "debian"
"""Symbolic source: Debian's main archive."""
SECURITY = "debian-security"
"""Symbolic source: Debian's security archive."""
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_DEBIAN_VERSION = re.compile(r"(?:[0-9]+:)?[0-9][A-Za-z0-9.+~-]*")
_DEBIAN_SOURCES = frozenset({MAIN, SECURITY})
_WHEEL_PARTS = (5, 6)


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A locked file."""

    kind: types.FileKind
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\Z")]
    """Distribution, Debian or conda package (a union type would check only its last pattern)."""
    version: types.FileVersion
    file: types.FilePath
    """The wheel's file name, or a .deb's path below the archive root."""
    sha256: types.Sha256
    size: types.FileSize | None
    """Bytes; null if no source states it."""
    source: types.Source
    provenance: types.Provenance
    by: types.Sentence
    """Where the hash was read, or the third-party lock file that claims it."""
    role: types.Role = ""
    """`base`: part of the base itself, not installed on top of it."""
    size_about: types.FileSize | None = None
    """About how many bytes, if no source states `size`: for disk space and progress only."""
    requires: tuple[types.Distribution, ...] = ()
    """The packages of the same target that it requires, in locks of projects."""
    unread: bool = False
    """Whether `lock` could not read which files the wheel installs, because its server gives no
    part of it: it was not compared with the target's other wheels, as no `claim` is."""

    @property
    def room(self) -> int:
        """Bytes that it takes, as far as a source states them; 0 if none does."""
        return self.size or self.size_about or 0

    @property
    def basename(self) -> str:
        """The file name without its folder."""
        return self.file.rpartition("/")[2]


def is_debian(name: str, version: str) -> bool:
    """Return whether name and version are valid for Debian (Debian Policy 5.6.1 and 5.6.12)."""
    return bool(_DEBIAN_NAME.fullmatch(name) and _DEBIAN_VERSION.fullmatch(version))


def problem(files: Iterable[File]) -> str:
    """Return what is wrong with the files of one target; empty if nothing is."""
    listed: set[tuple[str, str]] = set()
    for file in files:
        if wrong := (_deb(file) if file.kind == "deb" else _wheel(file)):
            return f"{file.file}: {wrong}"
        if (file.kind, file.name) in listed:
            return f"{file.file}: {file.kind} {file.name} is listed twice"
        listed.add((file.kind, file.name))
    return ""


def _wheel(file: File) -> str:  # noqa: PLR0911 (one return per fault reads best)
    if file.kind not in {"wheel", "tool"}:
        return f"kind: a lock of wheels holds no {file.kind}"
    if not file.file.endswith(".whl") or "/" in file.file:
        return f"kind: {file.kind}, but the file is not a wheel"
    if file.role:
        return "role: a wheel cannot be part of a base"
    if file.source in _DEBIAN_SOURCES:
        return f"source: {file.source} has no wheels"
    if file.name != _canonical(file.name):
        return f"name: is not normalised: expected {_canonical(file.name)}"
    parts = file.file.split("-")
    if len(parts) not in _WHEEL_PARTS or _canonical(parts[0]) != file.name:
        return f"name: {file.name}, but the file is another distribution's"
    if not _same_version(unquote(parts[1]), file.version):
        return f"version: {file.version}, but the file is of another version"
    return ""


def _deb(file: File) -> str:
    if not file.file.endswith(".deb"):
        return "kind: deb, but the file is not a Debian package"
    if file.source not in _DEBIAN_SOURCES:
        return f"source: {file.source} has no Debian packages"
    if not is_debian(file.name, file.version):
        return "name, version: not those of a Debian package"
    name, _, rest = unquote(file.basename).partition("_")
    if name != file.name:
        return f"name: {file.name}, but the file is another package's"
    upstream = file.version.rpartition(":")[2]
    if rest.rpartition("_")[0] not in {file.version, upstream}:
        return f"version: {file.version}, but the file is of another version"
    return ""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _same_version(stated: str, locked: str) -> bool:
    if stated.replace("_", "-") == locked.replace("_", "-"):
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(stated.replace("_", "-")) == Version(locked)
    except InvalidVersion:
        return False
