"""Open the results of two builds side by side: images from an engine, or native environments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from envbuilder.build.backends import integrity, tree_digest
from envbuilder.build.reproduce import differences
from envbuilder.containers.oci.members import members
from envbuilder.core import process
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from envbuilder.build.reproduce.differences import Difference, Member
    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core import types

FILES = 20
"""Maximum number of differing files that diffoscope compares."""
_BYTES = 16 << 20
"""Maximum size of such a file."""
_TOLD = 20_000
_SECONDS = 120.0


class Sides(Protocol):
    """Two results of the same build."""

    def differences(self) -> Iterator[Difference]:
        """Yield what differs between the two."""

    def copies(self, paths: Collection[str]) -> tuple[Files, Files]:
        """Return path and content of those of these files that are small, in each result."""


Files = Iterator[tuple[str, bytes]]


class Prefixes:
    """Two native environments."""

    def __init__(self, first: Path, second: Path) -> None:
        self._roots = first, second

    def differences(self) -> Iterator[Difference]:
        """Yield what differs, except for host-dependent files."""
        bound = integrity.OURS.union(*map(integrity.host_bound, self._roots))
        first, second = (tree_digest.read(root, bound) for root in self._roots)
        return differences.of_trees(tree_digest.differences(first, second))

    def copies(self, paths: Collection[str]) -> tuple[Files, Files]:
        """Return path and content of those of these files that are small, in each result."""
        first, second = self._roots
        return _read(first, paths), _read(second, paths)


def _read(root: Path, paths: Collection[str]) -> Files:
    for path in paths:
        place = root / path
        if place.is_file() and not place.is_symlink() and place.stat().st_size <= _BYTES:
            yield path, place.read_bytes()


class _Image:
    """An image in a layout: its configuration, and its layers by the digests of their tars."""

    def __init__(self, layout: Layout, platform: types.Platform) -> None:
        manifest = layout.manifest(platform)
        self.layout, self.config = layout, layout.read_config(manifest)
        root = self.config.get("rootfs")
        diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
        if not isinstance(diff_ids, list) or len(diff_ids) != len(manifest.layers):
            raise BuildError(f"{manifest.config.digest}: names other layers than its manifest")
        self.layers = dict(zip(map(str, diff_ids), manifest.layers, strict=True))

    def apart_from(self, other: _Image) -> Iterator[Path]:
        """Yield the layers that the other image lacks, lowest first."""
        for diff_id, layer in self.layers.items():
            if diff_id not in other.layers:
                yield self.layout.checked(layer)


class Images:
    """Two images; only layers that are not in both are read."""

    def __init__(self, first: Layout, second: Layout, platform: types.Platform) -> None:
        self._first, self._second = _Image(first, platform), _Image(second, platform)

    def differences(self) -> Iterator[Difference]:
        """Yield differing configuration keys, then paths whose content or metadata differs."""
        yield from differences.of_configurations(self._first.config, self._second.config)
        yield from differences.of_members(
            _listed(self._first.apart_from(self._second)),
            _listed(self._second.apart_from(self._first)),
        )

    def copies(self, paths: Collection[str]) -> tuple[Files, Files]:
        """Return path and content of those of these files that are small, in each result."""
        return (
            _taken(self._first.apart_from(self._second), paths),
            _taken(self._second.apart_from(self._first), paths),
        )


def _listed(layers: Iterable[Path]) -> dict[str, Member]:
    entries: dict[str, Member] = {}
    for layer in layers:
        entries.update(differences.members(members(layer)))
    return entries


def _taken(layers: Iterable[Path], paths: Collection[str]) -> Files:
    for layer in layers:
        for entry, archive in members(layer):
            if entry.name in paths and entry.isreg() and entry.size <= _BYTES:
                yield entry.name, archive.content(entry)


def diffoscope(sides: Sides, differing: Iterable[Difference], folder: Path) -> str | None:
    """Return diffoscope's output on the files whose content differs.

    None if diffoscope is not installed or there is no such file. The files are copied below
    `folder`, which is created.
    """
    paths = {d.path for d in differing if "content" in d.how.split(", ")}
    named = frozenset(islice((p for p in sorted(paths) if _stays_inside(p)), FILES))
    if not named or process.which("diffoscope") is None:
        return None
    roots = folder / "first", folder / "second"
    for root, files in zip(roots, sides.copies(named), strict=True):
        for path, data in files:
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    # Times and modes of the copies are not those of the originals.
    options = ("--no-progress", "--exclude-directory-metadata=recursive", "--text", "-")
    named_so = (root.name for root in roots)
    done = process.run(["diffoscope", *options, *named_so], cwd=folder, timeout=_SECONDS)
    if done.timed_out or done.returncode not in {0, 1}:
        return f"diffoscope failed: {done.last_words}"
    return done.stdout[:_TOLD]


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts
