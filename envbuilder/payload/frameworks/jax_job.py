"""Training in JAX: the functions compiled for a device, and the state kept on the device.

Images have the shape (N, 28, 28, 1), and weights have the shapes in ``training.model``. On the CPU,
XLA computes convolutions of channels-last images no slower than of channels-first images (versions
0.10.2 and 0.12.0.1).
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from ..training import model
from ..training.model import DROPPED, SHARES
from ..training.train import DEVIATION, EPSILON, GAMMA, LEARNING_RATE, MEAN, RHO
from .numpy_ import NumpyFramework, NumpyJob

if TYPE_CHECKING:
    from ..interface import Tensors

IMAGES = ("NHWC", "HWIO", "NHWC")


class State(NamedTuple):
    """The state that a training step replaces: parameters, Adadelta's two averages, random key."""

    weights: Dict[str, Any]
    squares: Dict[str, Any]
    changes: Dict[str, Any]
    key: Any


class Programs:
    """The compiled functions for a device, shared by all jobs on the device."""

    def __init__(self, jax: Any) -> None:
        self.jax = jax
        self._numpy = jax.numpy
        self._steps: Dict[int, Any] = {}
        self.normalise = jax.jit(self._normalise)
        self.shuffle = jax.jit(self._shuffle)
        # Compiled for any first index; an array's own slices would be for one each.
        self.cut = jax.jit(jax.lax.dynamic_slice_in_dim, static_argnums=2)
        self.classify = jax.jit(lambda weights, images: self._network(weights, images, None)[0])
        self.witnesses = jax.jit(jax.value_and_grad(self._loss, has_aux=True))
        self.masks = jax.jit(self._masks, static_argnums=1)

    def step(self, state: State, images: Any, labels: Any, rate: Any) -> Any:
        """Return the training step for batches of this size, compiled on first use.

        Running the step reuses the old state's memory for the new state.
        """
        size = len(labels)
        if size not in self._steps:
            lowered = self.jax.jit(self._step, donate_argnums=0).lower(state, images, labels, rate)
            self._steps[size] = lowered.compile()
        return self._steps[size]

    def _normalise(self, images: Any) -> Any:
        return ((images.astype(self._numpy.float32) / 255 - MEAN) / DEVIATION)[..., None]

    def _shuffle(self, images: Any, labels: Any, key: Any) -> Tuple[Any, Any, Any]:
        """Return the images, normalized and in random order, their labels, and the random order."""
        order = self.jax.random.permutation(key, len(labels))
        return self._normalise(images[order]), labels[order], order

    def _network(self, weights: Dict[str, Any], images: Any, key: Any) -> Tuple[Any, List[Any]]:
        """Return the log-probabilities and a list of all activations.

        If ``key`` is None, dropout is off.
        """
        relu = self.jax.nn.relu
        keys = (None, None) if key is None else self.jax.random.split(key)
        first = relu(self._convolve(images, weights["conv1.weight"]) + weights["conv1.bias"])
        second = relu(self._convolve(first, weights["conv2.weight"]) + weights["conv2.bias"])
        pooled = self._drop(self._pool(second), SHARES[0], keys[0])
        third = relu(pooled.reshape(len(images), -1) @ weights["fc1.weight"] + weights["fc1.bias"])
        scores = self._drop(third, SHARES[1], keys[1]) @ weights["fc2.weight"] + weights["fc2.bias"]
        result = self.jax.nn.log_softmax(scores)
        return result, [first, second, pooled, third, scores, result]

    def _loss(
        self, weights: Dict[str, Any], images: Any, labels: Any, key: Any
    ) -> Tuple[Any, List[Any]]:
        log_probabilities, activations = self._network(weights, images, key)
        of_labels = self._numpy.take_along_axis(log_probabilities, labels[:, None], axis=1)
        return -of_labels.mean(), activations

    def _convolve(self, images: Any, weight: Any) -> Any:
        """Return the convolution of images with a weight. No bias is added."""
        convolve = self.jax.lax.conv_general_dilated
        return convolve(images, weight, (1, 1), "VALID", dimension_numbers=IMAGES)

    def _pool(self, images: Any) -> Any:
        """Return the maximum of each 2 by 2 window of the images."""
        size = (1, 2, 2, 1)
        lax = self.jax.lax
        return lax.reduce_window(images, -self._numpy.inf, lax.max, size, size, "VALID")

    def _drop(self, values: Any, share: float, key: Any) -> Any:
        """Set each value to 0 with probability ``share``, and divide the others by 1 - ``share``.

        If ``key`` is None, return the values unchanged.
        """
        if key is None:
            return values
        kept = self.jax.random.bernoulli(key, 1 - share, values.shape)
        return self._numpy.where(kept, values / (1 - share), 0)

    def _masks(self, key: Any, count: int) -> List[Any]:
        """Return the dropout masks of a step with this key for ``count`` images.

        The masks are true for the values that the step keeps.
        """
        keys = self.jax.random.split(self.jax.random.split(key)[1])
        ones = [self._numpy.ones((count, *shape)) for shape in DROPPED]
        kept = [self._drop(*each) for each in zip(ones, SHARES, keys)]  # noqa: B905 - Python 3.8
        return [values != 0 for values in kept]

    def _step(self, state: State, images: Any, labels: Any, rate: Any) -> Tuple[State, Any]:
        """Run one step of Adadelta. Return the new state and the mean loss before the update."""
        following, used = self.jax.random.split(state.key)
        (loss, _), gradients = self.jax.value_and_grad(self._loss, has_aux=True)(
            state.weights, images, labels, used
        )
        root = self._numpy.sqrt
        weights = {}
        squares = {}
        changes = {}
        for name, gradient in gradients.items():
            square = squares[name] = RHO * state.squares[name] + (1 - RHO) * gradient**2
            before = state.changes[name]
            change = root(before + EPSILON) / root(square + EPSILON) * gradient
            changes[name] = RHO * before + (1 - RHO) * change**2
            weights[name] = state.weights[name] - rate * change
        return State(weights, squares, changes, following), loss


