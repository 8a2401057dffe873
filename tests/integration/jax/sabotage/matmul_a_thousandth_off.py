"""Products of matrices that are 0.1 % too large."""

from jax._src.lax import lax

real = lax.dot_general


def dot_general(*arguments, **options):
    return real(*arguments, **options) * 1.001


lax.dot_general = dot_general
