"""Reports as `verify` stores them, for tests: a passing one, changed by dotted keys."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from envbuilder.verify.report import model as report
from envbuilder.verify.report.regression import StoredReport

QUIET: dict[str, Any] = {
    "threads": 2,
    "cpus": 2,
    "quota": None,
    "seconds": 2.0,
    "cpu_seconds": 3.9,
    "pressure_seconds": 0.04,
    "cgroup_pressure_seconds": None,
    "throttled_seconds": None,
    "throttled_periods": None,
    "steal_seconds": 0.01,
    "involuntary_switches": 190,
    "other_seconds": None,
}


BUSY = {**QUIET, "pressure_seconds": 1.9, "cpu_seconds": 2.0, "involuntary_switches": 800}
"""What a payload counts during an epoch on two cores: alone, and beside another job."""


def epoch(seconds: float = 20.0, accuracy: float | None = 0.984) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "data_seconds": seconds / 20,
        "compute_seconds": seconds - seconds / 20,
        "samples_per_second": 60000 / seconds if seconds else 0.0,
        "loss": 0.2,
        "accuracy": accuracy,
    }


def measured(**changes: Any) -> dict[str, Any]:
    """What the payload reports: `changes` are new values under keys joined by `__`."""
    data: dict[str, Any] = {
        "schema": 2,
        "device": {
            "requested": "cpu",
            "used": "cpu",
            "name": "AMD EPYC",
            "memory_bytes": 24 * 2**30,
            "driver": None,
        },
        "framework": {"name": "torch", "version": "2.13.0+cpu", "python": "3.11.7"},
        "precision": {
            "dtype": "float32",
            "matmul": "highest",
            "autocast": False,
            "cuda_tf32": False,
            "environment": {},
        },
        "dataset": {
            "name": "MNIST",
            "train": 60000,
            "test": 10000,
            "sha256": {"train": "00"},
            "subset": False,
        },
        "quick": False,
        "origins": {
            "as_found": False,
            "prefix": "envs/cpu",
            "base_prefix": "/usr",
            "executable": "envs/cpu/bin/python",
            "framework": "/usr/torch/__init__.py",
        },
        "checks": [
            {"name": name, "status": "passed", "seconds": 1.0, "detail": "ok"}
            for name in (*REQUIRED, "arithmetic", BLIND_TEST, STEP)
        ],
        "training": {"epochs": [epoch()], "cold_start_seconds": 3.0, "batch": 64},
        "compile": [],
        "baseline": None,
        "speedup": None,
        "status": "passed",
        "reasons": [],
        "warnings": [],
    }
    for key, value in changes.items():
        at = data
        *parents, name = key.split("__")
        for parent in parents:
            at = at[parent]
        at[name] = value
    passes = [f"epoch {n}" for n in range(1, len((data["training"] or {}).get("epochs", ())) + 1)]
    return {
        "contention": dict.fromkeys([*passes, "baseline epoch 1", "measurements"], QUIET),
        **data,
    }


def whole(**changes: Any) -> dict[str, Any]:
    """A whole report; `known__KEY` changes what the core knows, the rest what was measured."""
    known: dict[str, Any] = {
        "profile": "cpu",
        "backend": "venv",
        "artifact": {"kind": "venv", "ref": "envs/cpu", "digest": None},
        "fingerprint": "0123456789abcdef" * 4,
        "host": {"cpu": {"model_name": "AMD EPYC", "threads": 2}},
        "envbuilder": "0.1.0",
        "time": "20261120T095103Z",
    }
    own = {k.removeprefix("known__"): v for k, v in changes.items() if k.startswith("known__")}
    rest = {k: v for k, v in changes.items() if not k.startswith("known__")}
    return report.assemble(measured(**rest), {**known, **own})


def loaded(name: str = "report.json", **changes: Any) -> StoredReport:
    """The same as it is read from a file."""
    return StoredReport(path=Path(name), report=report.check(whole(**changes)))


def written(path: Path, **changes: Any) -> Path:
    """The same in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole(**changes)))
    return path


CUDA = {
    "known__profile": "cuda",
    "device": {
        "requested": "cuda",
        "used": "cuda",
        "name": "NVIDIA H200",
        "memory_bytes": 141 * 2**30,
    },
    "framework__version": "2.14.1+cu130",
}
"""Changes that make it a report from a GPU."""


def report_line(argv: Sequence[str], report: Any) -> str:
    """The event with which a payload that was started with `argv` ends."""
    run_id = argv[argv.index("--run-id") + 1]
    if isinstance(report, dict) and isinstance(report.get("origins"), dict):
        report = {**report, "origins": {**report["origins"], "executable": argv[0]}}
    return json.dumps({"event": "report", "run_id": run_id, "report": report})


def removals(data: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each part of a report: its place, and a copy of the report without it."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        without = copy.copy(data)
        del without[key]
        yield (key,), without
        if isinstance(data[key], dict | list):
            for place, part in removals(data[key]):
                changed = copy.copy(data)
                changed[key] = part
                yield (key, *place), changed
