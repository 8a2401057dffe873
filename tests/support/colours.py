"""What of a style sheet's colours can be told apart, and by whom."""

from __future__ import annotations

import re

Colour = tuple[float, float, float]


def scheme(style: str, name: str) -> dict[str, Colour]:
    """Return the variables of a light or dark scheme: red, green and blue from 0 to 1."""
    rest = style if name == "light" else style.partition("(prefers-color-scheme: dark) {")[2]
    block = rest.partition(":root {")[2].partition("}")[0]
    pairs = re.findall(r"--([a-z-]+): #([0-9a-f]{6})", block)
    return {
        name: tuple(int(value[n : n + 2], 16) / 255 for n in (0, 2, 4))  # type: ignore[misc]
        for name, value in pairs
    }


def _linear(colour: Colour) -> Colour:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(colour: Colour) -> float:
        red, green, blue = _linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
