"""Data types of a diagnosis: a problem, its severity, and its fix."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["blocks", "limits", "slows"]

SEVERITIES: tuple[Severity, ...] = ("blocks", "limits", "slows")
"""Worst first: blocks an accelerator or every build; degrades something; reduces performance."""


class Problem(Struct, frozen=True, kw_only=True):
    """One problem found on a host."""

    severity: Severity
    code: str
    """Stable identifier, for scripts."""
    text: str
    fix: str
