"""A recorded run on Kubernetes whose nodes train together: a group's name says what befell it."""

from __future__ import annotations

import json

from envbuilder.fleet.groups import Members
from envbuilder.fleet.kubernetes.stated import StatedGroup
from tests.support.kubernetes import DATA, RUN, Recorded

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


class RecordedGroups(Recorded):
    """A client that answers from the recorded run of groups."""

    folder = "together"

    def printed(self, pod: str) -> str:
        """What a pod printed."""
        return log_of(pod)
