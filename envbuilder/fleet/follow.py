"""Decide what becomes of a job from what its scheduler says of it, and for how long. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.text import duration
from envbuilder.fleet.model import Outcome

if TYPE_CHECKING:
    from envbuilder.fleet.scheduler import JobState

SETTLE_SECONDS = 60.0
"""How long a result may take to appear after a job's end: NFS shows new files after up to 60 s."""
KILLED_SETTLE_SECONDS = 10.0
"""The same for a job that was killed, which mostly has none."""


class Limits(Struct, frozen=True, kw_only=True):
    """How long to wait, in seconds."""

    start: float
    """For a job to start."""
    run: float
    """For a job to end after its start, if the scheduler does not end it."""
    settle: float = SETTLE_SECONDS
    killed_settle: float = KILLED_SETTLE_SECONDS


class Track(Struct, frozen=True, kw_only=True):
    """A job that is followed, and since when it is as it is (seconds of one clock)."""

    job: str
    submitted: float
    running: float | None = None
    ended: float | None = None


class End(Struct, frozen=True, kw_only=True):
    """What became of a job that sent no result."""

    outcome: Outcome
    detail: str
    cancel: bool = False
    """Whether the job is still there, and is to be cancelled."""


def step(track: Track, state: JobState | None, now: float, limits: Limits) -> Track | End:
    """Return how a job without a result goes on: followed further, or given up.

    `state` is None if the scheduler does not know the job (any more).
    """
    if state is not None and state.phase == "waiting":
        track = replace(track, ended=None)
        if now - track.submitted <= limits.start:
            return track
        why = f": {state.reason}" if state.reason else ""
        detail = f"not started within {duration(limits.start)}{why}"
        return End(outcome="pending", detail=detail, cancel=True)
    if state is not None and state.phase in {"running", "ending"}:
        running = now if track.running is None else track.running
        if now - running <= limits.run:
            return replace(track, running=running, ended=None)
        detail = f"still {state.word} after {duration(limits.run)}"
        return End(outcome="timed-out", detail=detail, cancel=True)
    ended = now if track.ended is None else track.ended
    killed = state is not None and state.outcome in {"killed", "timed-out"}
    if now - ended < (limits.killed_settle if killed else limits.settle):
        return replace(track, ended=ended)
    return _without_result(state)


def _without_result(state: JobState | None) -> End:
    if state is None:
        return End(
            outcome="lost", detail="the scheduler no longer knows the job, which reported nothing"
        )
    detail = state.meaning or f"the job ended before it reported ({state.word})"
    if state.outcome == "timed-out":
        detail += f" ({state.word})"
    elif state.outcome == "killed" and state.reason:
        detail += f" ({state.reason})"
    return End(outcome=state.outcome, detail=detail)
