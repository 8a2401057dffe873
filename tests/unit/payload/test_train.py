from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload.interface import Tensors
from envbuilder.payload.training import train


@pytest.mark.parametrize(
    ("images", "epochs", "every", "points"),
    [(3_000, 3, 1, 141), (1, 1, 1, 1)],
)
def test_a_curve_has_at_most_200_points(images: int, epochs: int, every: int, points: int) -> None:
    curve = train.curve(images, epochs)
    assert curve.every == every
    step = 0
    for _ in range(epochs):
        losses = [float(step + n) for n in range(1, train.steps_of(images) + 1)]
        step += len(losses)
        curve.add(losses)
    assert len(curve.points) == points <= train.POINTS
    for number, loss in curve.points:
        assert number == loss, "a loss of another step"
    assert curve.points[0][0] == 1


class Job(SimpleNamespace):
    """Notes what an epoch does with it, in order; the loss of a batch is its first image."""

    curve: Any = None
    on_first_step: Any = None

    def __init__(self) -> None:
        super().__init__(done=[], fetched=[])

    def wait(self, result: Any = None) -> None:
        self.done.append("wait")

    def shuffle(self, data: Any) -> None:
        self.done.append("shuffle")

    def step(self, first: int, count: int) -> float:
        self.done.append((first, count))
        return float(first)

    def decay(self) -> None:
        self.done.append("decay")

    def fetch(self, losses: list[float]) -> list[float]:
        self.fetched.append(list(losses))
        return list(losses)


def test_an_epoch_takes_all_images_in_batches_and_fetches_losses_once() -> None:
    job: Any = Job()
    job.curve = train.Curve(every=2)
    result = train.epoch(job, Tensors(None, [0] * 150), lambda done, total, loss: None)
    assert job.done == ["wait", "shuffle", "wait", (0, 64), (64, 64), (128, 22), "wait", "decay"]
    assert job.fetched == [[0.0, 64.0, 128.0]]
    assert result["loss"] == (0 * 64 + 64 * 64 + 128 * 22) / 150
    assert result["data_seconds"] + result["compute_seconds"] == result["seconds"]
    assert result["samples_per_second"] * result["seconds"] == pytest.approx(150)
    assert job.curve.points == [(1, 0.0), (3, 128.0)]


def test_the_first_step_of_all_has_finished_before_it_counts() -> None:
    job: Any = Job()
    job.on_first_step = lambda: job.done.append("first")
    train.epoch(job, Tensors(None, [0] * 128), lambda done, total, loss: None)
    assert job.done[3:7] == [(0, 64), "wait", "first", (64, 64)]
    assert job.on_first_step is None


@pytest.mark.parametrize(("right", "expected"), [(b"\x01\x00\x02", 1.0), (b"\x01\x01\x01", 1 / 3)])
def test_accuracy(right: bytes, expected: float) -> None:
    scores = [[[0.1, 0.9, 0.0], [0.9, 0.1, 0.0]], [[0.0, 0.1, 0.9]]]
    job: Any = SimpleNamespace(predict=lambda images: iter(scores), labels=lambda data: list(right))
    assert train.accuracy(job, Tensors(None, None)) == expected
