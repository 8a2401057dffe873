"""Check the members and the control fields of a .deb before any of them is used."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from envbuilder.core import member_paths
from envbuilder.core.errors import BuildError
from envbuilder.core.text import escaped, is_encodable, shown
from envbuilder.packages.debian import archive
from envbuilder.profiles import locked_file

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from envbuilder.core.tars import Tar
    from envbuilder.packages.store import Store
    from envbuilder.profiles.locked_file import File


LONGEST_REASON = 300
"""Maximum characters of a reason, which may name members."""
_CLEAN = "members of a clean deb 1"
"""What the store remembers; the number changes whenever `members` refuses more or less."""


def require_clean(files: Iterable[File], store: Store) -> None:
    """Raise `BuildError` if a .deb in the store has a member that an image must not have.

    This is for packages that dpkg will unpack, in an engine's container or for a base: dpkg writes
    `.wh.NAME` as an ordinary file, but in a layer that name is a whiteout, which deletes a file.
    """
    for file in files:
        if file.kind == "deb" and store.has(file.sha256):
            # To list a compiler's packages takes seconds: they are unpacked for it.
            store.derived(file.sha256, _CLEAN, int, partial(_count, file))


def _count(file: File, path: Path) -> int:
    with opened(file, path) as package:
        return sum(1 for _ in members(file, package.data()))


def opened(file: File, path: Path) -> AbstractContextManager[archive.Deb]:
    """Open a .deb; raise `BuildError` if it is damaged or not a .deb."""
    return archive.opened(path, lambda reason: refused(file, f"it is damaged: {reason}"))


def members(file: File, data: Tar) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield each member of a package's data, by its path below the root.

    Raise `BuildError` for a duplicate, an unsafe path, or anything but files, folders and links
    inside the package, such as a device or a pipe.
    """
    names: set[str] = set()
    for member in data:
        name = path(file, member.name)
        if not name:
            continue
        if name in names and not member.isdir():
            raise refused(file, f"/{name} appears twice")
        names.add(name)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise refused(file, f"/{name} is neither a file nor a folder nor a link")
        if member.islnk() and path(file, member.linkname) not in names:
            raise refused(
                file, f"/{name} is a link to {member.linkname!r}, which does not precede it"
            )
        if member.issym() and (not member.linkname or not member.linkname.isprintable()):
            raise refused(file, f"/{name} is a link to {member.linkname!r}")
        yield name, member


def path(file: File, stated: str) -> str:
    """Return a member's path below the root; empty for the root itself."""
    name = stated.removeprefix("./").removesuffix("/")
    if name in {"", "."}:
        return ""
    if not is_encodable(name):
        raise refused(file, f"{shown(name)} is not UTF-8 text")
    if objection := member_paths.objection(name):
        raise refused(file, objection)
    return name


def require_named(file: File, fields: Mapping[str, str]) -> None:
    """Raise `BuildError` if a package is not the locked one, or its fields violate Debian policy.

    Files are named after these control fields.
    """
    name, version = fields.get("Package", ""), fields.get("Version", "")
    if not locked_file.is_debian(name, version):
        raise refused(file, "its name or version violates Debian policy")
    if (name, version) != (file.name, file.version):
        raise refused(file, f"its control file states {name} {version}")
    if not fields.get("Architecture", "").replace("-", "").isalnum():
        raise refused(file, "its architecture violates Debian policy")


def refused(file: File, reason: str) -> BuildError:
    """Return the error for a package that cannot be used as it is."""
    return BuildError(
        f"{file.basename}: refused: {escaped(reason, LONGEST_REASON)}",
        "The file matches the lock. Leave the package out of the profile, or pin another version.",
    )
