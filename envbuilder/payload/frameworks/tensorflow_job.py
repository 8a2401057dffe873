"""Training of the network in TensorFlow: a step is traced once, then runs as a graph.

Dropout and the optimizer's update are TensorFlow's own operations. Keras, which is built on them,
is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..training import model
from ..training.dataset import SIDE
from ..training.train import DEVIATION, EPSILON, GAMMA, LEARNING_RATE, MEAN, RHO
from .numpy_ import NumpyFramework, NumpyJob

if TYPE_CHECKING:
    from ..interface import Tensors

Batch = Tuple[Any, Any]
"""Images, normalised, (N, 28, 28, 1), and their labels."""


def normalise(tensorflow: Any, images: Any) -> Any:
    """Convert bytes (N, 28, 28) to float32 (N, 28, 28, 1), normalized as in training.

    The values are normalized by MNIST's mean and standard deviation.
    """
    values = (tensorflow.cast(images, tensorflow.float32) / 255 - MEAN) / DEVIATION
    return tensorflow.reshape(values, [-1, SIDE, SIDE, 1])


def drop(tensorflow: Any, values: Any, share: float, seed: Any) -> Any:
    """Set each value to 0 with probability ``share``, and divide the others by 1 - ``share``.

    The two integers in ``seed`` determine the random numbers. If ``seed`` is None, nothing is
    dropped.
    """
    if seed is None:
        return values
    # Each device has this algorithm; "auto_select" differs between them.
    return tensorflow.nn.experimental.stateless_dropout(values, share, seed, rng_alg="philox")


def loss_of(tensorflow: Any, scores: Any, labels: Any) -> Any:
    """Return the mean negative log-probability of the correct labels."""
    losses = tensorflow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tensorflow.reduce_mean(losses)


def place_of(tensor: Any) -> str:
    """Return the device whose memory holds a tensor.

    For a variable, TensorFlow calls it the backing device.
    """
    return str(getattr(tensor, "backing_device", None) or tensor.device)


class Network:
    """The network's variables on a device, by name, with the shapes in ``training.model``."""

    def __init__(self, tensorflow: Any, place: str, weights: Dict[str, Any]) -> None:
        self.tensorflow = tensorflow
        self.place = place
        self.batch = ([None, SIDE, SIDE, 1], tensorflow.float32), ([None], tensorflow.int64)
        """Shapes and dtypes of a batch of any size."""
        with tensorflow.device(place):
            self.variables = {
                name: tensorflow.Variable(value, name=name.replace(".", "_"))
                for name, value in weights.items()
            }

    def traced(self, function: Callable[..., Any], *signature: Any) -> Any:
        """Return ``function`` as a TensorFlow function that runs on the device.

        It is traced only once, for all batch sizes.
        """

        def on_device(*arguments: Any) -> Any:
            with self.tensorflow.device(self.place):
                return function(*arguments)

        specs = [self.tensorflow.TensorSpec(*spec) for spec in signature]
        return self.tensorflow.function(on_device, input_signature=specs, autograph=False)

    def activations(self, images: Any, seeds: Optional[Sequence[Any]] = None) -> List[Any]:
        """Return each layer's output. The last output contains the scores before log_softmax.

        ``seeds`` contains one seed for each of the two dropouts. Without seeds, nothing is dropped,
        as in evaluation mode.
        """
        nn = self.tensorflow.nn
        variables = self.variables
        first_seed, second_seed = seeds or (None, None)
        first = nn.conv2d(images, variables["conv1.weight"], 1, "VALID")
        first = nn.relu(nn.bias_add(first, variables["conv1.bias"]))
        second = nn.conv2d(first, variables["conv2.weight"], 1, "VALID")
        second = nn.relu(nn.bias_add(second, variables["conv2.bias"]))
        pooled = nn.max_pool2d(second, 2, 2, "VALID")
        dropped = drop(self.tensorflow, pooled, model.SHARES[0], first_seed)
        flat = self.tensorflow.reshape(dropped, [-1, model.WEIGHTS["fc1"][0]])
        third = self.tensorflow.linalg.matmul(flat, variables["fc1.weight"])
        third = nn.relu(nn.bias_add(third, variables["fc1.bias"]))
        thinned = drop(self.tensorflow, third, model.SHARES[1], second_seed)
        scores = self.tensorflow.linalg.matmul(thinned, variables["fc2.weight"])
        scores = nn.bias_add(scores, variables["fc2.bias"])
        return [first, second, pooled, dropped, third, thinned, scores]

    def differentiate(
        self, images: Any, labels: Any, seeds: Sequence[Any]
    ) -> Tuple[Any, List[Any], List[Any]]:
        """Return the mean loss, the gradient for each variable, and each layer's output."""
        with self.tensorflow.GradientTape() as tape:
            outputs = self.activations(images, seeds)
            loss = loss_of(self.tensorflow, outputs[-1], labels)
        return loss, tape.gradient(loss, list(self.variables.values())), outputs


