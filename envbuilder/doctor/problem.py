"""The data types of a diagnosis: a problem, its severity and its fix."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["blocks", "limits", "slows"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""The severities, worst first. `blocks`: an accelerator or every build cannot be used. `limits`:
something works only in part. `slows`: performance is reduced."""


class Problem(Struct, frozen=True, kw_only=True):
    """A problem found on a host."""

    severity: Severity
    code: str
    """A stable identifier for use in scripts."""
    text: str
    fix: str
