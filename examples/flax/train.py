"""Train a small convolutional net with Flax and Optax on scikit-learn's digits."""

import time

import jax
import optax
from flax import nnx
from jax import numpy as jnp
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

EPOCHS = 12
BATCH = 64


class Net(nnx.Module):
    """Two convolutions and a linear layer, over images of 8 by 8 pixels."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.linear = nnx.Linear(32 * 4 * 4, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the scores of each class."""
        values = nnx.relu(self.conv2(nnx.relu(self.conv1(images))))
        values = nnx.max_pool(values, (2, 2), (2, 2))
        return self.linear(values.reshape(len(values), -1))


def loss_of(net: Net, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(net(images), labels).mean()


@nnx.jit
def step(net: Net, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> None:
    """Update the net by one batch."""
    optimizer.update(net, nnx.grad(loss_of)(net, images, labels))


@nnx.jit
def evaluate(net: Net, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy."""
    return loss_of(net, images, labels), (net(images).argmax(1) == labels).mean()


def main() -> int:
    """Train; return 1 if the net did not learn."""
    digits = load_digits()
    split = train_test_split(
        digits.data.astype("float32").reshape(-1, 8, 8, 1) / 16,
        digits.target,
        test_size=0.2,
        random_state=0,
    )
    images, test_images, labels, test_labels = map(jnp.asarray, split)
    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(2e-3), wrt=nnx.Param)
    before, _ = evaluate(net, test_images, test_labels)
    started = time.perf_counter()
    key = jax.random.key(0)
    full = len(images) // BATCH * BATCH
    for _ in range(EPOCHS):
        key, drawn = jax.random.split(key)
        for batch in jax.random.permutation(drawn, len(images))[:full].reshape(-1, BATCH):
            step(net, optimizer, images[batch], labels[batch])
    after, accuracy = evaluate(net, test_images, test_labels)
    device = jax.devices()[0].platform
    print(f"device {device}, jax {jax.__version__}, {time.perf_counter() - started:.1f} s")
    print(f"loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.3f}")
    return 0 if after < before and accuracy > 0.9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
