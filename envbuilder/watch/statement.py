"""What a signed watch report says: what ran on what, and what that does not prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.watch import judge

if TYPE_CHECKING:
    from envbuilder.watch.model import Watched

TYPE = "urn:envbuilder:watch:v1"
NOT_PROVEN = (
    "that the script told the truth: it ran in the same processes as the hook, and could lie to it",
    "which data and which weights went in: they are not recorded",
    "that the host is the one named: it named itself",
    "what was not sampled: operators are seen in some of the steps only",
)


def predicate(watched: Watched) -> dict[str, Any]:
    """Return the predicate of an in-toto statement about a report, whose subject is its file."""
    trained = judge.training(watched)
    losses = [loss for process in trained[:1] for _, loss in process.losses if loss is not None]
    rate = judge.speed(watched)
    unclean = (
        () if watched.project.is_clean else ("that the project's files are those of a commit",)
    )
    return {
        "environment": {
            "profile": watched.profile,
            "backend": watched.backend,
            "fingerprint": watched.fingerprint,
            "lock": {"sha256": watched.lock},
        },
        "project": {"commit": watched.project.commit, "isClean": watched.project.is_clean},
        "command": list(watched.command),
        "exitCode": watched.exit_code,
        "host": watched.host,
        "time": watched.time,
        "device": {
            "requested": watched.requested,
            "used": judge.device(watched),
            "onRequested": watched.on_device,
        },
        "measured": {
            "framework": judge.framework(watched),
            "dtype": judge.dtype(watched),
            "processes": len(trained),
            "steps": max((process.steps or 0 for process in trained), default=0),
            "firstLoss": losses[0] if losses else None,
            "lastLoss": losses[-1] if losses else None,
            "rate": {"value": rate[0], "unit": f"{rate[1]}/s"} if rate else None,
            "findings": [finding.kind for finding in watched.findings],
        },
        "notProven": [*NOT_PROVEN, *unclean],
    }
