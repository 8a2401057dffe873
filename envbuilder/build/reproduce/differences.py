"""Name what differs between two builds: configuration keys, members of layers, or files of a tree.

Only digests are compared; diffoscope, if it is installed, shows the inside of the files.
"""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from envbuilder.build.backends import integrity, tree_digest
from envbuilder.containers.oci.layer import members
from envbuilder.core import process
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core import types
    from envbuilder.core.archives import Tar

LISTED = 1000
"""Maximum number of differences that an outcome lists."""
FILES = 20
"""Maximum number of differing files that diffoscope compares."""
_BYTES = 16 << 20
"""Maximum size of such a file."""
_SHOWN = 20_000
"""Maximum number of characters of diffoscope's output."""
_SECONDS = 120.0
_ABSENT = "nothing"


class Member(Struct, frozen=True):
    """Digests of one path: of its content, and of everything else that affects the build's."""

    content: str
    metadata: str = ""


Key = tuple[int, str]
"""Number of the layer from the lowest, 0 without layers; path."""


class Difference(Struct, frozen=True, kw_only=True):
    """A path, or a key of an image's configuration, that differs between two builds."""

    path: str
    layer: int = 0
    """Number of the image's layer that holds it, counted from the lowest; 0 without layers."""
    how: str
    """`content`, `metadata`, both, or the only build that has it."""
    digests: tuple[str, str]
    """In the first and the second build; `nothing` if absent."""


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


class Image:
    """An image in a layout; only layers that the other build's image lacks are read."""

    def __init__(self, layout: Layout, platform: types.Platform) -> None:
        manifest = layout.manifest(platform)
        self._layout, self._config = layout, layout.read_config(manifest)
        root = self._config.get("rootfs")
        diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
        if not isinstance(diff_ids, list) or len(diff_ids) != len(manifest.layers):
            raise BuildError(f"{manifest.config.digest}: names other layers than its manifest")
        self.layers = dict(enumerate(zip(map(str, diff_ids), manifest.layers, strict=True), 1))

    def leave_out(self, shared: Collection[str]) -> None:
        """Leave out the layers with these diff ids."""
        self.layers = {n: layer for n, layer in self.layers.items() if layer[0] not in shared}

    def members(self) -> dict[Key, Member]:
        """Return digests of the configuration's keys, of the layers, and of their members."""
        digests: dict[Key, Member] = {
            (0, f"configuration: {key}"): Member(
                _digest(msgspec.json.encode(value, order="sorted"))
            )
            for key, value in self._config.items()
            if key != "rootfs"
        }
        for number, (diff_id, descriptor) in self.layers.items():
            digests[number, ""] = Member(diff_id)
            for entry, archive in members(self._layout.checked(descriptor)):
                digests[number, entry.name] = member(entry, archive)
        return digests

    def copies(self, paths: Collection[Key]) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of those of these files that are small, and the configuration."""
        if any(layer == 0 for layer, _ in paths):
            yield "configuration.json", msgspec.json.format(_as_json(self._config))
        for number, (_, descriptor) in self.layers.items():
            for entry, archive in members(self._layout.checked(descriptor)):
                if (number, entry.name) in paths and entry.isreg() and entry.size <= _BYTES:
                    yield entry.name, archive.content(entry)


def member(entry: tarfile.TarInfo, archive: Tar) -> Member:
    """Return the digests of a layer's member; nothing is unpacked."""
    link = repr((entry.linkname, entry.devmajor, entry.devminor)).encode()
    hashed = hashlib.sha256()
    for piece in archive.pieces(entry) if entry.isreg() else [link]:
        hashed.update(piece)
    fields = (entry.type, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime)
    about = repr((fields, sorted(entry.pax_headers.items()))).encode()
    return Member(f"sha256:{hashed.hexdigest()}", _digest(about))


class Prefix:
    """A native environment."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def members(self) -> dict[Key, Member]:
        """Return digests of all files, except for host-dependent ones."""
        bound = integrity.OURS | integrity.host_bound(self._root) - {integrity.PLACED}
        return {
            (0, entry.path): Member(
                f"sha256:{entry.content}"
                if entry.kind in {"file", "executable"}
                else _digest(entry.content.encode()),
                _digest(entry.kind.encode()),
            )
            for entry in tree_digest.read(self._root, bound)
        }

    def copies(self, paths: Collection[Key]) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of those of these files that are small."""
        for _, path in paths:
            place = self._root / path
            if place.is_file() and not place.is_symlink() and place.stat().st_size <= _BYTES:
                yield path, place.read_bytes()


Side = Image | Prefix


def between(first: Mapping[Key, Member], second: Mapping[Key, Member]) -> Iterator[Difference]:
    """Yield what differs, by layer and path.

    A layer is named by itself only if all its members are equal, and its tar is not.
    """
    keys = first.keys() | second.keys()
    differing = {key for key in keys if first.get(key) != second.get(key)}
    layers = {layer for layer, path in differing if path}
    for layer, path in sorted(key for key in differing if key[1] or key[0] not in layers):
        before, after = first.get((layer, path)), second.get((layer, path))
        if before is None or after is None:
            how = f"only in the {'second' if before is None else 'first'}"
            digests = (before.content if before else _ABSENT, after.content if after else _ABSENT)
        else:
            fields = [f for f in ("content", "metadata") if getattr(before, f) != getattr(after, f)]
            how = ", ".join(fields) if path else "members are equal, their order or padding is not"
            digests = (getattr(before, fields[0]), getattr(after, fields[0]))
        yield Difference(path=path, layer=layer, how=how, digests=digests)


def listed(
    first: Side, second: Side, folder: Path
) -> tuple[tuple[Difference, ...], int, str | None]:
    """Return the differences to list, the number of further ones, and diffoscope's output.

    `folder` is created for the files that diffoscope reads.
    """
    if isinstance(first, Image) and isinstance(second, Image):
        ids = [{diff_id for diff_id, _ in side.layers.values()} for side in (first, second)]
        for side in (first, second):
            side.leave_out(ids[0] & ids[1])
    every = between(first.members(), second.members())
    shown = tuple(islice(every, LISTED))
    return shown, sum(1 for _ in every), diffoscope((first, second), shown, folder)


def diffoscope(
    sides: tuple[Side, Side], differences: Collection[Difference], folder: Path
) -> str | None:
    """Return diffoscope's output on the files whose content differs.

    None if diffoscope is not installed or there is no such file.
    """
    named = [d for d in differences if d.how.startswith("content") and _stays_inside(d.path)]
    paths = frozenset((d.layer, d.path) for d in named[:FILES])
    if not paths or process.which("diffoscope") is None:
        return None
    for name, side in zip(("first", "second"), sides, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path, data in side.copies(paths):
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    # Times and modes of the copies are not those of the originals.
    options = ("--no-progress", "--exclude-directory-metadata=recursive", "--text", "-")
    done = process.run(["diffoscope", *options, "first", "second"], cwd=folder, timeout=_SECONDS)
    if done.timed_out or done.returncode not in {0, 1}:
        return f"diffoscope failed: {done.last_words}"
    return done.stdout[:_SHOWN]


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts


def _as_json(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
