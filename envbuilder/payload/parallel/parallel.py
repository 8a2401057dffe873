"""Training on several devices: each alone, then all together, with checks of the results.

This process does not import torch. ``launch`` starts the ranks, which write their results to files
(``ranks``), and ``agreement`` compares the results. With more devices, each step trains on more
images: 64 for each device (weak scaling), so that every device has as much work as when it runs
alone.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from .. import SCHEMA
from ..machine.accelerators import ACCELERATORS
from ..report import FAILED, PASSED, WARNING, Checks
from ..training.train import BATCH
from . import launch, shares
from .agreement import Ended, check_distinct, check_ended, check_same, check_single

if TYPE_CHECKING:
    import argparse

    from ..events import Events


@dataclass
class Scaling:
    """The results of each device alone and of all devices together, collected for the report."""

    accelerator: str
    devices: List[Dict[str, Any]] = field(default_factory=list)
    checks: Checks = field(default_factory=Checks)
    rate: Optional[float] = None
    ranks: int = 0
    gradients_equal: Optional[bool] = None

    def report(self) -> Dict[str, Any]:
        """Return the report.

        It passes only if no check failed, of a single device or of all together.
        """
        joint = [check.as_dict() for check in self.checks.done]
        sentences: Dict[str, List[str]] = {PASSED: [], WARNING: [], FAILED: []}
        parts = [(f"device {device['index']}", device["checks"]) for device in self.devices]
        for place, checks in [*parts, ("together", joint)]:
            for check in checks:
                text = f"{place}: {check['name']}: {check['detail']}"
                sentences[check["status"]].append(text)
        rates = [device["samples_per_second"] for device in self.devices]
        total = sum(rates) if rates and None not in rates else None
        row = ACCELERATORS[self.accelerator]
        return {
            "schema": SCHEMA,
            "devices": self.devices,
            "ranks": self.ranks,
            "backend": (row.library or row.collective) if self.ranks > 1 else None,
            "batch": BATCH * self.ranks,
            "samples_per_second": self.rate,
            "efficiency": self.rate / total if self.rate and total else None,
            "gradients_equal": self.gradients_equal,
            "checks": joint,
            "status": FAILED if sentences[FAILED] else PASSED,
            "reasons": sentences[FAILED],
            "warnings": sentences[WARNING],
        }


def measure(options: argparse.Namespace, out: Events) -> Dict[str, Any]:
    """Run each device alone, then all together, and return the report.

    No child process outlives the call.
    """
    scaling = Scaling(options.device)
    indices: Tuple[int, ...] = ()

    def find() -> Tuple[str, str]:
        nonlocal indices
        shares.require(options.device, options.devices)
        count = 0 if options.device == "cpu" else launch.count(options.device, options.limit)
        indices = shares.choose(options.device, options.devices, count)
        return PASSED, f"{len(indices)} of {count or len(indices)}"

    out.phase("count devices")
    if not scaling.checks.run("devices", find):
        return scaling.report()
    scaling.ranks = len(indices)
    for index in indices:
        out.phase(f"device {index} alone")
        run_alone(scaling, index, partial(launch.run, options, indices, index))
    if len(indices) > 1 and scaling.report()["status"] == PASSED:
        out.phase(f"{len(indices)} ranks together")
        run_together(scaling, partial(launch.run, options, indices, None))
    return scaling.report()


def _finished(checks: Checks, name: str, start: Callable[[], Ended]) -> Optional[Ended]:
    """Run ranks as a timed check. Return how they ended, or None if any did not finish its work."""
    ended: List[Ended] = []

    def check() -> Tuple[str, str]:
        ended.append(start())
        return check_ended(ended[0])

    return ended[0] if checks.run(name, check) else None


def run_alone(scaling: Scaling, index: int, start: Callable[[], Ended]) -> None:
    """Run one device alone and judge its results."""
    checks = Checks()
    name = None
    rate = None
    ended = _finished(checks, "run", start)
    if ended:
        (result,) = ended.results
        name = result["name"]
        checks.run("gradients", check_single, result)
        rate = BATCH * result["block_steps"] / statistics.median(result["block_seconds"])
    scaling.devices.append(
        {
            "index": index,
            "name": name,
            "samples_per_second": rate,
            "checks": [check.as_dict() for check in checks.done],
        }
    )


def run_together(scaling: Scaling, start: Callable[[], Ended]) -> None:
    """Run all ranks together and judge their results."""
    run = scaling.checks.run
    ended = _finished(scaling.checks, "ranks", start)
    if not ended:
        return
    run("own devices", check_distinct, ended.results)
    same = run("gradients equal", check_same, "gradients", ended.gradients)
    scaling.gradients_equal = run("gradients", check_single, ended.results[0]) and same
    run("weights equal", check_same, "weights", ended.weights)
    # A block is finished when its slowest rank is.
    blocks = [result["block_seconds"] for result in ended.results]
    slowest = [max(rank[n] for rank in blocks) for n in range(min(map(len, blocks)))]
    steps = ended.results[0]["block_steps"]
    scaling.rate = BATCH * len(ended.results) * steps / statistics.median(slowest)
