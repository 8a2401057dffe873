"""The gates of the payload are those that the recorded trainings give, and the page shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gates_report
from envbuilder.payload.options import FULL, QUICK


@pytest.fixture(scope="module")
def runs(repository: Path) -> list[dict[str, Any]]:
    lines = (repository / "docs/evidence/gates.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("count", "beyond", "published"), [(10, 0.1, 2.355), (10, 0.01, 3.981), (200, 1e-4, 4.077)]
)
def test_k_is_that_of_published_tables(count: int, beyond: float, published: float) -> None:
    assert gates_report.factor(count, beyond) == pytest.approx(published, abs=1e-3)


def test_gates_are_what_honest_trainings_reach(runs: list[dict[str, Any]]) -> None:
    quick = {("quick", epoch): gates for epoch, gates in enumerate(QUICK)}
    full = len([run for run in runs if run["kind"] == "full"]) >= gates_report.ENOUGH
    assert gates_report.derived(runs) == quick | ({("full", 0): FULL} if full else {})


def test_honest_trainings_pass_and_convolutions_that_stand_still_do_not(
    runs: list[dict[str, Any]],
) -> None:
    for run in runs:
        gates = QUICK if run["kind"] == "quick" else (FULL,)
        refused = any(gates_report.refusals(run, *each) for each in enumerate(gates))
        assert not refused or "fault" in run, run
        assert refused or run.get("fault") != "convolutions_stand_still", run


def test_the_page_shows_these_runs(repository: Path, runs: list[dict[str, Any]]) -> None:
    page = (repository / "docs/evidence/gates.md").read_text()
    assert page.partition(gates_report.MARK)[2].strip() == gates_report.report(runs).strip()
