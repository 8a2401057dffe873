"""Faults that the walks meet today, and that a later issue mends; the table only gets shorter."""

from __future__ import annotations

import re

from msgspec import Struct

from tests.seams.scene import Trouble


class Known(Struct, frozen=True):
    """A fault: its row, the invariant that meets it, and what its message has."""

    row: str
    invariant: str
    pattern: str


KNOWN: tuple[Known, ...] = (
    # What cannot be locked for a reason of the project's own is still told to lock.
    Known(
        "lock is said to help",
        "hint, circle",
        r"(?s)^envbuilder lock ends with [24](?!.*(?:not a lock|schema|damaged|one line of text))",
    ),
)


def known_row(trouble: Trouble) -> str:
    """Return the row of a fault that is known; empty if it is not."""
    for known in KNOWN:
        if known.invariant == trouble.invariant and re.search(known.pattern, trouble.message):
            return known.row
    return ""
