"""How outcomes look: a letter and one of four colours, and what each of them means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.fleet.model import LEFT_OUT, OUTCOMES, PROVEN, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.fleet.model import Entry, Group

Tone = Literal["bad", "caution", "good", "left"]
TONES: tuple[Tone, ...] = ("bad", "caution", "good", "left")
"""CSS classes, the most urgent first."""
_CAUTIONS: frozenset[Outcome] = frozenset({"slow", "unproven", "pending", "interrupted"})
_MEANINGS: dict[Outcome, tuple[str, str]] = {
    "verified": ("✓", "training on what was promised is proven"),
    "busy": ("~", "proven, too; the node did other work, so its speed was not judged"),
    "slow": ("S", "proven, but much slower than its equals"),
    "unproven": ("N", "trained on what was promised; nothing outside repeated a step"),
    "wrong": ("W", "the node has another accelerator than promised"),
    "failed": ("F", "the verification failed"),
    "broken": ("B", "the environment could not be built or started"),
    "killed": ("K", "the job was ended from outside"),
    "timed-out": ("T", "it took longer than allowed"),
    "lost": ("L", "the job ended, or vanished, without a result"),
    "mixed-up": ("M", "its result is another job's, or contradicts itself"),
    "refused": ("R", "the scheduler did not accept the job"),
    "pending": ("P", "the job did not start in time"),
    "interrupted": ("I", "envbuilder was stopped first"),
    "drained": ("D", "taken out by administrators, or down; no job was submitted"),
    "unmapped": ("U", "nothing says which profile it is for; no job was submitted"),
}


class Mark(Struct, frozen=True, kw_only=True):
    """How an outcome is shown; `count` is how many nodes have it."""

    outcome: Outcome
    letter: str
    meaning: str
    tone: Tone
    count: int


def tone(outcome: Outcome) -> Tone:
    """Return the colour of an outcome."""
    if outcome in PROVEN:
        return "good"
    if outcome in LEFT_OUT:
        return "left"
    return "caution" if outcome in _CAUTIONS else "bad"


def urgency(entry: Entry) -> int:
    """Return a sort key by which nodes that need attention come first."""
    return TONES.index(tone(entry.outcome))


def legend(entries: Iterable[Entry | Group]) -> dict[Outcome, Mark]:
    """Return the marks of the outcomes that some nodes or groups have, the best first."""
    outcomes = [entry.outcome for entry in entries]
    return {
        outcome: Mark(
            outcome=outcome,
            letter=_MEANINGS[outcome][0],
            meaning=_MEANINGS[outcome][1],
            tone=tone(outcome),
            count=outcomes.count(outcome),
        )
        for outcome in OUTCOMES
        if outcome in outcomes
    }
