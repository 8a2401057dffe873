"""What every step of a plan is."""

from __future__ import annotations

from msgspec import Struct


class Action(Struct, frozen=True, kw_only=True, tag=True):
    """One action; `what` is shown while it runs."""

    what: str
