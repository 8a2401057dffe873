"""What a diagnosis consists of: a problem, how much it matters, and its fix."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["blocks", "limits", "slows"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""It keeps an accelerator or every build from working; something works less; it costs speed."""


class Repair(Struct, frozen=True, kw_only=True):
    """Commands that mend a problem, are safe, and can be taken back; all are root's business."""

    commands: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...]
    """The commands that take it back."""
    after: str = ""
    """What else it takes until it counts."""


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    severity: Severity
    code: str
    """Stable name, for scripts."""
    text: str
    fix: str
    repair: Repair | None = None
