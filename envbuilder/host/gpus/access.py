"""Whether this process can use a GPU, why not, and the same for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from envbuilder.host.model import Obstacle, State


class Access(NamedTuple):
    """What `host.Gpu` says in `state`, `detail` and `obstacle`."""

    state: State
    detail: str = ""
    obstacle: Obstacle | None = None


USABLE = Access("usable")
