"""A recorded run on Kubernetes (tests/data/kubernetes): a node's name says what befell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.core import resources
from envbuilder.core.errors import ToolError
from envbuilder.fleet.kubernetes import objects
from envbuilder.fleet.kubernetes.collect import Work
from envbuilder.fleet.kubernetes.jobs import SUBSET
from envbuilder.fleet.kubernetes.stated import Stated
from envbuilder.fleet.model import Promise
from envbuilder.payload.options import QUICK
from envbuilder.payload.training.dataset import load
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject

DATA = Path(__file__).resolve().parent.parent / "data" / "kubernetes"
RUN = "20261123t091500z-4f1a2b"
OUTCOMES = {
    # The machine was busy when the log was recorded.
    "right": "busy",
    "silent": "mixed-up",
    "mixed": "mixed-up",
    "forged": "failed",
    "elsewhere": "mixed-up",
    "failing": "failed",
    "wrong-device": "wrong",
    "bad-data": "broken",
    "oom": "killed",
    "sigkill": "killed",
    "evicted": "killed",
    "preempted": "killed",
    "shutdown": "killed",
    "hung": "timed-out",
    "slow-pull": "timed-out",
    "no-image": "broken",
    "no-start": "broken",
    "not-admitted": "refused",
    "full": "pending",
    "creating": "pending",
    "running": "pending",
    "unreachable": "lost",
    "unknown": "lost",
    "queued": "pending",
    "too-late": "pending",
    "no-pod": "lost",
    "no-quota": "lost",
    "vanished": "lost",
}
"""What is to become of each node. `vanished` has neither job nor pod."""


def job_name(node: str) -> str:
    return f"envbuilder-4f1a2b-{node}"


def pod_name(node: str) -> str:
    return f"{job_name(node)}-x7k2p"


def stated(node: str) -> Stated:
    """A node's job as it was rendered."""
    return Stated(
        run=RUN,
        job=job_name(node),
        promise=Promise(node=node, profile="cpu", why="kubernetes.nodes"),
        profile="cpu",
        image=f"registry.example/ml/envbuilder-cpu@sha256:{'5' * 64}",
        subset=True,
        namespace="ml",
    )


def work() -> Work:
    """What all nodes were to do."""
    return Work(
        run=RUN,
        subset=True,
        data=load(resources.mnist_subset_dir(), SUBSET),
        profiles={"cpu": profiles.load("cpu", (resources.profiles_dir(),))},
    )


def log_of(node: str) -> str:
    """What a node's pod printed: the recorded log, or a part or a variant of it."""
    text = (DATA / "verified.log").read_text()
    report = json.loads(text.splitlines()[-1])
    events = "".join(text.splitlines(keepends=True)[:-1])
    report["run_id"] = f"{RUN}/{node}/{pod_name(node)}"
    # Gates may move without a new recording; what was reached passes them.
    report["report"]["training"]["min_accuracy"] = QUICK[-1].accuracy
    match node:
        case "silent":
            return events
        case "hung":
            return f"{events}no more\n"
        case "bad-data":
            problem = "/data/train-images-idx3-ubyte: is missing"
            event = json.dumps({"event": "error", "message": problem})
            return f"payload: {problem}\n{event}\n"
        case "mixed":
            report["run_id"] = f"{RUN}/right/{pod_name('right')}"
        case "elsewhere":
            report["run_id"] = f"{RUN}/right/{pod_name('elsewhere')}"
        case "failing":
            report["report"] |= {"status": "failed", "reasons": ["gradients: 3.1 apart"]}
        case "wrong-device":
            report["report"] |= {"status": "failed", "reasons": ["device used: no GPU"]}
            report["report"]["device"] |= {"requested": "cuda", "used": "cpu"}
        case _:
            pass
    return f"{events}{json.dumps(report)}\n"


def forged(log: str, changes: dict[str, Any]) -> str:
    """A pod's log whose report has these values instead."""
    *others, last = log.splitlines()
    event = json.loads(last)
    event["report"] |= changes
    return "\n".join((*others, json.dumps(event)))


class Recorded:
    """A client that answers from a recorded run."""

    folder = "run"

    def __init__(self, *, without_logs: bool = False) -> None:
        self._without_logs = without_logs

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        assert run == RUN
        content = (DATA / self.folder / "jobs.json").read_bytes()
        return objects.parse(content, objects.JobList, "jobs.json").items

    def pods(self, run: str) -> tuple[PodObject, ...]:
        assert run == RUN
        content = (DATA / self.folder / "pods.json").read_bytes()
        return objects.parse(content, objects.PodList, "pods.json").items

    def log(self, pod: str) -> str:
        if self._without_logs:
            raise ToolError("kubectl logs: the server does not allow access to it")
        return self.printed(pod)

    def printed(self, pod: str) -> str:
        """What a pod printed."""
        return log_of(pod.removeprefix("envbuilder-4f1a2b-").removesuffix("-x7k2p"))
