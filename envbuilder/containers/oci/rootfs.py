"""The root filesystem of an image: an index of its paths, and the files that a build reads.

Layers are read without being unpacked. Upper layers replace files in lower layers, or remove files
with whiteouts.
"""

from __future__ import annotations

import re
import tarfile
from bisect import bisect_left
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from envbuilder.containers.oci.layer import members
from envbuilder.core.errors import BuildError, InvalidError, is_encodable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from envbuilder.containers.oci.layout import Layout, Manifest
    from envbuilder.core.archives import Tar


class OtherPythonError(BuildError):
    """Error raised if the base image does not contain the required Python (exit 1).

    `version` is the version of Python that the image contains instead, or a text saying that the
    image contains no Python.
    """

    def __init__(self, needed: str, version: str, locked: Collection[str] = ()) -> None:
        minor = ".".join(version.split(".")[:2])
        other = (
            f", or build for the image's own: --python-version {minor}" if minor in locked else ""
        )
        super().__init__(
            f"Python {needed} is needed, but the base image has {version}",
            f"Name an image with Python {needed}: ENVBUILDER_BASE_IMAGE=REF{other}",
        )
        self.version = version


Kind = Literal["file", "folder", "link", "other"]
_KINDS: dict[bytes, Kind] = {
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
}
_KEPT = re.compile(r"etc/(passwd|group)|var/lib/dpkg/status(\.d/[^/]+)?")
"""Pattern for the paths of the files whose contents are kept in memory."""
_PYTHON = re.compile(r"(?:lib)?python(3\.[0-9]+)(?:\.so\.[0-9.]+)?")
_OPAQUE = ".wh..wh..opq"
_GONE = ".wh."
_CONTENT = 16 << 20
"""Maximum size in bytes of a file to read: a Python, or a file whose contents are kept in memory.

dpkg's status file has 1 to 5 MB.
"""
_CONTENTS = 64 << 20
"""Maximum total size in bytes of the contents that are kept in memory. There is a limit because a
base image may come from an untrusted source."""
_ENTRIES = 500_000
"""Maximum number of paths in an image. Images that contain CUDA and PyTorch have up to 200,000
paths."""
_LAYERS = 256
"""Maximum number of layers in a base image. Container engines allow 127."""
_LINKS = 40
"""Maximum number of links to follow in succession, which is the same limit as in Linux."""


