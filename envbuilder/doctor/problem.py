"""Data types of a diagnosis: a problem, its severity, and its fix."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["blocks", "limits", "slows"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""Worst first: blocks an accelerator or every build; degrades something; reduces performance."""


class Repair(Struct, frozen=True, kw_only=True):
    """Commands that fix a problem, are safe, and can be undone; all of them require root."""

    commands: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...]
    """The commands that undo the fix."""
    after: str = ""
    """When the fix takes effect, or how long it lasts; empty if immediately and for good."""


class Problem(Struct, frozen=True, kw_only=True):
    """One problem found on a host."""

    severity: Severity
    code: str
    """Stable identifier, for scripts."""
    text: str
    fix: str
    repair: Repair | None = None
