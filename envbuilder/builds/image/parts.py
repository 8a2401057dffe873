"""Decide which files of which wheels make up a layer; pure.

Large wheels are split, so that an engine can unpack one layer while the next is made, and layers
are transferred from and to a registry in parallel.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.containers.oci.layout import Bytes
    from envbuilder.core import types

LARGE = 4 << 20
"""Minimum bytes of a wheel that gets layers of its own."""
CUT = 128 << 20
"""Maximum bytes of files that share a layer of a large wheel; a larger file gets its own layer."""
SPREAD = 32
"""A wheel of more than this many times `CUT` (4 GiB) is split by folder, into about as many layers:
an image has at most `MOST_LAYERS`."""


class Part(Struct, frozen=True, kw_only=True):
    """The content of one layer."""

    wheels: tuple[File, ...]
    files: tuple[str, ...] = ()
    """Some files of the only wheel; empty: all files of the wheels except `without`."""
    without: tuple[str, ...] = ()
    reason: str
    """Why the layer exists, in a few words."""


def parts(
    wheels: Sequence[File],
    sizes: Mapping[types.Sha256, Bytes],
    split: Callable[[File], Sequence[tuple[str, ...]]],
    room: int,
) -> list[Part]:
    """Return the layers for wheels, bottom first: those of each large wheel, then one for the rest.

    The largest wheels are lowest, because an engine unpacks a layer again if one below it changed.
    `split` returns what `cut` yields for the files of a large wheel. `room` is the maximum number
    of layers, not counting the last one.
    """
    ranked = sorted(wheels, key=lambda w: (-sizes[w.sha256], w.sha256))
    large = [w for w in ranked if sizes[w.sha256] >= LARGE][: max(room, 0)]
    remaining = max(room - len(large), 0)
    result = []
    for wheel in large:
        title = f"{wheel.name} {wheel.version}"
        groups = split(wheel)[:remaining]
        remaining -= len(groups)
        for files in groups:
            label = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
            result.append(Part(wheels=(wheel,), files=files, reason=f"{title}: {label}"))
        without = tuple(chain.from_iterable(groups))
        result.append(Part(wheels=(wheel,), without=without, reason=title))
    small = tuple(w for w in wheels if w not in large)
    if small:
        result.append(Part(wheels=small, reason=f"{len(small)} smaller packages"))
    return result


def packages(debs: Sequence[File]) -> str:
    """Return the words for the layer of these system packages."""
    return ", ".join(f"{deb.name} {deb.version}" for deb in debs)


def cut(files: Mapping[str, Bytes]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of a wheel's files that get layers of their own; the last files are in none.

    Full groups come first, in path order; then files too large to share a layer, smallest first.
    This gives an engine work early and leaves little at the end. Groups of a huge wheel keep
    folders together, so that those that its next version does not change keep their layers.
    """
    steps = -(-sum(files.values()) // (SPREAD * CUT))
    limit = CUT * max(steps, 1)
    single = sorted((n for n, size in files.items() if size > limit), key=lambda n: (files[n], n))
    shared = {n: files[n] for n in sorted(files.keys() - {*single})}
    group: list[str] = []
    total = 0
    for names in _folders(shared, limit) if steps > 1 else ((n,) for n in shared):
        size = sum(shared[n] for n in names)
        if total + size > limit:
            yield tuple(group)
            group = []
            total = 0
        group += names
        total += size
    yield from ((name,) for name in single)


def _folders(files: Mapping[str, Bytes], limit: Bytes) -> Iterator[list[str]]:
    """Yield sorted files in the same order: a folder's together if they have at most `limit`."""
    pending = [(0, [*files])]
    while pending:
        depth, names = pending.pop()
        if len(names) <= 1 or sum(files[n] for n in names) <= limit:
            yield names
            continue
        inside = groupby(names, partial(_folder, depth=depth))
        groups = [(depth + 1, list(group)) for _, group in inside]
        pending += reversed(groups)


def _folder(path: str, depth: int) -> list[str]:
    return path.split("/", depth + 1)[: depth + 1]