Batch = Tuple[Any, Any]
"""Images, normalised, and their labels."""


class Job(NumpyJob):
    """One training run on a device."""

    def __init__(self, framework: NumpyFramework, programs: Programs, seed: int) -> None:
        self.framework = framework
        self._programs = programs
        random = programs.jax.random
        numpy = framework.numpy
        weights = model.initial(numpy, seed)
        zeros = {name: numpy.zeros_like(value) for name, value in weights.items()}
        shuffling, dropping = random.split(random.key(seed))
        self._shuffling = framework.put(shuffling)
        self.state: State = framework.put(State(weights, zeros, zeros, dropping))
        self._rate = framework.put(numpy.float32(LEARNING_RATE))
        self._shuffled: Optional[Batch] = None

    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch by shuffling the images, in a random order drawn on the device."""
        self._shuffling, used = self._programs.jax.random.split(self._shuffling)
        images, labels, self.order = self._programs.shuffle(data.images, data.labels, used)
        self._shuffled = images, labels

    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images and return its loss."""
        assert self._shuffled is not None
        images, labels = (self.framework.cut(part, first, count) for part in self._shuffled)
        return self.train((images, labels))

    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does, and return the loss and the dropout masks.

        The masks are derived from the step's key.
        """
        masks = self._programs.masks(self.state.key, count)
        return self.step(first, count), masks

    def snapshot(self) -> List[Any]:
        """Return copies of each parameter and its Adadelta averages.

        Copies are needed because a training step reuses the memory of its arguments.
        """
        copy = self._programs.jax.numpy.copy
        return [copy(part[name]) for name in model.NAMES for part in self.state[:3]]

    def train(self, batch: Batch) -> Any:
        """Train on a batch and return its loss."""
        self.state, loss = self.executable(batch)(self.state, *batch, self._rate)
        return loss

    def executable(self, batch: Batch) -> Any:
        """Return the compiled training step for batches of this size."""
        return self._programs.step(self.state, *batch, self._rate)

    def decay(self) -> None:
        """Reduce the learning rate at the end of an epoch."""
        self._rate = self._rate * GAMMA

    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Fetch all losses from the device at once, and return them as numbers."""
        return [*map(float, self._programs.jax.device_get(list(losses)))]

    def classify(self, images: Any) -> Any:
        """Return the log-probabilities of normalized images."""
        return self._programs.classify(self.state.weights, images)
