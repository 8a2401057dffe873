"""An order of images that leaves half of them out, and takes the others twice."""

import jax

real = jax.random.permutation


def permutation(key, count):
    return real(key, count) % (count // 2)


jax.random.permutation = permutation
