"""Read the versions that engines report."""

from __future__ import annotations

import re


def parsed(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version; zeros if it has none."""
    numbers = [int(n) for n in re.split(r"[-+]", text, maxsplit=1)[0].split(".")[:2] if n.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
