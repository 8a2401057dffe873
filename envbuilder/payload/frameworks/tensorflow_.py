"""TensorFlow, judged through steps that are traced once and run as graphs."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ..interface import Measurement, Step, Tensors
from ..machine import importing, memory
from ..machine import threads as thread_counts
from ..numerics import precision
from ..numerics.numerics import Step as Differentiated
from ..training.dataset import SIDE
from . import tensorflow_bandwidth, tensorflow_device, tensorflow_job, tensorflow_profiling
from .numpy_ import NumpyFramework
from .tensorflow_job import Batch, Differentiation, Job
from .tensorflow_operators import TensorFlowOperators

if TYPE_CHECKING:
    from ..interface import Split

PROFILED_STEPS = 3
MOST_SEEDS = 1 << 30

AUTOCAST = "auto_mixed_precision"
"""Beginning of the names of graph rewriters that lower the precision of operations."""

QUIET = "2"
"""Errors are logged, but no warnings: TensorFlow logs dozens of lines that need no action."""


def load(accelerator: str, threads: Optional[int]) -> TensorFlow:
    """Import TensorFlow and set what can be set only before it is used."""
    importing.require_nodes(accelerator)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", QUIET)
    tensorflow = importing.limited("tensorflow")
    config = tensorflow.config
    count = threads or thread_counts.chosen_by_user(os.environ.get("OMP_NUM_THREADS"))
    if count:
        config.threading.set_intra_op_parallelism_threads(count)
        # One operation after the other: this network has none that could run side by side.
        config.threading.set_inter_op_parallelism_threads(1)
    # An operation that the device lacks is an error, instead of work of the CPU.
    config.set_soft_device_placement(False)
    gpus = config.list_physical_devices("GPU")
    if accelerator == "cpu":
        config.set_visible_devices([], "GPU")
    else:
        for gpu in gpus:
            # Otherwise all of its memory is reserved, and growth tells nothing.
            config.experimental.set_memory_growth(gpu, True)
    return TensorFlow(tensorflow, accelerator)


class TensorFlow(NumpyFramework):
    """An imported TensorFlow that is to use one accelerator."""

    name = "tensorflow"
    deterministic = "tf.config.experimental.enable_op_determinism()"

    def __init__(self, tensorflow: Any, accelerator: str) -> None:
        self.tensorflow, self.accelerator = tensorflow, accelerator
        self.numpy = importing.limited("numpy")
        self.version = str(tensorflow.__version__)
        self.place = tensorflow_device.place(accelerator)
        self._compared: Optional[Differentiation] = None
        """A network that is compared with numpy's: it is traced once, and used for each step."""

    def on_cpu(self) -> TensorFlow:
        """Return TensorFlow for the CPU."""
        return TensorFlow(self.tensorflow, "cpu")

    def facts(self) -> Dict[str, Optional[str]]:
        """Return version, build and the version of the build's runtime."""
        return tensorflow_device.facts(self.tensorflow)

    def threads(self) -> Dict[str, Optional[int]]:
        """Return the threads of an operator and across operators; None if TensorFlow decides."""
        threading = self.tensorflow.config.threading
        return {
            "framework": threading.get_intra_op_parallelism_threads() or None,
            "interop": threading.get_inter_op_parallelism_threads() or None,
        }

    def require_build(self) -> str:
        """Return a sentence on the build; raise CheckError if it cannot drive the accelerator."""
        return tensorflow_device.require_build(self.tensorflow, self.accelerator)

    def require_usable(self) -> str:
        """Compute on the device and compare; raise CheckError with the reason if this fails."""
        return tensorflow_device.require_usable(self.tensorflow, self.accelerator)

    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory, driver and architecture."""
        return tensorflow_device.describe(self.tensorflow, self.accelerator)

    def device_type(self) -> str:
        """Return "CPU" or "GPU"."""
        return tensorflow_device.device_type(self.accelerator)

    def why_not(self, error: BaseException) -> str:
        """Return a sentence on an error that says that the build lacks a kernel; else empty."""
        return tensorflow_device.lacks_kernel(error)

    def allocated(self) -> Optional[int]:
        """Return the bytes that TensorFlow holds on a GPU."""
        return tensorflow_device.counted(self.tensorflow, self.accelerator, "current")

    def peak(self) -> Optional[int]:
        """Return their maximum; on the CPU, the peak size of the process."""
        if self.accelerator == "cpu":
            return memory.process_peak()
        return tensorflow_device.counted(self.tensorflow, self.accelerator, "peak")

    def wait(self, result: Any = None) -> None:
        """Wait until all devices have finished."""
        tensorflow_device.waiter(self.tensorflow)(result)

    def state_precision(self, stated: str) -> None:
        """Switch TF32 off, which TensorFlow uses by default, unless it is stated."""
        if stated == "float32":
            self.tensorflow.config.experimental.enable_tensor_float_32_execution(False)

    def precision(self) -> Dict[str, Any]:
        """Return the settings in effect: those of matmuls and convolutions are the same."""
        config = self.tensorflow.config
        lowered = config.experimental.tensor_float_32_execution_enabled()
        rewriters = config.optimizer.get_experimental_options()
        return {
            "dtype": "float32",
            "matmul": "high" if lowered else "highest",
            "autocast": any(on for name, on in rewriters.items() if name.startswith(AUTOCAST)),
            "cuda_tf32": self.accelerator == "cuda" and bool(lowered),
            "environment": precision.lowering(os.environ),
        }

    def hold(self, split: Split) -> Tensors:
        """Copy a split to the device: images as bytes (N, 28, 28), labels as int64 (N)."""
        labels = self.numpy.frombuffer(split.labels, self.numpy.uint8)[: split.count]
        images = self.images(split.images[: split.count * SIDE * SIDE])
        return Tensors(images, self.put(labels.astype(self.numpy.int64)))

    def images(self, content: bytes) -> Any:
        """Copy images to the device."""
        pixels = self.numpy.frombuffer(content, self.numpy.uint8)
        return self.put(pixels.reshape(-1, SIDE, SIDE))

    def put(self, value: Any) -> Any:
        """Copy numpy's array to the device."""
        return self.on_device(self.tensorflow.constant, value)

    def fetch(self, array: Any) -> Any:
        """Return a tensor as numpy's."""
        return array.numpy()

    def normalise(self, images: Any) -> Any:
        """Convert bytes to float32, as the training does."""
        return tensorflow_job.normalise(self.tensorflow, images)

    def batches(self, data: Tensors, count: int) -> List[Batch]:
        """Return the first batches, normalised, with labels; small data are repeated."""
        batches: List[Batch] = self.on_device(super().batches, data, count)
        return batches

    def on_device(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function whose operations run on the device."""
        with self.tensorflow.device(self.place):
            return function(*arguments)

    def job(self, seed: int) -> Job:
        """Prepare a new network and optimizer on the device."""
        return Job(self.tensorflow, self.place, seed % MOST_SEEDS)

    def observe(self, job: Any, batch: Any) -> Step:
        """Train operator by operator and look at the tensors, then as a graph, profiled."""
        census = job.census(batch)
        observation = tensorflow_profiling.observe(
            self.tensorflow, partial(self._train, job, batch)
        )
        return Step(tuple(sorted(census.devices)), tuple(sorted(census.dtypes)), observation)

    def _train(self, job: Job, batch: Batch) -> None:
        for _ in range(PROFILED_STEPS):
            job.train(batch)
        self.wait()

    def operators(self) -> TensorFlowOperators:
        """Return the operators, which run one by one."""
        return TensorFlowOperators(self.tensorflow, self.place)

    def backward(self, weights: Dict[str, Any], images: Any, labels: Any) -> Differentiated:
        """Run a step of the traced network without dropout; weights are assigned in place."""
        if self._compared is None:
            self._compared = Differentiation(self.tensorflow, self.place)
        loss, gradients = self._compared(weights, images, labels)
        return Differentiated(loss, gradients)

    def dropouts(self, count: int, share: float) -> List[Tuple[List[float], List[float]]]:
        """Try TensorFlow's dropout, with a seed and without one."""
        values = self.put(self.numpy.ones(count, self.numpy.float32))
        drop = partial(self.on_device, tensorflow_job.drop, self.tensorflow, values, share)
        return [(drop([1, 2]).numpy().tolist(), drop(None).numpy().tolist())]

    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random matrices."""
        # Random numbers: on GPUs, products of constants take less power and thus less time.
        draw = partial(self.on_device, self.tensorflow.random.stateless_uniform, [size, size])
        left, right = (
            self.on_device(self.tensorflow.cast, draw([1, number]), dtype) for number in range(2)
        )
        return partial(self.on_device, self.tensorflow.linalg.matmul, left, right)

    def smallest(self) -> Callable[[], Any]:
        """Return a function that adds 1 to one number."""
        number, step = self.on_device(self.tensorflow.Variable, [0.0]), self.put([1.0])
        add = self.tensorflow.raw_ops.AssignAddVariableOp
        return partial(self.on_device, partial(add, resource=number.handle, value=step))

    def bandwidths(self, budget: float) -> Dict[str, Measurement]:
        """Return the paths of memory and what measures each."""
        return tensorflow_bandwidth.measurements(self.tensorflow, self.accelerator, budget)