class Job(NumpyJob):
    """One training run on one device."""

    def __init__(self, framework: NumpyFramework, tensorflow: Any, place: str, seed: int) -> None:
        self.framework = framework
        self._tensorflow = tensorflow
        self._place = place
        self._seed = seed
        # Drawn on the CPU, so that the order of images is the same on every device.
        self._generator = framework.numpy.random.default_rng(seed)
        self._shuffled: Optional[Batch] = None
        self._steps = 0
        self.network = Network(tensorflow, place, model.initial(framework.numpy, seed))
        with tensorflow.device(place):
            self._rate = tensorflow.Variable(LEARNING_RATE, dtype=tensorflow.float32)
            self._means = [
                tuple(tensorflow.Variable(tensorflow.zeros_like(value)) for _ in range(2))
                for value in self.network.variables.values()
            ]
        scalar: Any = [], tensorflow.int32
        self._update = self.network.traced(
            lambda images, labels, first, end, number: self._update_all(
                images[first:end], labels[first:end], number
            )[0],
            *self.network.batch,
            *[scalar] * 3,
        )
        self._classify = self.network.traced(
            lambda images: tensorflow.nn.log_softmax(self.network.activations(images)[-1]),
            self.network.batch[0],
        )

    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch by shuffling and normalizing the images."""
        count = len(data.labels)
        with self._tensorflow.device(self._place):
            self.order = self._tensorflow.constant(self._generator.permutation(count))
            # In this order, because gathering bytes is not offered on each device.
            images = normalise(self._tensorflow, data.images)
            gather = self._tensorflow.gather
            self._shuffled = gather(images, self.order), gather(data.labels, self.order)

    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images and return its loss."""
        assert self._shuffled is not None
        return self._run(self._update, self._shuffled, first, first + count)

    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does, and return the loss and the dropout masks.

        The masks are derived from the step's seeds.
        """
        tensorflow = self._tensorflow
        with tensorflow.device(self._place):
            drawn = zip(model.DROPPED, model.SHARES, self._seeds(self._steps + 1))  # noqa: B905
            masks = [
                drop(tensorflow, tensorflow.ones([count, *shape]), share, seed) != 0
                for shape, share, seed in drawn
            ]
        return self.step(first, count), masks

    def snapshot(self) -> List[Any]:
        """Return copies of each parameter and its Adadelta averages.

        The copies stay on the device.
        """
        variables = dict(zip(self.network.variables, self._means))  # noqa: B905 - Python 3.8
        with self._tensorflow.device(self._place):
            copies: List[Any] = []
            for name in model.NAMES:
                parts = (self.network.variables[name], *variables[name])
                copies += map(self._tensorflow.identity, parts)
            return copies

    def train(self, batch: Batch) -> Any:
        """Train on a batch and return its loss."""
        return self._run(self._update, batch, 0, len(batch[1]))

    def census(self, batch: Batch) -> List[Tuple[str, str]]:
        """Train on a batch, operator by operator. Return each tensor's device type and dtype."""
        spec = self._tensorflow.DeviceSpec
        with self._tensorflow.device(self._place):
            loss, gradients, outputs = self._run(self._update_all, batch)
        return [
            (str(spec.from_string(place_of(tensor)).device_type), str(tensor.dtype.name))
            for tensor in (loss, *gradients, *outputs, *self.network.variables.values())
        ]

    def _run(self, update: Callable[..., Any], batch: Batch, *bounds: int) -> Any:
        self._steps += 1
        return update(*batch, *bounds, self._steps)

    def _seeds(self, number: Any) -> List[Any]:
        """Return the seeds of the two dropouts in step ``number``, derived from the job's seed."""
        numbers = [(2 * self._seed + layer) % (1 << 31) for layer in range(2)]
        return [self._tensorflow.stack([number, layer]) for layer in numbers]

    def _update_all(
        self, images: Any, labels: Any, number: Any
    ) -> Tuple[Any, List[Any], List[Any]]:
        loss, gradients, outputs = self.network.differentiate(images, labels, self._seeds(number))
        variables = self.network.variables.values()
        for variable, means, gradient in zip(variables, self._means, gradients):  # noqa: B905
            self._tensorflow.raw_ops.ResourceApplyAdadelta(
                var=variable.handle,
                accum=means[0].handle,
                accum_update=means[1].handle,
                lr=self._rate,
                rho=RHO,
                epsilon=EPSILON,
                grad=gradient,
            )
        return loss, gradients, outputs

    def decay(self) -> None:
        """Reduce the learning rate at the end of an epoch."""
        with self._tensorflow.device(self._place):
            self._rate.assign(self._rate * GAMMA)

    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Fetch all losses from the device at once, and return them as numbers."""
        with self._tensorflow.device(self._place):
            return list(self._tensorflow.stack(list(losses)).numpy().tolist())

    def classify(self, images: Any) -> Any:
        """Return the log-probabilities of normalized images."""
        return self._classify(images)
