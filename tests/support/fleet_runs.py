"""Runs of a fleet for tests and benchmarks: entries, summaries, and what many nodes send."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envbuilder.fleet import judge
from envbuilder.fleet.model import Detected, Entry, Group, Promise, Summary

RUN = "20261123t091500z-0123ab"
EARLIER = "20261116t091500z-4567cd"
GPU = "NVIDIA H100 80GB HBM3"


def entry(node: str = "gpu-01", **changes: Any) -> Entry:
    """A node that was verified."""
    values: dict[str, Any] = {
        "node": node,
        "outcome": "verified",
        "promised": "cuda",
        "why": "feature h100",
        "device": f"{GPU} (cuda)",
        "detail": "accuracy 98.40 %",
        "job": "4711",
        "profile": "cuda",
        "backend": "venv",
        "accelerator": "cuda",
        "epoch_seconds": 1.25,
        "share": 1.0,
        "images_per_second": 48000.0,
        "accuracy": 0.984,
        "framework": "torch 2.14.1+cu130",
        "gpus": 1,
        "gpus_given": 1,
    }
    return Entry(**{**values, **changes})


def unreported(node: str, outcome: str, detail: str = "", **changes: Any) -> Entry:
    """A node that sent no report."""
    values: dict[str, Any] = {"promised": "cuda", "why": "feature h100", "job": "4711", **changes}
    return Entry(node=node, outcome=outcome, detail=detail, **values)  # type: ignore[arg-type]


def group(*nodes: str, **changes: Any) -> Group:
    """Nodes that trained in step."""
    values: dict[str, Any] = {
        "name": f"ddp-cuda-{'-'.join(nodes)}",
        "nodes": nodes,
        "outcome": "verified",
        "profile": "cuda",
        "device": f"{GPU} (cuda)",
        "detail": f"{len(nodes)} ranks in step",
        "job": "4800",
        "ranks": len(nodes),
        "images_per_second": 90000.0,
        "efficiency": 0.9,
    }
    return Group(**{**values, **changes})


def summary(*entries: Entry, **changes: Any) -> Summary:
    values: dict[str, Any] = {
        "run": RUN,
        "started": "20261123T091500Z",
        "finished": "20261123T094205Z",
        "quick": False,
        "entries": entries,
    }
    return Summary(**{**values, **changes})


def earlier(*entries: Entry, **changes: Any) -> Summary:
    started = "20261116T091500Z"
    finished = "20261116T094205Z"
    return summary(
        *entries, **{"run": EARLIER, "started": started, "finished": finished, **changes}
    )


KINDS = (("zendnn", "AMD EPYC 9755", 9.6), ("cuda", GPU, 1.25), ("cuda", "NVIDIA A100-SXM4", 2.1))
"""Profile, device and usual epoch of the nodes of a large fleet, in turn."""

WITHOUT_REPORT = (
    ("broken", "exit code 1: the environment could not be built: no space left on device"),
    ("killed", "the job was ended by signal 9"),
    ("timed-out", "stopped after 3,600 s"),
    ("lost", "the job ended without a result"),
    ("refused", "sbatch: error: Invalid feature specification"),
    ("pending", "not started after 1,800 s"),
    ("drained", "by administrators: DIMM B2 replaced on Thursday"),
    ("unmapped", "no profile is promised of a node with the features epyc, infiniband"),
)


class Fleet:
    """`count` nodes of three kinds, whose reports are made of a real one; 7 % have a fault."""

    def __init__(self, report: Path, count: int, seed: int = 1) -> None:
        self._report = json.loads(report.read_text())
        self._random = random.Random(seed)
        self.results: list[tuple[Promise, str, bytes]] = []
        self.silent: list[judge.Judged] = []
        for number in range(count):
            self._add(number)

    def _add(self, number: int) -> None:
        # Racks of the same kind.
        profile, device, usual = KINDS[number // 48 % len(KINDS)]
        node = f"rack{number // 48 + 1:02}-node{number % 48 + 1:02}"
        job = str(4000 + number)
        promise = Promise(node=node, profile=profile, why=f"feature {profile}")
        kind = self._random.random()
        if kind < 0.02:
            outcome, detail = self._random.choice(WITHOUT_REPORT)
            self.silent.append(judge.unexamined(promise, outcome, detail, job))  # type: ignore[arg-type]
            return
        seconds = usual * self._random.lognormvariate(0, 0.03)
        report = {**self._report, "profile": profile, "speed": "judged"}
        if kind < 0.03:
            seconds *= self._random.uniform(1.35, 2.6)
        elif kind < 0.055:
            seconds *= self._random.uniform(1.0, 3.0)
            reason = "other tasks waited 62 % of the time for a CPU"
            report |= {"speed": "not_judged", "speed_reason": reason}
        elif kind < 0.065:
            detail = "relative error 0.31 of a float32 product, at most 0.0001 is usual"
            check = {"name": "arithmetic", "status": "failed", "seconds": 1.0, "detail": detail}
            reasons = [f"arithmetic: {detail}"]
            report |= {"status": "failed", "checks": [check], "reasons": reasons}
        requested = "cpu" if profile == "zendnn" else "cuda"
        used = {"requested": requested, "used": requested, "name": device}
        if 0.065 <= kind < 0.07 and requested == "cuda":
            reasons = ["device: cuda was requested, but cpu did the work"]
            used |= {"used": "cpu", "name": "AMD EPYC 9755"}
            report |= {"status": "failed", "reasons": reasons}
        report["device"] = used
        epochs = self._report["training"]["epochs"]
        pace = {"seconds": seconds, "samples_per_second": 60000 / seconds}
        report["training"] = {**self._report["training"], "epochs": [{**e, **pace} for e in epochs]}
        result = judge.Result(
            schema=1,
            run=RUN,
            job=job,
            node=node,
            host=node,
            exit_code=0 if report["status"] == "passed" else 5,
            message="",
            seconds=90.0,
            detected=Detected(profile=profile, accelerators=(device,)),
            gpus=None,
            report=report,
        )
        self.results.append((promise, job, judge.encode(result)))

    def judged(self) -> list[judge.Judged]:
        """Read and examine what the nodes sent."""
        return [judge.examined(p, RUN, job, content) for p, job, content in self.results]

    def summary(self, **changes: Any) -> Summary:
        return merged([*self.judged(), *self.silent], **changes)


def merged(judged: Iterable[judge.Judged], **changes: Any) -> Summary:
    """Return the summary of what was examined, in the order of the nodes."""
    ordered = sorted(judged, key=lambda each: each.entry.node)
    return summary(*judge.against_equals(ordered), **changes)
