"""The ways in which a node, or nodes that train together, change between two runs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from envbuilder.fleet.model import PROVEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.fleet.model import Outcome

Kind = Literal["worse", "device", "slower", "gone", "changed", "new", "better", "faster"]
"""How it changed, what matters most first. `worse` and `better`: its outcome, in the order proven,
slow, anything else; `changed`: another outcome of the same rank, or for a group other members.
`device`: another device did the work. `slower` and `faster`: its speed, by more than
`MAX_SLOWDOWN`.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
LABELS: dict[Kind, str] = {**{kind: kind for kind in KINDS}, "device": "on another device"}
REGRESSIONS: frozenset[Kind] = frozenset({"worse", "device", "slower"})


def of_outcome(before: Outcome, now: Outcome, why: str) -> tuple[Kind, str] | None:
    """Return how an outcome changed, and a description; `why` is the reason for the present one.

    None if it did not change, or a node was merely busy.
    """
    rank, earlier_rank = _rank(now), _rank(before)
    if before == now or rank == earlier_rank == 0:
        return None
    kind: Kind = "worse" if rank > earlier_rank else "better" if rank < earlier_rank else "changed"
    reason = f": {why}" if why and kind != "better" else ""
    return kind, f"was {before}, is {now}{reason}"


def numbers(kinds: Iterable[Kind]) -> str:
    """Return how many changes of each kind there are, such as `2 worse, 1 new`; empty for none."""
    listed = list(kinds)
    counts = {kind: listed.count(kind) for kind in KINDS}
    return ", ".join(f"{number} {LABELS[kind]}" for kind, number in counts.items() if number)


def _rank(outcome: Outcome) -> int:
    return 0 if outcome in PROVEN else 1 if outcome == "slow" else 2
