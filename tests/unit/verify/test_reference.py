from __future__ import annotations

from typing import Any

import numpy
import pytest

from envbuilder.payload.training import model
from envbuilder.verify import reference
from envbuilder.verify.reference import (
    convolution_gradients,
    convolve,
    pool,
    pool_gradient,
)


def batch(count: int) -> tuple[Any, Any]:
    generator = numpy.random.default_rng(2)
    images = generator.standard_normal((count, 28, 28, 1)).astype(numpy.float32)
    return images, generator.integers(0, 10, count)


def test_the_network_is_that_of_the_example() -> None:
    weights = model.initial(numpy, 1)
    assert sum(value.size for value in weights.values()) == 1_199_882
    assert {value.dtype.name for value in weights.values()} == {"float32"}
    bound = 1 / 9216**0.5
    drawn = weights["fc1.weight"]
    assert bound * 0.999 < abs(drawn).max() <= numpy.float32(bound)
    assert abs(drawn.std() / (bound / 3**0.5) - 1) < 0.01
    assert 0 < abs(weights["fc1.bias"]).max() <= numpy.float32(bound)


def test_the_gradients_are_how_the_loss_changes() -> None:
    images, labels = batch(2)
    weights = {name: value.astype(float) for name, value in model.initial(numpy, 1).items()}
    generator = numpy.random.default_rng(3)
    directions = {name: generator.standard_normal(value.shape) for name, value in weights.items()}
    passed = reference.forward(numpy, weights, images, labels)
    exact = reference.backward(numpy, passed, passed.third > 0)
    near = 1e-7

    def loss(distance: float) -> float:
        moved = {name: value + distance * directions[name] for name, value in weights.items()}
        return float(reference.forward(numpy, moved, images, labels).loss)

    parts = [(exact[name] * direction).sum() for name, direction in directions.items()]
    assert (loss(near) - loss(-near)) / (2 * near) == pytest.approx(sum(parts), rel=1e-4)
    # None is too small for the sum to show that it is wrong.
    assert min(map(abs, parts)) > 1e-3 * abs(sum(parts))


# ---- convolution and max-pool


def numbers(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng(1).standard_normal(shape)


def test_the_gradients_are_the_transposes_of_a_convolution() -> None:
    """It is linear in each argument: <c, conv(x, w)> = <gradient of x, x> = <that of w, w>."""
    images = numbers(2, 7, 8, 4)
    weight = numbers(3, 3, 4, 6)
    result = convolve(numpy, images, weight)
    cotangent = numbers(*result.shape)
    of_images, of_weight = convolution_gradients(numpy, images, weight, cotangent)
    expected = (cotangent * result).sum()
    assert numpy.isclose((of_images * images).sum(), expected)
    assert numpy.isclose((of_weight * weight).sum(), expected)


def test_the_first_of_equal_pixels_gets_the_whole_gradient() -> None:
    images = numpy.array([[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 3.0, 3.0]]).reshape(1, 2, 4, 1)
    largest, chosen = pool(numpy, images)
    assert largest.ravel().tolist() == [1.0, 3.0]
    gradient = pool_gradient(numpy, chosen, numpy.array([5.0, 7.0]).reshape(1, 1, 2, 1))
    assert gradient.reshape(2, 4).tolist() == [[5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0]]


def test_a_convolution_is_the_sum_over_its_definition() -> None:
    images = numbers(2, 7, 8, 4)
    weight = numbers(3, 3, 4, 6)
    result = convolve(numpy, images, weight)
    for row in range(5):
        for column in range(6):
            window = images[:, row : row + 3, column : column + 3, :]
            expected = numpy.einsum("nrci,rcio->no", window, weight)
            assert numpy.allclose(result[:, row, column], expected)
    assert result.shape[1:3] == (5, 6)
