"""What a real container printed (tests/data/kubernetes), as the logs of the guide's Jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.payload.options import QUICK

DATA = Path(__file__).resolve().parent.parent / "data/kubernetes"
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/kubernetes.md"
RUN = "20261123t091500z-4f1a2b"


def job_text(node: str = "gpu-1", profile: str = "cuda", run: str = RUN) -> str:
    """The guide's Job, as a user would change it for a node."""
    text = GUIDE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    changed = "\n".join(lines).replace("gpu-1", node).replace(RUN, run)
    return changed.replace("envbuilder/profile: cuda", f"envbuilder/profile: {profile}") + "\n"


def job_name(node: str) -> str:
    return f"envbuilder-{node}"


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
