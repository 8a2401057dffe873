"""Reduce environment markers to what remains once extras and dependency groups are chosen."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 20_000
"""Maximum length of a marker; those of uv for many conflicting extras have thousands."""

_TOKEN = re.compile(r"\"[^\"]*\"|'[^']*'|[()]|[<>=!~]+|[A-Za-z_][A-Za-z0-9_.]*")


class Chosen(Struct, frozen=True):
    """The extras and dependency groups that are installed, with normalised names."""

    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


def remaining(marker: str, chosen: Chosen, where: str) -> str | None:
    """Return a marker without its conditions on extras and groups, which are decided here.

    Empty if nothing else remains; None if the marker cannot be true. Raises `InvalidError` if it is
    not valid.
    """
    from packaging.markers import InvalidMarker

    try:
        if len(marker) <= LONGEST:
            return _remaining(marker, chosen)
        problem = f"longer than {LONGEST} characters"
    except (InvalidMarker, RecursionError):
        problem = "not a valid marker"
    raise InvalidError(f"{where}: {problem}: {escaped(marker, 100)}", "See PEP 508 for their form.")


@lru_cache(maxsize=1024)  # locks repeat few markers many times
def _remaining(marker: str, chosen: Chosen) -> str | None:
    from packaging.markers import Marker

    if not marker:
        return ""
    # Normalised, hence tokens of a kind that need no checks.
    result = _Reader(str(Marker(marker)), chosen).alternatives()
    if isinstance(result, bool):
        return "" if result else None
    return str(Marker(result))


class _Reader:
    """A marker, read from left to right: `or` below `and` below comparisons."""

    def __init__(self, marker: str, chosen: Chosen) -> None:
        self._tokens = _TOKEN.findall(marker)
        self._chosen = chosen

    def alternatives(self) -> str | bool:
        return self._joined("or", self._conditions, decisive=True)

    def _conditions(self) -> str | bool:
        return self._joined("and", self._condition, decisive=False)

    def _joined(self, word: str, part: Callable[[], str | bool], *, decisive: bool) -> str | bool:
        """Return parts joined by a word; `decisive` is the value of a part that decides alone."""
        parts = [part()]
        while self._tokens and self._tokens[0] == word:
            self._tokens.pop(0)
            parts.append(part())
        if decisive in [p for p in parts if isinstance(p, bool)]:
            return decisive
        open_parts = [p for p in parts if isinstance(p, str)]
        if len(open_parts) < 2:
            return open_parts[0] if open_parts else not decisive
        return f"({f' {word} '.join(open_parts)})"

    def _condition(self) -> str | bool:
        left = self._tokens.pop(0)
        if left == "(":
            inner = self.alternatives()
            self._tokens.pop(0)
            return inner
        operator = self._tokens.pop(0)
        if operator == "not":
            operator = f"not {self._tokens.pop(0)}"
        right = self._tokens.pop(0)
        decision = self._decided(left, operator, right)
        return f"{left} {operator} {right}" if decision is None else decision

    def _decided(self, left: str, operator: str, right: str) -> bool | None:
        from packaging.utils import canonicalize_name

        if right == "extra":
            left, right = right, left
        if left == "extra" and operator in {"==", "!="}:
            is_in = canonicalize_name(right[1:-1]) in self._chosen.extras
            return is_in == (operator == "==")
        sets = {"extras": self._chosen.extras, "dependency_groups": self._chosen.groups}
        if right in sets and operator in {"in", "not in"}:
            return (canonicalize_name(left[1:-1]) in sets[right]) == (operator == "in")
        return None
