"""Runs of a fleet for tests: entries and summaries."""

from __future__ import annotations

from typing import Any

from envbuilder.fleet.model import Entry, Summary

RUN = "20261123t091500z-0123ab"
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
        "epoch_seconds": 1.25,
        "share": 1.0,
        "accuracy": 0.984,
        "framework": "torch 2.14.1+cu130",
        "gpus": 1,
        "gpus_given": 1,
    }
    return Entry(**{**values, **changes})


def summary(*entries: Entry, **changes: Any) -> Summary:
    values: dict[str, Any] = {
        "run": RUN,
        "started": "20261123T091500Z",
        "finished": "20261123T094205Z",
        "quick": False,
        "entries": entries,
    }
    return Summary(**{**values, **changes})
