from __future__ import annotations

import numpy
import pytest

from envbuilder.payload.numerics.convolution import (
    PLAIN,
    Geometry,
    convolve,
    gradients,
    pool,
    pool_gradient,
)

GEOMETRIES = [
    PLAIN,
    Geometry(stride=2, padding=1),
    Geometry(stride=2),
    Geometry(groups=2),
    Geometry(dilation=2, padding=2),
]


def numbers(*shape: int) -> numpy.ndarray:
    return numpy.random.default_rng(1).standard_normal(shape)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_convolution_is_the_sum_over_its_definition(geometry: Geometry) -> None:
    images, weight = numbers(2, 7, 8, 4), numbers(3, 3, 4 // geometry.groups, 6)
    result = convolve(numpy, images, weight, geometry)
    pad, reach = geometry.padding, 2 * geometry.dilation
    padded = numpy.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    for row in range(result.shape[1]):
        for column in range(result.shape[2]):
            top, left = row * geometry.stride, column * geometry.stride
            window = padded[
                :, top : top + reach + 1 : geometry.dilation, left : left + reach + 1, :
            ][:, :, :: geometry.dilation]
            parts = zip(
                numpy.split(window, geometry.groups, axis=3),
                numpy.split(weight, geometry.groups, axis=3),
                strict=True,
            )
            expected = [numpy.einsum("nrci,rcio->no", *part) for part in parts]
            assert numpy.allclose(result[:, row, column], numpy.concatenate(expected, axis=1))
    assert result.shape[1:3] == (
        (7 + 2 * pad - reach - 1) // geometry.stride + 1,
        (8 + 2 * pad - reach - 1) // geometry.stride + 1,
    )


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_gradients_are_the_transposes_of_a_convolution(geometry: Geometry) -> None:
    """It is linear in each argument: <c, conv(x, w)> = <gradient of x, x> = <that of w, w>."""
    images, weight = numbers(2, 7, 8, 4), numbers(3, 3, 4 // geometry.groups, 6)
    result = convolve(numpy, images, weight, geometry)
    cotangent = numbers(*result.shape)
    of_images, of_weight = gradients(numpy, images, weight, cotangent, geometry)
    expected = (cotangent * result).sum()
    assert numpy.isclose((of_images * images).sum(), expected)
    assert numpy.isclose((of_weight * weight).sum(), expected)


def test_the_first_of_equal_pixels_gets_the_whole_gradient() -> None:
    images = numpy.array([[1.0, 1.0, 0.0, 2.0], [1.0, 0.0, 3.0, 3.0]]).reshape(1, 2, 4, 1)
    largest, chosen = pool(numpy, images)
    assert largest.ravel().tolist() == [1.0, 3.0]
    gradient = pool_gradient(numpy, chosen, numpy.array([5.0, 7.0]).reshape(1, 1, 2, 1))
    assert gradient.reshape(2, 4).tolist() == [[5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0]]
