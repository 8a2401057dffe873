"""A report that lacks something is never judged better than the whole one, and breaks nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import rich.console

from envbuilder.core.errors import EnvbuilderError, InvalidError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import run, show
from envbuilder.verify.report import (
    comparison,
    consistency,
    model,
    regression,
    speed,
)
from tests.support.datasets import sized
from tests.support.pages import whole as page_report
from tests.support.reports import BUSY, CUDA, QUIET, epoch, loaded, removals, whole

MEASURED = {k: page_report()[k] for k in ("measurements", "compile")}
SAMPLES = {
    "quiet": whole(training__epochs=[epoch(20.0), epoch(20.0)], **MEASURED),
    "busy": whole(contention={"epoch 1": BUSY}),
    "busy during the measurements": whole(
        **MEASURED, contention={"epoch 1": QUIET, "measurements": BUSY}
    ),
    "busy without pressure": whole(contention={"epoch 1": {**BUSY, "pressure_seconds": None}}),
    "not judged": whole(known__speed="not_judged", known__speed_reason="machine busy"),
    "as found": whole(origins__as_found=True, origins__variables={"PYTHONPATH": "/x"}),
    "tf32": whole(precision__cuda_tf32=True),
    "autocast": whole(precision__autocast=True),
    "bfloat16": whole(precision__matmul="medium"),
    "tf32 by a variable": whole(precision__environment={"NVIDIA_TF32_OVERRIDE": "1"}),
    "quick": whole(quick=True, dataset__subset=True, dataset__train=3000),
    "slower": whole(training__epochs=[epoch(40.0)]),
    "of a GPU": whole(**{**CUDA, "baseline": {"seconds": 20.0}, "speedup": 1.0}),
    "failed": whole(status="failed", reasons=["device: none"]),
}
EARLIER = loaded("report.json")
EXPECTS = Expected(device="cpu", version="2.13.0+cpu")
DATA = sized("MNIST", 60000, 10000, {"train": "00"})
RANKS = ("failed", "warning", "passed")


def rank(report: model.Report) -> int:
    """How `--against` judges a report; refused: 0."""
    try:
        return 1 + RANKS.index(regression.compare(report, EARLIER).status)
    except InvalidError:
        return 0


def believed(report: model.Report, epochs: int) -> bool:
    request = consistency.request_for(EXPECTS, DATA, epochs=epochs, quick=False)
    passed = report.status == "passed" and not run._incomplete(report)
    return passed and not consistency.contradictions(request, report, 1e4)


def shown(data: dict[str, Any]) -> None:
    """Show a report in every way there is."""
    report = model.check(data)
    rows = comparison.rows([regression.StoredReport(path=Path("report.json"), report=report)])
    comparison.markdown(rows)
    comparison.as_json(rows)
    show.render(data)
    out = io.StringIO()
    show.print_verdict(report, rich.console.Console(file=out, width=80))
    assert "None" not in out.getvalue()


def merits(data: dict[str, Any], epochs: int) -> dict[str, int]:
    """What speaks for a report after a request of so many epochs."""
    report = model.check(data)
    stored = regression.StoredReport(path=Path("report.json"), report=report)
    (row,) = comparison.rows([stored])
    (judgement,) = regression.judge_all([stored], {"report.json": EARLIER})
    return {
        "passed": report.status == "passed",
        "believed": believed(report, epochs),
        "judged": speed.with_speed(data)["speed"] == "judged",
        "counts": report.speed_counts,
        "of a built environment": not show.as_found(report),
        "standard": row.standard and row.speed != "not_judged",
        "against": rank(report),
        "compared": RANKS.index(judgement.status) if judgement.status in RANKS else -1,
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_what_lacks_something_is_not_better(name: str) -> None:
    sample = SAMPLES[name]
    epochs = len(sample["training"]["epochs"])
    before = merits(sample, epochs)
    judged = 0
    for place, data in removals(sample):
        if place[:2] == ("precision", "environment") and len(place) == 3:
            continue  # a variable that is not set is no gap
        try:
            after = merits(data, epochs)
        except EnvbuilderError:
            continue
        judged += 1
        if name in {"quiet", "of a GPU"}:  # these have all that others have
            shown(data)
        assert {key for key in after if after[key] > before[key]} == set(), place
    assert judged > 20


def test_the_samples_are_good_and_bad() -> None:
    assert all(merits(SAMPLES["quiet"], 2).values())
    bad = SAMPLES.keys() - {"quiet"}
    assert {name for name in bad if all(merits(SAMPLES[name], 1).values())} == set()
