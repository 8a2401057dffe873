from __future__ import annotations

import pytest

from envbuilder.payload.numerics.vae import GAIN, STEPS, problems

FALLING = [500.0 - 8 * step for step in range(STEPS)]


def test_a_loss_that_falls() -> None:
    assert problems(FALLING) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("step", [1, 17, STEPS])
def test_one_loss_that_is_not_finite(value: float, step: int) -> None:
    losses = [*FALLING[: step - 1], value, *FALLING[step:]]
    assert problems(losses) == [
        f"the loss of a variational autoencoder is not finite from step {step} on"
    ]


@pytest.mark.parametrize(
    "losses",
    [
        [500.0] * STEPS,
        [500.0] * 5 + [500.0 * GAIN * 1.01] * (STEPS - 5),
        FALLING[::-1],
        [500.0] * 5 + [-3.0] * (STEPS - 5),
    ],
    ids=["flat", "hardly", "rising", "negative"],
)
def test_a_loss_that_does_not_fall(losses: list[float]) -> None:
    (sentence,) = problems(losses)
    assert "is expected" in sentence
