"""Careful reading of text that the machine or a recorded tree gave us: it may be anything."""

from __future__ import annotations

import re

_MAX = 2**53  # what JSON numbers hold exactly
_NUMBER = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}\Z", re.ASCII)


def clean(value: str | None) -> str | None:
    """One printable line of at most 120 characters; None for nothing."""
    printable = "".join(c if c.isprintable() else " " for c in (value or "")[:400])
    return " ".join(printable.split())[:120] or None


def integer(value: str | None, base: int = 10) -> int | None:
    """A small non-negative integer, or None. Base 16 may begin with 0x."""
    word = (value or "").strip()
    if not _NUMBER.match(word):
        return None
    try:
        number = int(word, base)
    except ValueError:
        return None
    return number if number <= _MAX else None


def lines(value: str | None) -> list[str]:
    """Whole lines only: a last line without its end may be cut off in the middle."""
    return (value or "").split("\n")[:-1]


def fields(value: str | None) -> dict[str, str]:
    """`key : value` lines; the first of a key counts."""
    found: dict[str, str] = {}
    for line in lines(value):
        key, separator, rest = line.partition(":")
        if separator:
            found.setdefault(key.strip(), rest.strip())
    return found


def cpu_list(value: str | None, most: int = 8192) -> frozenset[int] | None:
    """A kernel CPU list such as "0-3,8"; None where it is not one."""
    found: set[int] = set()
    for part in (value or "").strip().split(","):
        first, _, last = part.partition("-")
        low, high = integer(first), integer(last or first)
        if low is None or high is None or not low <= high < most:
            return None
        found.update(range(low, high + 1))
    return frozenset(found)


def version(value: str | None) -> tuple[int, ...] | None:
    """A dotted version as numbers, or None."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", value or "", re.ASCII):
        return None
    return tuple(int(part) for part in (value or "").split("."))
