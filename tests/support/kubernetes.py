"""What a real container printed (tests/data/kubernetes), as the logs of rendered Jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.payload.options import QUICK

DATA = Path(__file__).resolve().parent.parent / "data" / "kubernetes"
RUN = "20261123t091500z-4f1a2b"


def job_name(node: str) -> str:
    return f"envbuilder-4f1a2b-{node}"


def pod_name(node: str) -> str:
    return f"{job_name(node)}-x7k2p"


def log_of(node: str, *, run_id: str = "", **changes: Any) -> str:
    """The log of a node's pod, whose report has these values instead."""
    *lines, last = (DATA / "verified.log").read_text().splitlines()
    event = json.loads(last)
    event["run_id"] = run_id or f"{RUN}/{node}/{pod_name(node)}"
    # Gates may move without a new recording; what was reached passes them.
    event["report"]["training"]["min_accuracy"] = QUICK[-1].accuracy
    event["report"] |= changes
    return "\n".join((*lines, json.dumps(event), ""))


def group_log(pod: str, *, run_id: str = "", **changes: Any) -> str:
    """The log of the first pod of `n1` and `n2`, whose report has these values instead."""
    *lines, last = (DATA / "together.log").read_text().splitlines()
    event = json.loads(last)
    event["run_id"] = run_id or f"{RUN}/n1/{pod}"
    for number, device in enumerate(event["report"]["devices"], 1):
        device["node"] = f"n{number}"
    event["report"] |= changes
    return "\n".join((*lines, json.dumps(event), ""))
