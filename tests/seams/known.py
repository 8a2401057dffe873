"""Faults that the walks meet today, and that a later issue mends; the table only gets shorter."""

from __future__ import annotations

import re

from tests.seams.scene import Trouble

KNOWN: tuple[tuple[str, str, str], ...] = (
    # What cannot be locked for a reason of the project's own is still told to lock.
    (
        "lock is said to help",
        "hint, circle",
        r"(?s)^envbuilder lock( --upgrade)? ends with [24](?!.*(not a lock|schema|damage|of text))",
    ),
)
"""Row, the invariant that meets it, and what its message has."""


def known_row(trouble: Trouble) -> str:
    """Return the row of a fault that is known; empty if it is not."""
    for row, invariant, pattern in KNOWN:
        if invariant == trouble.invariant and re.search(pattern, trouble.message):
            return row
    return ""
