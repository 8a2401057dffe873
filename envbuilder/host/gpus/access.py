"""The access of a process to a GPU: its state and, if unusable, why, in words and as a code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from envbuilder.host.model import Obstacle, State


class Access(NamedTuple):
    """The values of `state`, `detail` and `obstacle` in `host.Gpu`."""

    state: State
    detail: str = ""
    obstacle: Obstacle | None = None


USABLE = Access("usable")
