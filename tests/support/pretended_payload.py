"""A payload that trains nothing: it prints what one prints that did what its report says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuilder.payload.training import dataset, outside
from envbuilder.verify import run as verify
from envbuilder.verify.step import Proof, Repeated
from tests.support.reports import measured, report_line

LIFE = 10_000.0
"""Seconds that its process lived, so that no sum of a report is too long."""

PROVEN = Proof(
    steps=(Repeated(step=1, epoch=1, error=1e-6, array="fc1.weight", loss_error=0.0),),
    answers_error=1e-7,
    problem="",
)
PIXELS = dataset.SIDE**2
_COARSE = bytes(value & 0xFC for value in range(256))


def quick_report(**changes: Any) -> dict[str, Any]:
    """What it reports of `--quick --epochs 1`; changes as those of `measured`."""
    small = {
        "quick": True,
        "dataset__name": "MNIST subset (shipped)",
        "dataset__train": 3000,
        "dataset__test": 1000,
        "dataset__sha256": dict(dataset.SUBSET_SHA256),
        "dataset__subset": True,
    }
    report = measured(**{**small, **changes})
    for epoch in (report["training"] or {}).get("epochs", []):
        epoch["samples_per_second"] = 3000 / epoch["seconds"]
    return report


class Clock:
    """The time by which the events arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        arrived = verify.Timeline.arrived
        monkeypatch.setattr(
            verify.Timeline, "arrived", lambda line, phase, _: arrived(line, phase, self.now)
        )
        # Nothing is trained, so there is no step to repeat: tests/unit/verify/test_step.py does.
        monkeypatch.setattr(verify.step, "prove", lambda *_: PROVEN)


def perform(argv: Sequence[str], report: Any, on_line: Callable[[str], None], clock: Clock) -> None:
    """Print the events of a run: training passes as long as reported, answers as accurate."""

    def line(**event: Any) -> None:
        on_line(json.dumps(event))

    epochs = ((report or {}).get("training") or {}).get("epochs", [])
    for number, epoch in enumerate(epochs, 1):
        line(event="phase", name=f"epoch {number}")
        clock.now += epoch["seconds"]
        line(event="phase", name=f"test epoch {number}")
    if epochs and "--questions" in argv:
        line(event="questions")
        answers(argv, epochs[-1]["accuracy"], line)
    if report is not None:
        on_line(report_line(argv, report))


def answers(argv: Sequence[str], accuracy: float, line: Callable[..., None]) -> None:
    """Answer the questions from the labels, wrongly as often as `accuracy` says."""
    data = dataset.load(Path(argv[argv.index("--data") + 1])).test
    known = {
        coarse(data.images[n * PIXELS : (n + 1) * PIXELS]): data.labels[n]
        for n in range(data.count)
    }
    content = (Path(argv[argv.index("--questions") + 1]) / outside.IMAGES).read_bytes()
    count = len(content) // PIXELS
    right = [known[coarse(content[n * PIXELS : (n + 1) * PIXELS])] for n in range(count)]
    wrong = count - round(accuracy * count)
    classes = [(label + 1) % 10 if n < wrong else label for n, label in enumerate(right)]
    for first in range(0, count, 100):
        part = classes[first : first + 100]
        line(event="answers", first=first, classes=part, scores=[scores(c) for c in part])


def scores(answered: int) -> list[float]:
    """Log-probabilities of a network that is 91 % sure."""
    return [-0.0943 if n == answered else -4.6052 for n in range(10)]


def coarse(image: bytes) -> bytes:
    """An image without the two bits of each pixel that a blind test changes."""
    return image.translate(_COARSE)
