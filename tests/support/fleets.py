"""A fleet for tests: nodes, results that they send, and a scheduler that plays a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.core.errors import ToolError
from envbuilder.fleet import folder as folders, judge
from envbuilder.fleet.model import Detected, Node, Promise
from envbuilder.fleet.planning import Plan
from envbuilder.fleet.slurm import JobState, RefusedError, Slurm, parse_jobs
from tests.support import reports

RUN = "20261123t091500z-4f1a2b"
STARTED = "20261123T091500Z"


def promise(node: str = "n1", profile: str | None = "cpu", why: str = "feature cpu") -> Promise:
    return Promise(node=node, profile=profile, why=why)


def node(name: str, **changes: Any) -> Node:
    return Node(**{"name": name, "state": "idle", "usable": True, **changes})


def report(**changes: Any) -> dict[str, Any]:
    """A whole report of the profile `cpu` on a quiet machine, changed by keys joined by `__`."""
    return reports.whole(**{"known__speed": "judged", **changes})


def result(
    node: str = "n1", job: str = "7", sent: dict[str, Any] | None = None, **changes: Any
) -> bytes:
    """What a node sends: by default, that it passed."""
    facts: dict[str, Any] = {
        "run": RUN,
        "job": job,
        "node": node,
        "host": node,
        "exit_code": 0,
        "message": "VERIFIED",
        "seconds": 60.0,
        "detected": Detected(profile="cpu", cpu="AMD EPYC"),
        "gpus": None,
        "report": report() if sent is None else sent,
    }
    return judge.encode(judge.Result(**{**facts, **changes}))


def failed(node: str, job: str, code: int | None, message: str) -> bytes:
    """What a node sends that has no report."""
    return result(node, job, exit_code=code, message=message, report=None)


def plan(*promises: Promise, **changes: Any) -> Plan:
    facts = {"run": RUN, "quick": False, "limit_seconds": 600}
    return Plan(**{**facts, "promises": promises, "left_out": (), **changes})


def job_state(job: str, name: str, word: str) -> JobState:
    """What squeue says of a job in this state."""
    return parse_jobs(f"{job}|{word}|/run/scripts/{name}.sbatch|Resources\n")[job]


@dataclass
class RecordedScheduler(Slurm):
    """A scheduler in a world where a tick is a second, and jobs do what was recorded of them.

    `script` says for each node, or for a single job, by the seconds after its submission, how the
    job is then, or what it writes. A node without an entry passes after five seconds.
    """

    folder: Path
    script: Mapping[str, Mapping[int, str | bytes]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    silent: Callable[[float], bool] = lambda now: False
    clock: float = 0.0
    submitted: dict[str, tuple[str, float]] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    calls: int = 0
    number: int = 100

    def now(self) -> float:
        return self.clock

    def wait(self, seconds: float) -> None:
        self.clock += seconds

    def nodes(self) -> tuple[Node, ...]:
        raise NotImplementedError

    def submit(self, script: Path) -> str:
        name = script.name.removesuffix(".sbatch")
        if name in self.refused:
            raise RefusedError(self.refused[name])
        self.number += 1
        self.submitted[str(self.number)] = (name, self.clock)
        return str(self.number)

    def jobs(self, run: str) -> dict[str, JobState]:
        assert run == RUN
        self.calls += 1
        if self.silent(self.clock):
            raise ToolError("squeue failed: no answer")
        states = (self._state(job, *which) for job, which in self.submitted.items())
        return {state.job: state for state in states if state is not None}

    def exit_code(self, job: str) -> str:
        return "127"

    def cancel(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs

    def _state(self, job: str, name: str, submitted: float) -> JobState | None:
        if job in self.cancelled:
            return job_state(job, name, "CANCELLED")
        usual = {0: "RUNNING", 5: b"", 6: "COMPLETED"}
        lines = self.script.get(job, self.script.get(name, usual))
        word = "PENDING"
        for second, does in lines.items():
            if self.clock - submitted < second:
                break
            if isinstance(does, bytes):
                path = folders.result_path(self.folder, name, job)
                if not path.exists():
                    path.write_bytes(does.replace(b"JOB", job.encode()) or result(name, job))
            else:
                word = does
        return None if word == "GONE" else job_state(job, name, word)
