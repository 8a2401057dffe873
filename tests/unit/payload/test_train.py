from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload.training import train


class Stack(list[float]):
    def tolist(self) -> list[float]:
        return list(self)


class Torch:
    """Counts how often numbers are fetched from the device."""

    fetched = 0

    def stack(self, values: list[float]) -> Stack:
        self.fetched += 1
        return Stack(values)


@pytest.mark.parametrize(
    ("images", "epochs", "every", "points"),
    [(3_000, 3, 1, 141), (60_000, 1, 5, 188), (60_000, 14, 66, 199), (320, 1, 1, 5), (1, 1, 1, 1)],
)
def test_a_curve_has_at_most_200_points(images: int, epochs: int, every: int, points: int) -> None:
    curve, torch = train.curve(images, epochs), Torch()
    assert curve.every == every
    step = 0
    for _ in range(epochs):
        for _ in range(train.steps_of(images)):
            step += 1
            curve.add(float(step))
        curve.fetch(torch)
    assert len(curve.points) == points <= train.POINTS
    assert all(number == loss for number, loss in curve.points), "a loss of another step"
    assert curve.points[0][0] == 1
    assert torch.fetched <= epochs, "a fetch at every step would wait for the device"


def test_an_epoch_without_a_due_step_fetches_nothing() -> None:
    curve, torch = train.Curve(every=10), Torch()
    for _ in range(2):
        curve.add(1.0)
        curve.fetch(torch)
    assert curve.points == [(1, 1.0)]
    assert torch.fetched == 1


def test_bytes_of_a_split() -> None:
    part: Any = SimpleNamespace(nbytes=100)
    assert train.Tensors(part, part).nbytes() == 200


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_an_epoch_takes_every_image_once(order: list[int]) -> None:
    train.require_every_image(SimpleNamespace(order=Stack(order)), 3)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 2, 2], [1, 2, 3], []])
def test_an_epoch_that_leaves_images_out_is_none(order: list[int]) -> None:
    with pytest.raises(RuntimeError, match="each of the 3 images once"):
        train.require_every_image(SimpleNamespace(order=Stack(order)), 3)
