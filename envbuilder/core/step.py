"""Base class of the steps of a plan."""

from __future__ import annotations

from msgspec import Struct


class Action(Struct, frozen=True, kw_only=True, tag=True):
    """A step of a plan; `what` is shown while it runs."""

    what: str
