"""Which files of which wheels make up a layer; pure.

Large wheels are cut: an engine unpacks one layer while the next is made, and a registry sends them
side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.containers.oci.descriptor import Bytes
    from envbuilder.core import types as words

LARGE = 4 << 20
"""Bytes of a wheel that gets layers of its own, at the least."""
CUT = 128 << 20
"""Bytes of files that share a layer of a large wheel, at the most; a larger one is alone."""


class Part(Struct, frozen=True, kw_only=True):
    """What one layer holds."""

    wheels: tuple[File, ...]
    files: tuple[str, ...] = ()
    """Some of the one wheel's files; none: all but `without`."""
    without: tuple[str, ...] = ()
    reason: str
    """Why the layer is there, in a few words."""


def parts(
    wheels: Sequence[File],
    sizes: Mapping[words.Sha256, Bytes],
    shares: Callable[[File], Sequence[tuple[str, ...]]],
    room: int,
) -> list[Part]:
    """The layers for wheels, from the bottom: those of each large wheel, then one for the others.

    The largest wheels are lowest: an engine unpacks a layer anew where what is below it changed.
    `shares` says of a large one what `cut` says of its files. `room` is how many layers there may
    be besides the last one.
    """
    ranked = sorted(wheels, key=lambda w: (-sizes[w.sha256], w.sha256))
    large = [w for w in ranked[: max(room, 0)] if sizes[w.sha256] >= LARGE]
    left = max(room - len(large), 0)
    found = []
    for wheel in large:
        why = f"{wheel.name} {wheel.version}"
        cuts = shares(wheel)[:left]
        left -= len(cuts)
        for files in cuts:
            what = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
            found.append(Part(wheels=(wheel,), files=files, reason=f"{why}: {what}"))
        without = tuple(name for files in cuts for name in files)
        found.append(Part(wheels=(wheel,), without=without, reason=why))
    small = tuple(w for w in wheels if w not in large)
    if small:
        found.append(Part(wheels=small, reason=f"{len(small)} smaller packages"))
    return found


def cut(files: Mapping[str, Bytes]) -> Iterator[tuple[str, ...]]:
    """Shares of a wheel's files that get layers of their own; the last files are in none.

    Full shares come first, in order of their paths; then files that are too large to share, the
    smallest first. So an engine has something to do early, and not much in the end.
    """
    alone = sorted((n for n, size in files.items() if size > CUT), key=lambda n: (files[n], n))
    share: list[str] = []
    total = 0
    for name in sorted(files.keys() - {*alone}):
        if total + files[name] > CUT:
            yield tuple(share)
            share, total = [], 0
        share.append(name)
        total += files[name]
    yield from ((name,) for name in alone)
