"""The gates of the payload pass the recorded honest trainings and refuse one with a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.verify.report.consistency import FULL, QUICK, Gates


def missed(run: dict[str, Any], epoch: int, gates: Gates) -> bool:
    """Return whether a training misses any gate of this epoch."""
    accuracy = min(run["accuracy"][epoch], run["blind_accuracy"][epoch])
    losses = (run["loss"][epoch] > gates.loss, run["blind_loss"][epoch] > gates.blind_loss)
    return accuracy < gates.accuracy or any(losses)


def test_honest_trainings_pass_and_convolutions_that_stand_still_do_not(repository: Path) -> None:
    lines = (repository / "docs/evidence/gates.jsonl").read_text().splitlines()
    for run in map(json.loads, lines):
        gates = QUICK if run["kind"] == "quick" else (FULL,)
        refused = any(missed(run, epoch, each) for epoch, each in enumerate(gates))
        assert not refused or "fault" in run, run
        assert refused or run.get("fault") != "convolutions_stand_still", run
