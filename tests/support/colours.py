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


BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "achromatopsia": ((0.2126, 0.7152, 0.0722),) * 3,
}
"""What is seen of linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1."""


def difference(one: Colour, other: Colour, blindness: str) -> float:
    """Return the distance of two colours in CIELAB (Delta E 1976) for somebody's eyes."""
    first, second = (_lab(_seen(colour, blindness)) for colour in (one, other))
    return float(sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5)


def _seen(colour: Colour, blindness: str) -> Colour:
    linear = _linear(colour)
    red, green, blue = (
        min(max(sum(m * c for m, c in zip(row, linear, strict=True)), 0.0), 1.0)
        for row in BLINDNESS[blindness]
    )
    return red, green, blue


def _lab(linear: Colour) -> Colour:
    red, green, blue = linear
    white = (0.95047, 1.0, 1.08883)
    xyz = (
        0.4124 * red + 0.3576 * green + 0.1805 * blue,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        0.0193 * red + 0.1192 * green + 0.9505 * blue,
    )
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (value / full for value, full in zip(xyz, white, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
