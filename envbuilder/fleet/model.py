"""The data types of a fleet: its nodes, what each must prove, and the verification results."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from msgspec import Meta, Struct

from envbuilder.core import types

if TYPE_CHECKING:
    from envbuilder.verify.view import Tone

LONGEST_REASON = 300
"""Maximum number of characters of untrusted text from a node, a scheduler or an edited summary."""

NodeName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z",
        description="a node's name: letters, digits, dots, hyphens and underscores",
    ),
]
JobId = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z", description="the id of a job")
]
RunId = Annotated[
    str,
    Meta(pattern=r"^[0-9]{8}t[0-9]{6}z-[0-9a-f]{6}\Z", description="the id of a run of a fleet"),
]

Outcome = Literal[
    "verified",
    "busy",
    "slow",
    "unproven",
    "wrong",
    "failed",
    "broken",
    "killed",
    "timed-out",
    "lost",
    "mixed-up",
    "refused",
    "pending",
    "interrupted",
    "drained",
    "unmapped",
]
"""The outcome of verifying a node, from best to worst. `TONES` explains each outcome."""

TONES: dict[Outcome, Tone] = {
    "verified": "good",  # training on what was promised is proven
    "busy": "good",  # proven; the node was busy, so its speed was not judged
    "slow": "caution",  # proven, but much slower than its equals
    "unproven": "caution",  # trained on the promised device; no step was repeated outside
    "wrong": "bad",  # the node has another accelerator than promised
    "failed": "bad",  # the verification failed
    "broken": "bad",  # the environment could not be built or started
    "killed": "bad",  # the job was ended from outside
    "timed-out": "bad",  # it took longer than allowed
    "lost": "bad",  # the job ended, or vanished, without a result
    "mixed-up": "bad",  # its result is another job's, or contradicts itself
    "refused": "bad",  # the scheduler did not accept the job
    "pending": "caution",  # the job did not start in time
    "interrupted": "caution",  # envbuilder was stopped first
    "drained": "left",  # taken out by administrators, or down; no job was submitted
    "unmapped": "left",  # no rule says which profile it is for; no job was submitted
}
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PROVEN = frozenset(outcome for outcome in OUTCOMES if TONES[outcome] == "good")
LEFT_OUT = frozenset(outcome for outcome in OUTCOMES if TONES[outcome] == "left")
"""Outcomes of nodes for which no job was submitted. These outcomes do not count as failures."""


class Resource(Struct, frozen=True, kw_only=True):
    """A generic resource (Slurm's term) of a node, such as 8 GPUs of type h100."""

    name: str
    type: str = ""
    count: int = 1


class Node(Struct, frozen=True, kw_only=True):
    """A node of the cluster, as described by its scheduler."""

    name: NodeName
    state: str
    """The node's state in the scheduler's own words, without the marks that the scheduler appends.
    """
    usable: bool
    """Whether jobs can start on the node, either now or later."""
    features: tuple[str, ...] = ()
    resources: tuple[Resource, ...] = ()
    reason: str = ""
    """The reason, entered by an administrator, why the node is not usable."""


class Promise(Struct, frozen=True, kw_only=True):
    """What a node must prove in its verification."""

    node: NodeName
    profile: types.Name | None = None
    """The promised profile, or None if the node chooses a profile based on what `detect` finds."""
    why: str = ""
    """The source of the promise, such as `feature h100`."""
    gpus: Annotated[int, Meta(ge=0)] = 0
    """The number of GPUs on the node that the scheduler offers to jobs."""
    covered: Annotated[int, Meta(ge=0)] | None = None
    """The number of these GPUs that the verification covers, or None if it covers all of the
    GPUs."""

    @property
    def gpus_to_prove(self) -> int:
        """The number of GPUs that the training must use, or 0 if it is unknown or irrelevant."""
        if self.covered is None:
            return self.gpus
        return self.covered


class Detected(Struct, frozen=True, kw_only=True):
    """The hardware that was detected on a node before the verification ran."""

    profile: str | None = None
    """The profile that fits the node best, or None if no profile fits."""
    accelerators: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """The names of the node's accelerators."""
    cpu: str = ""


class Entry(Struct, frozen=True, kw_only=True):
    """A row of the table: a node, its promise and its result.

    Times are in seconds, and `accuracy` is a fraction. All strings are safe to print, because
    untrusted text was shortened and stripped of control characters when it was read.
    """

    node: NodeName
    outcome: Outcome
    promised: str = ""
    """The promised profile. Empty if the node was to choose a profile."""
    why: str = ""
    """The source of the promise."""
    device: str = ""
    """The device that did the work. If there is no report, this is the device that was detected."""
    detail: str = ""
    """The reason for the outcome. Empty if the outcome needs no explanation."""
    job: JobId | None = None
    profile: str = ""
    """The profile that was verified."""
    backend: str = ""
    epoch_seconds: float | None = None
    share: float | None = None
    """`epoch_seconds` divided by the median of similar nodes, or None if there are fewer than three
    similar nodes."""
    accuracy: float | None = None
    framework: str = ""
    """The name and the version of the framework."""
    gpus: Annotated[int, Meta(ge=0)] | None = None
    """The number of GPUs that passed the verification, or None if there is no passing report."""
    gpus_given: Annotated[int, Meta(ge=0)] | None = None
    """The number of GPUs on the node that the scheduler offers to jobs, or None if the scheduler
    does not report it."""

    @property
    def partial(self) -> bool:
        """Whether only some of the node's GPUs were verified."""
        return self.outcome in PROVEN and 0 < (self.gpus or 0) < (self.gpus_given or 0)


class Summary(Struct, frozen=True, kw_only=True):
    """The result of a run, with one entry per node, sorted by node name in natural order."""

    run: RunId
    started: str
    """The time in UTC at which the run started, for example 20261123T091500Z."""
    finished: str
    quick: bool
    entries: tuple[Entry, ...]
    schema: Literal[1] = 1

    @property
    def passed(self) -> bool:
        """Whether at least one node was examined, and all examined nodes passed."""
        examined = {e.outcome for e in self.entries if e.outcome not in LEFT_OUT}
        return bool(examined) and examined <= PROVEN


def new_run(stamp: str) -> str:
    """Return a new ID for a run that starts at the time `stamp`, as returned by `stamp_now`."""
    return f"{stamp.lower()}-{secrets.token_hex(3)}"


def started(run: str) -> str:
    """Return the time at which a run started, which is taken from the run's ID."""
    return run.partition("-")[0].upper()


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which "node2" comes before "node10"."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), part) if part.isdigit() else (0, part) for part in parts]
