"""Filter an mmdebstrap root filesystem down to what is reproducible.

What depends on the packages alone is kept; what depends on the machine or the time is left out.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from envbuilder.packages.debian import status
from envbuilder.packages.debian.suite import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.build.plan import MakeBase

_LEFT_EMPTY = (
    *("dev/", "proc/", "run/", "sys/", "tmp/", "var/cache/apt/", "var/cache/ldconfig/"),
    *("var/lib/apt/lists/", "var/log/", "var/tmp/"),
)
_LEFT_OUT = frozenset(
    {"etc/apt/sources.list", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/hostname", "etc/machine-id",
     "etc/resolv.conf", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old",
     "var/lib/dpkg/diversions-old", "var/lib/dpkg/status-old"}
)  # fmt: skip
# Documentation and translations, which Debian's slim images omit as well; licences stay. Removed
# here because mmdebstrap's own filter takes a second per package.
_DOCUMENTS = tuple(f"usr/share/{name}/" for name in ("doc", "info", "locale", "man"))
_LICENCES = re.compile(r"usr/share/doc/[^/]+(/copyright)?")
# apt gives these folders to the build machine's `_apt` user, if that user can reach them. Here they
# are as in the package; apt in the image gives them to the image's own user.
_APTS = frozenset({"var/cache/apt/archives/partial", "var/lib/apt/lists/partial"})
_MASTERS = {f"usr/share/base-passwd/{n}.master": f"etc/{n}" for n in ("group", "passwd")}


def members(tar: Path, folder: Path) -> Iterator[Member]:
    """Yield the entries of the layer; the contents of files are written to `folder`."""
    files: dict[str, Path] = {}
    with tarfile.open(tar, "r:") as archive:
        for number, entry in enumerate(archive):
            path = _clean(entry.name)
            if not path or not _belongs(path, is_folder=entry.isdir()):
                continue
            metadata: dict[str, Any] = {"path": path, "mode": entry.mode & 0o7777}
            metadata |= {"uid": entry.uid, "gid": entry.gid}
            if path in _APTS:
                metadata |= {"uid": 0, "gid": 0, "mode": 0o755}
            if any("security.capability" in key for key in entry.pax_headers):
                raise BuildError(f"/{path}: has file capabilities, which a base cannot keep")
            if entry.isdir():
                yield Member(kind="folder", **metadata)
            elif entry.issym():
                yield Member(kind="link", target=entry.linkname, **metadata)
            elif entry.islnk():
                linked = files.get(_clean(entry.linkname))
                if linked is None:
                    raise BuildError(f"/{path}: a link to {entry.linkname}, which does not exist")
                yield Member(source=linked, **metadata)
            elif entry.isreg():
                files[path] = folder / str(number)
                stream = archive.extractfile(entry)
                assert stream is not None, "a plain file has content"
                with files[path].open("wb") as out:
                    shutil.copyfileobj(stream, out)
                yield Member(source=files[path], **metadata)
            else:
                raise BuildError(f"/{path}: neither a file nor a folder nor a link")


def _clean(name: str) -> str:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise BuildError(f"mmdebstrap made a path that leads out of the base: {name}")
    return "/".join(parts)


def _belongs(path: str, *, is_folder: bool) -> bool:
    """Return whether a path depends on the packages alone, not on the machine or the time."""
    if "__pycache__" in path.split("/"):
        return False  # bytecode records times; the official Python images omit it as well
    if path.startswith(_DOCUMENTS) and not _LICENCES.fullmatch(path):
        return False
    return is_folder or not (path in _LEFT_OUT or path.startswith(_LEFT_EMPTY))


def require_exactly(base: MakeBase, entries: dict[str, Member]) -> None:
    """Require that exactly the locked packages are installed and configured; else `BuildError`."""
    member = entries.get(status.FILE)
    text = member.source.read_bytes() if member and isinstance(member.source, Path) else b""
    states = set(re.findall(rb"^Status: (.*)$", text, re.MULTILINE))
    if states != {b"install ok installed"}:
        raise BuildError("mmdebstrap left packages that are not configured", "See the log.")
    actual = status.parse({status.FILE: text}, ARCHITECTURES[base.platform]) or {}
    locked = {f.name: f.version for f in base.files}
    differ = sorted(n for n in actual.keys() | locked.keys() if actual.get(n) != locked.get(n))
    if differ:
        name = differ[0]
        raise BuildError(
            f"mmdebstrap installed other packages than the lock states: {name}"
            f" {actual.get(name, 'is missing')}, locked {locked.get(name, 'nothing')}",
            "See the log; a newer mmdebstrap may help.",
        )


def without_scripts(entries: dict[str, Member], controls: dict[str, str]) -> Iterable[Member]:
    """Yield the plain data that package scripts would have created.

    These are the default users and groups, and a dpkg status that lists the unpacked packages.
    """
    for source, target in _MASTERS.items():
        if source in entries and target not in entries:
            yield msgspec.structs.replace(entries[source], path=target)
    text = "\n".join(
        control.replace("\n", "\nStatus: install ok unpacked\n", 1)
        for _, control in sorted(controls.items())
    )
    yield Member(path=status.FILE, content=text.encode())
