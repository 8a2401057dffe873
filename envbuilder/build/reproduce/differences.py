"""Compare two builds of the same plan: equal or not, and what differs; reads streams only."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from envbuilder.core.text import printable

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Iterator, Mapping

    from envbuilder.build.backends import tree_digest
    from envbuilder.core.archives import Tar

Kind = Literal["file", "folder", "link", "hard link", "other"]
LISTED = 1000
"""Maximum number of differences that an outcome lists."""
_SHOWN = 60


class Member(Struct, frozen=True, kw_only=True):
    """One path of a layer, with everything that affects the layer's digest."""

    kind: Kind
    mode: str
    owner: str
    time: str
    content: str
    """sha256 of a file, target of a link, or number of a device."""
    extra: str = ""
    """Further PAX attributes, as in the tar."""


class Difference(Struct, frozen=True, kw_only=True):
    """A path, or a key of an image's configuration, that differs between the two."""

    path: str
    how: str


class Built(Struct, frozen=True, kw_only=True):
    """The last image of the same project that `build` made, which the two builds should equal."""

    ref: str
    digest: str
    changed: tuple[str, ...] = ()
    """Paths of the project's files that are not those in that image."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of two builds (`reproduce --json`)."""

    schema: int = 1
    status: Literal["equal", "different"]
    profile: str
    backend: str
    builder: str
    fingerprint: str
    made_by: dict[str, str]
    digests: tuple[str, str]
    compared: Literal["config", "tree"]
    """What `digests` are of: an image's configuration, which names its layers by their uncompressed
    bytes, or a prefix's tree of files."""
    manifest_digests: tuple[str, str] | UnsetType = UNSET
    """Of images, if known: the digests of their manifests, which registries show."""
    seconds: tuple[float, float]
    built: Built | None = None
    """None if there is no such image, or it does not contain the project's files."""
    differences: tuple[Difference, ...] = ()
    more: int = 0
    """Number of differences that are not listed."""
    diffoscope: str | None = None
    """diffoscope's output on the files that differ, if it is installed."""


def members(layer: Iterable[tuple[tarfile.TarInfo, Tar]]) -> dict[str, Member]:
    """Return every path of a layer, as yielded by `oci.members`; nothing is unpacked."""
    by_path = {}
    for entry, archive in layer:
        content = entry.linkname
        kind: Kind = "other"
        if entry.isreg():
            kind, content = "file", _hashed(archive, entry)
        elif entry.isdir():
            kind = "folder"
        elif entry.issym():
            kind = "link"
        elif entry.islnk():
            kind = "hard link"
        elif entry.isdev():
            content = f"{entry.devmajor}:{entry.devminor}"
        extra = {k: v for k, v in sorted(entry.pax_headers.items()) if k not in _STATED}
        by_path[entry.name] = Member(
            kind=kind,
            mode=f"{entry.mode:o}",
            owner=f"{entry.uid}:{entry.gid}",
            time=entry.pax_headers.get("mtime", str(entry.mtime)),
            content=content,
            extra=str(extra) if extra else "",
        )
    return by_path


_STATED = frozenset({"path", "linkpath", "size", "uid", "gid", "mtime"})
"""PAX records whose values `tarfile` puts into the entry itself."""


def _hashed(archive: Tar, entry: tarfile.TarInfo) -> str:
    hashed = hashlib.sha256()
    for piece in archive.pieces(entry):
        hashed.update(piece)
    return hashed.hexdigest()


def of_members(first: Mapping[str, Member], second: Mapping[str, Member]) -> Iterator[Difference]:
    """Yield the paths that differ between layers, and how."""
    for path in sorted(first.keys() | second.keys()):
        before, after = first.get(path), second.get(path)
        if before is None or after is None:
            yield Difference(
                path=path, how=f"only in the {'second' if before is None else 'first'}"
            )
        elif before != after:
            yield Difference(path=path, how=", ".join(_fields(before, after)))


def _fields(first: Member, second: Member) -> Iterator[str]:
    for name in Member.__struct_fields__:
        before, after = getattr(first, name), getattr(second, name)
        if before != after:
            hidden = name == "content" and first.kind == "file"
            yield name if hidden else f"{name} {_short(before)} and {_short(after)}"


def of_trees(differences: Iterable[tree_digest.Difference]) -> Iterator[Difference]:
    """Yield the paths that differ between two environments."""
    how = {"changed": "content", "added": "only in the second", "missing": "only in the first"}
    for difference in differences:
        yield Difference(path=difference.path, how=how[difference.how])


def of_configurations(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what differs between two images' configurations, except their lists of layers."""
    first_leaves, second_leaves = (dict(_leaves("", c)) for c in (first, second))
    for key in sorted(first_leaves.keys() | second_leaves.keys()):
        if key.startswith("rootfs.") or first_leaves.get(key) == second_leaves.get(key):
            continue
        before, after = first_leaves.get(key, "nothing"), second_leaves.get(key, "nothing")
        yield Difference(path=f"configuration: {key}", how=f"{_short(before)} and {_short(after)}")


def _leaves(where: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a JSON value as pairs of dotted key and encoded leaf."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    else:
        yield where, msgspec.json.encode(value).decode()
    for key, inner in pairs:
        yield from _leaves(f"{where}.{key}" if where else str(key), inner)


def _short(text: str) -> str:
    return printable(text, _SHOWN)
