"""The data types of a diagnosis: a problem, its severity and its fix."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["blocks", "limits", "slows"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""The severities, worst first. `blocks` means that an accelerator cannot be used or that no build
is possible, `limits` that something works only in part, and `slows` that performance is reduced."""


class Problem(Struct, frozen=True, kw_only=True):
    """A problem found on a host."""

    severity: Severity
    code: str
    """A stable identifier for use in scripts."""
    text: str
    fix: str
