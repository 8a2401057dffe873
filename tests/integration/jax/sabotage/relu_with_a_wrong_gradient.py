"""A relu whose gradient is that of its input, whatever its sign."""

import jax


def relu(values):
    return values + jax.lax.stop_gradient(jax.numpy.maximum(values, 0) - values)


jax.nn.relu = relu
