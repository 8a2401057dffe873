"""What a scheduler does for a run: list nodes, take jobs, say how they are, cancel them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from msgspec import Struct

from envbuilder.fleet.model import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.fleet.model import Node

Phase: TypeAlias = Literal["waiting", "running", "ending", "ended"]
"""Of a job: `ending` is one whose script has ended, or is being ended, and is not cleared away."""


class JobState(Struct, frozen=True, kw_only=True):
    """How a job is, according to its scheduler."""

    job: str
    phase: Phase
    word: str
    """The scheduler's word for it, such as NODE_FAIL."""
    outcome: Outcome = "broken"
    """What becomes of what it was submitted for, if it ended so and sent no result."""
    meaning: str = ""
    """What that word says of its end, in plain words; empty if it says that the job failed."""
    reason: str = ""
    """Why it waits, or ended."""
    subject: str = ""
    """What it was submitted for, as its script is called: a node, or a group of nodes."""

    @property
    def live(self) -> bool:
        """Return whether it may still send a result."""
        return self.phase in {"waiting", "running"}


class RefusedError(Exception):
    """The scheduler did not accept a job; `str` says why, in its own words."""


class Scheduler(Protocol):
    """A client of a scheduler. Each call is bounded in time, and raises `ToolError` if it fails."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, in their natural order."""
        ...

    def submit(self, script: Path) -> str:
        """Submit a job and return its id; raise `RefusedError` if it is not accepted."""
        ...

    def jobs(self, run: str) -> Mapping[str, JobState]:
        """Return all jobs of a run that the scheduler still knows, by id."""
        ...

    def exit_code(self, job: str) -> str:
        """Return what a job that has ended exited with; empty if that is not known."""
        ...

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs; those that have ended are not an error."""
        ...
