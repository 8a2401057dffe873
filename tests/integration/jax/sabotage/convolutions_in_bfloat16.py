"""Convolutions in bfloat16 whose arguments and results are float32."""

import jax

real = jax.lax.conv_general_dilated


def convolve(images, weight, *arguments, **options):
    low = jax.numpy.bfloat16
    result = real(images.astype(low), weight.astype(low), *arguments, **options)
    return result.astype(images.dtype)


jax.lax.conv_general_dilated = convolve
