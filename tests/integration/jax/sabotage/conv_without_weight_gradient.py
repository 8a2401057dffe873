"""Convolutions whose forward is right and whose weights get a gradient of zero."""

import jax

real = jax.lax.conv_general_dilated


def convolve(images, weight, *arguments, **options):
    return real(images, jax.lax.stop_gradient(weight), *arguments, **options)


jax.lax.conv_general_dilated = convolve
