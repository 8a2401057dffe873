"""Parse untrusted text from the machine or a recorded tree: it may be anything."""

from __future__ import annotations

import re

from envbuilder.core.text import printable

_MAX = 2**53  # the largest that a JSON number holds exactly
_NUMBER = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}\Z", re.ASCII)


def clean(value: str | None) -> str | None:
    """Return a value on one line of at most 120 characters, to compare and to show.

    Firmware pads its texts: white space is reduced to single spaces. None if nothing is left.
    """
    return " ".join(printable(value or "", 400, instead=" ").split())[:120] or None


def integer(value: str | None, base: int = 10) -> int | None:
    """Parse a small non-negative integer, or return None. Base 16 may begin with 0x."""
    word = (value or "").strip()
    if not _NUMBER.match(word):
        return None
    try:
        number = int(word, base)
    except ValueError:
        return None
    return number if number <= _MAX else None


def lines(value: str | None) -> list[str]:
    """Return only complete lines: an unterminated last line may be cut off."""
    return (value or "").split("\n")[:-1]


def fields(value: str | None) -> dict[str, str]:
    """Parse `key : value` lines; the first line of a key counts."""
    values: dict[str, str] = {}
    for line in lines(value):
        key, separator, rest = line.partition(":")
        if separator:
            values.setdefault(key.strip(), rest.strip())
    return values


def cpu_list(value: str | None, most: int = 8192) -> frozenset[int] | None:
    """Parse a kernel CPU list such as "0-3,8"; return None if it is not one."""
    cpus: set[int] = set()
    for part in (value or "").strip().split(","):
        first, _, last = part.partition("-")
        low, high = integer(first), integer(last or first)
        if low is None or high is None or not low <= high < most:
            return None
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def cpu_mask(value: str | None, most: int = 8192) -> frozenset[int] | None:
    """Parse a kernel CPU mask such as "00000001,80000000"; return None if it is not one."""
    words = (value or "").strip().split(",")
    if len(words) > most // 32 or not all(re.fullmatch("[0-9a-f]{1,8}", word) for word in words):
        return None
    mask = int("".join(word.zfill(8) for word in words), 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def version(value: str | None) -> tuple[int, ...] | None:
    """Parse a dotted version into numbers, or return None."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", value or "", re.ASCII):
        return None
    return tuple(int(part) for part in (value or "").split("."))
