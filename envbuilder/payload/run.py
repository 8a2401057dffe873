"""The state of one verification, and its report.

The report can be made at any time, even after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import SCHEMA
from .machine import clock, contention, facts
from .numerics import compilers, numerics
from .report import Checks, judge, not_run
from .training import dataset, outside, train

if TYPE_CHECKING:
    from .events import Events
    from .interface import Framework, Job, Observation, Tensors
    from .options import Options

UNKNOWN = {"version": None, "build": None, "runtime": None}


@dataclass
class Run:
    """The observations of a verification. None or an empty value means "not observed yet"."""

    options: Options
    data: dataset.Dataset
    events: Events
    started: clock.Reading = field(default_factory=clock.read)
    checks: Checks = field(default_factory=Checks)
    framework: Optional[Framework] = None
    job: Optional[Job] = None
    tensors: Tuple[Tensors, ...] = ()
    epochs: List[Dict[str, float]] = field(default_factory=list)
    intervals: Dict[str, Tuple[clock.Reading, clock.Reading]] = field(default_factory=dict)
    """Readings of all clocks before and after each training pass, by its name."""
    disturbances: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    """What competed for the processor during each timed piece of work, by its name."""
    recorder: Optional[outside.Recorder] = None
    cold_start: Optional[float] = None
    used: Optional[str] = None
    described: Dict[str, Any] = field(default_factory=dict)
    precision: Optional[Dict[str, Any]] = None
    threads: Dict[str, Any] = field(default_factory=dict)
    observed: Optional[Observation] = None
    outcomes: List[compilers.Outcome] = field(default_factory=list)
    peak_memory: Optional[int] = None
    measurements: Optional[Dict[str, Any]] = None
    baseline: Optional[Dict[str, Any]] = None
    origins: Dict[str, Any] = field(default_factory=dict)
    traceback: Optional[str] = None

    @property
    def accelerator(self) -> str:
        """The requested accelerator."""
        return self.options.device

    @property
    def tolerance(self) -> float:
        """The tolerance for gradients in compiled code."""
        return numerics.GRADIENT_TOLERANCE[self.options.precision]

    def count(self, name: str, framework: Framework, before: contention.Reading) -> None:
        """Record what competed for the processor since ``before``, under the given name."""
        workers = framework.threads()["framework"] if framework.accelerator == "cpu" else None
        self.disturbances[name] = contention.between(before, contention.read(), workers)

    def report(self) -> Dict[str, Any]:
        """Return the report. It has all of its keys, whatever happened."""
        options = self.options
        framework = self.framework
        required = options.required()
        checks = [*self.checks.done, *not_run(self.checks.done, required)]
        proven = options.record is not None
        verdict = judge(checks, required, self.accelerator, self.used, proven=proven)
        keys = ("name", "memory_bytes", "driver", "capability")
        result: Dict[str, Any] = {
            "schema": SCHEMA,
            "device": {
                "requested": self.accelerator,
                "used": self.used,
                **{key: self.described.get(key) for key in keys},
            },
            "framework": {
                "name": options.framework,
                **(framework.facts() if framework else UNKNOWN),
                **facts.platform_facts(),
                "extensions": {n: facts.installed(d) for n, d in facts.EXTENSIONS.items()},
            },
            "precision": self.precision,
            "threads": {
                **(framework.threads() if framework else {"framework": None, "interop": None}),
                **self.threads,
                "allocator": facts.allocator(),
            },
            "origins": self.origins or None,
            "dataset": self.data.summary(),
            "quick": options.quick,
            "checks": [check.as_dict() for check in checks],
            "training": self._training(),
            "kernels": {"training": self.observed.top() if self.observed else []},
            "compile": [compilers.summary(each, self.tolerance) for each in self.outcomes],
            "measurements": self.measurements,
            "contention": self.disturbances,
            "baseline": self.baseline,
            "speedup": self._speedup(),
            "status": verdict.status,
            "reasons": list(verdict.reasons),
            "warnings": list(verdict.warnings),
        }
        if self.traceback:
            result["traceback"] = self.traceback
        return result

    def _training(self) -> Optional[Dict[str, Any]]:
        if self.job is None:
            return None
        return {
            "epochs": self.epochs,
            "losses": self.job.curve.points if self.job.curve else [],
            "cold_start_seconds": self.cold_start,
            "seed": self.options.seed,
            "batch": train.BATCH,
            "learning_rate": train.LEARNING_RATE,
            "gamma": train.GAMMA,
            **self.job.summary(),
        }

    def _speedup(self) -> Optional[float]:
        # The CPU trained one epoch from scratch, so it is compared with the device's first epoch.
        if self.baseline is None or not self.epochs:
            return None
        return float(self.baseline["seconds"] / self.epochs[0]["seconds"])
