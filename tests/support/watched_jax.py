"""A small training with JAX, with one fault or none: watched_jax.py FAULT."""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

FAULT = sys.argv[1]
if FAULT == "float64":
    jax.config.update("jax_enable_x64", val=True)


def nll(parameters: dict[str, jax.Array], inputs: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jnp.tanh(inputs @ parameters["first"]) @ parameters["last"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@jax.jit
def step(
    parameters: dict[str, jax.Array], inputs: jax.Array, labels: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    loss, gradients = jax.value_and_grad(nll)(parameters, inputs, labels)
    rate = 1e6 if FAULT == "not a number" else 0.2
    return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), loss


def main() -> None:
    """Train."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(512, 32))
    labels = inputs[:, :10].argmax(1)
    if FAULT != "float64":
        inputs = inputs.astype("float32")
    dtype = "float64" if FAULT == "float64" else "float32"
    parameters = {
        "first": jnp.asarray(generator.normal(size=(32, 64)) * 0.1, dtype),
        "last": jnp.asarray(generator.normal(size=(64, 10)) * 0.01, dtype),
    }
    if FAULT == "not a number":
        parameters["last"] = parameters["last"] * jnp.inf
    for number in range(400):
        rows = slice(number * 64 % 512, number * 64 % 512 + 64)
        parameters, loss = step(parameters, inputs[rows], labels[rows])
        accuracy = 1 - loss
        print(f"step {number} loss {float(loss):.9f}, not accuracy {float(accuracy):.9f}")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
