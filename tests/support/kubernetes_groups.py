"""A recorded run on Kubernetes whose nodes train together: a group's name says what befell it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from envbuilder.core.errors import ToolError
from envbuilder.fleet.groups import Members
from envbuilder.fleet.kubernetes import objects
from envbuilder.fleet.kubernetes.stated import StatedGroup
from tests.support.kubernetes import DATA, RUN

if TYPE_CHECKING:
    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject

OUTCOMES = {
    "in-step": "verified",
    "apart": "failed",
    "broken": "broken",
    "mute": "mixed-up",
    "mixed": "mixed-up",
    "contrary": "mixed-up",
    "elsewhere": "mixed-up",
    "hung": "timed-out",
    "oom": "killed",
    "no-image": "broken",
    "running": "pending",
    "vanished": "lost",
}
"""What is to become of each group. `vanished` has neither job nor pods."""
_PREFIX = "envbuilder-4f1a2b-"


def stated(group: str) -> StatedGroup:
    """The Job of a group as it was rendered."""
    return StatedGroup(
        run=RUN,
        job=f"{_PREFIX}{group}",
        members=Members(nodes=(f"{group}-1", f"{group}-2"), profile="cpu"),
        subset=True,
        namespace="ml",
    )


def log_of(pod: str) -> str:
    """What the first pod of a group printed: the recorded log, or a part or a variant of it."""
    group = pod.removeprefix(_PREFIX).rsplit("-", 2)[0]
    lines = (DATA / "together.log").read_text().splitlines(keepends=True)
    event = json.loads(lines.pop())
    report = event["report"]
    event["run_id"] = f"{RUN}/{group}-1/{pod}"
    for number, device in enumerate(report["devices"], 1):
        device["node"] = f"{group}-{number}"
    match group:
        case "broken" | "mute" | "hung":
            return "".join(lines)
        case "mixed":
            event["run_id"] = f"{RUN}/in-step-1/{_PREFIX}in-step-0-x7k2p"
        case "elsewhere":
            report["devices"][1]["node"] = "in-step-2"
        case "apart":
            report |= {"status": "failed", "reasons": ["together: weights: 3.1 apart"]}
        case _:
            pass
    return f"{''.join(lines)}{json.dumps(event)}\n"


class RecordedGroups:
    """A client that answers from the recorded run."""

    def __init__(self, *, without_logs: bool = False) -> None:
        self._without_logs = without_logs

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        assert run == RUN
        content = (DATA / "together" / "jobs.json").read_bytes()
        return objects.parse(content, objects.JobList, "jobs.json").items

    def pods(self, run: str) -> tuple[PodObject, ...]:
        assert run == RUN
        content = (DATA / "together" / "pods.json").read_bytes()
        return objects.parse(content, objects.PodList, "pods.json").items

    def log(self, pod: str) -> str:
        if self._without_logs:
            raise ToolError("kubectl logs: the server does not allow access to it")
        return log_of(pod)