class Entry(Struct, frozen=True, array_like=True):
    """The metadata of one path in an image."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    time: int
    target: str = ""
    """Target of a link; empty for entries that are not links."""


class RootFs(Struct, frozen=True, kw_only=True):
    """The root filesystem of an image, indexed by path.

    Paths are relative to the image's root and have no leading slash.
    """

    entries: dict[str, Entry]
    contents: dict[str, bytes]
    """Contents of those of the files `/etc/passwd`, `/etc/group` and dpkg's status files that
    exist, by path."""
    versions: dict[str, str]
    """Path of a Python interpreter or its library → the Python version found in this file."""

    def resolve(self, path: str) -> str | None:
        """Return the path after following all links in it, or None if the path does not exist."""
        todo = list(reversed(PurePosixPath("/", path).parts[1:]))
        resolved = PurePosixPath()
        for _ in range(len(todo) + _LINKS * 8):
            if not todo:
                return "" if resolved == PurePosixPath() else str(resolved)
            name = todo.pop()
            if name == "..":
                resolved = resolved.parent
                continue
            entry = self.entries.get(str(resolved / name))
            if entry is None:
                return None
            if entry.kind != "link":
                resolved /= name
                continue
            target = PurePosixPath(entry.target)
            if target.is_absolute():
                resolved = PurePosixPath()
            todo += reversed([p for p in target.parts if p != "/"])
        return None

    def python(self, minor: str, search: str) -> tuple[str, str]:
        """Return the path and the version X.Y.Z of the Python X.Y that a shell would find.

        `minor` is X.Y, and `search` is the image's PATH. Raise `OtherPythonError` if the image does
        not contain this Python.
        """
        other = "none on its PATH"
        shared = f"libpython{minor}.so."
        library = next((v for p, v in self.versions.items() if shared in p), None)
        for name in (f"python{minor}", "python3"):
            for folder in search.split(":"):
                path = f"{folder}/{name}"
                resolved = self.resolve(path)
                if resolved is None or self.entries[resolved].kind != "file":
                    continue
                version = self.versions.get(resolved) or library
                if version and version.startswith(f"{minor}."):
                    return path, version
                other = version or other
        raise OtherPythonError(minor, other)


def read(layout: Layout, manifest: Manifest) -> RootFs:
    """Read the root filesystem that results from applying all layers of a manifest.

    Raise `BuildError` if the bytes of a layer do not match its digest. Raise `InvalidError` if a
    layer cannot be read or the image exceeds the limits.
    """
    root = RootFs(entries={}, contents={}, versions={})
    if len(manifest.layers) > _LAYERS:
        raise InvalidError(
            f"{layout.folder}: the image has {len(manifest.layers)} layers, more than {_LAYERS}"
        )
    for layer in manifest.layers:
        _apply(layout.checked(layer), root)
    return root


def over(root: RootFs, layer: Path) -> RootFs:
    """Return a copy of the root filesystem with one more layer applied on top."""
    result = RootFs(
        entries=dict(root.entries), contents=dict(root.contents), versions=dict(root.versions)
    )
    _apply(layer, result)
    return result


def _apply(layer: Path, root: RootFs) -> None:
    # Whiteouts apply only to the layers below, whatever their position in the layer.
    below = set(root.entries)
    lower = sorted(root.entries)
    for member, archive in members(layer):
        if not is_encodable(member.name + member.linkname):
            continue  # an index is JSON; no file that a build reads has such a name
        path = str(PurePosixPath("/", member.name)).lstrip("/")
        if ".." in path.split("/"):
            raise InvalidError(f"{layer}: {member.name}: the path leads outside its layer")
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            _remove(root, _within(lower, below, folder))
        elif name.startswith(_GONE):
            hidden = f"{folder}/{name.removeprefix(_GONE)}".lstrip("/")
            _remove(root, [*_within(lower, below, hidden), *({hidden} & below)])
        elif path:
            there = root.entries.get(path)
            if there and there.kind == "folder" and not member.isdir():
                _remove(root, _within(lower, below, path))
            _put(archive, member, path, root)
            below.discard(path)
            while folder and folder not in root.entries:  # a layer need not list them
                root.entries[folder] = Entry("folder", 0o755, 0, 0, 0)
                folder = folder.rpartition("/")[0]
            if len(root.entries) > _ENTRIES:
                raise InvalidError(f"{layer}: the image has more than {_ENTRIES} paths")


def _within(lower: list[str], below: Collection[str], folder: str) -> list[str]:
    """Remove the paths inside a folder from the sorted list `lower`.

    Return the removed paths that are also in `below`.
    """
    start = bisect_left(lower, f"{folder}/") if folder else 0
    end = bisect_left(lower, f"{folder}0") if folder else len(lower)  # "0" follows "/"
    paths = [path for path in lower[start:end] if path in below]
    del lower[start:end]
    return paths


def _remove(root: RootFs, paths: Iterable[str]) -> None:
    for path in paths:
        root.entries.pop(path, None)
        root.contents.pop(path, None)
        root.versions.pop(path, None)


def _put(archive: Tar, member: tarfile.TarInfo, path: str, root: RootFs) -> None:
    _remove(root, [path])
    if member.islnk():
        linked = str(PurePosixPath("/", member.linkname)).lstrip("/")
        if linked in root.entries:
            root.entries[path] = root.entries[linked]
        for table in (root.contents, root.versions):
            values = cast("dict[str, object]", table)
            if linked in values:
                values[path] = values[linked]
        return
    kind = _KINDS.get(member.type, "other")
    time = int(member.mtime)
    root.entries[path] = Entry(kind, member.mode, member.uid, member.gid, time, member.linkname)
    readable = _KEPT.fullmatch(path)
    python = _PYTHON.fullmatch(path.rpartition("/")[2])
    if kind != "file" or member.size > _CONTENT or not (readable or python):
        return
    data = archive.content(member)
    if readable and sum(map(len, root.contents.values())) + len(data) <= _CONTENTS:
        root.contents[path] = data
    if python and (version := _version(data, python[1])):
        root.versions[path] = version


def _version(data: bytes, minor: str) -> str | None:
    """Return the full version of Python X.Y that the bytes of a file contain as a C string.

    `minor` is X.Y. Return None if the bytes do not contain a version.
    """
    number = re.escape(minor.encode()) + rb"\.[0-9]{1,2}(?:(?:a|b|rc)[0-9]+)?"
    found = re.search(rb"\x00(" + number + rb")\+?\x00", data)
    return found[1].decode() if found else None
