"""TensorFlow, judged through steps that are traced once and run as graphs."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ..machine import importing, memory
from ..numerics import precision, reference
from ..numerics.numerics import SEED
from ..numerics.numerics import Step as Differentiated
from ..training import layers
from ..training.dataset import SIDE
from ..training.train import BATCH
from . import (
    interface,
    tensorflow_bandwidth,
    tensorflow_device,
    tensorflow_job,
    tensorflow_operators,
    tensorflow_profiling,
)
from .interface import Measurement, Step, Tensors

if TYPE_CHECKING:
    from ..numerics.arithmetic import Errors
    from ..numerics.numerics import Comparison
    from ..training.dataset import Split

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
    if threads is not None:
        config.threading.set_intra_op_parallelism_threads(threads)
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


class TensorFlow(interface.Framework):
    """An imported TensorFlow that is to use one accelerator."""

    name = "tensorflow"
    deterministic = "tf.config.experimental.enable_op_determinism()"

    def __init__(self, tensorflow: Any, accelerator: str) -> None:
        self.tensorflow, self.accelerator = tensorflow, accelerator
        self.version = str(tensorflow.__version__)
        self.place = tensorflow_device.place(accelerator)

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
        import numpy

        labels = numpy.frombuffer(split.labels, dtype=numpy.uint8)[: split.count]
        with self.tensorflow.device(self.place):
            held = self.tensorflow.constant(labels.astype(numpy.int64))
            return Tensors(self.images(split.images[: split.count * SIDE * SIDE]), held)

    def images(self, content: bytes) -> Any:
        """Copy images to the device."""
        import numpy

        pixels = numpy.frombuffer(content, dtype=numpy.uint8).reshape(-1, SIDE, SIDE)
        with self.tensorflow.device(self.place):
            return self.tensorflow.constant(pixels)

    def content(self, array: Any) -> bytes:
        """Return a tensor's integers as unsigned bytes, copied back from the device."""
        copied: bytes = array.numpy().astype("uint8").tobytes()
        return copied

    def batches(self, data: Tensors, count: int) -> List[tensorflow_job.Batch]:
        """Return the first batches, normalised, with labels; small data are repeated."""
        full = max(1, len(data.labels) // BATCH)
        cuts = [slice(n % full * BATCH, (n % full + 1) * BATCH) for n in range(count)]
        with self.tensorflow.device(self.place):
            return [
                (tensorflow_job.normalise(self.tensorflow, data.images[cut]), data.labels[cut])
                for cut in cuts
            ]

    def job(self, seed: int) -> tensorflow_job.Job:
        """Prepare a new network and optimizer on the device."""
        return tensorflow_job.Job(self.tensorflow, self.place, seed % MOST_SEEDS)

    def observe(self, job: Any, batch: Any) -> Step:
        """Train operator by operator and look at the tensors, then as a graph, profiled."""
        census = job.census(batch)
        observation = tensorflow_profiling.observe(
            self.tensorflow, partial(self._train, job, batch)
        )
        return Step(tuple(sorted(census.devices)), tuple(sorted(census.dtypes)), observation)

    def _train(self, job: tensorflow_job.Job, batch: tensorflow_job.Batch) -> None:
        for _ in range(PROFILED_STEPS):
            job.train(batch)
        self.wait()

    def norm(self, array: Any) -> float:
        """Return the Euclidean norm."""
        import numpy

        return float(numpy.linalg.norm(array))

    def largest(self, array: Any) -> float:
        """Return the largest absolute value."""
        return float(abs(array).max())

    def arithmetic(self, dtype: str, stated: str) -> Errors:
        """Run every case of ``plain_cases``."""
        return tensorflow_operators.errors(self.tensorflow, self.place, dtype, stated)

    def gradients(self, data: Tensors, count: int) -> Comparison:
        """Compare steps of the traced network, without dropout, with numpy in float64."""
        import numpy

        batches = [(images.numpy(), labels.numpy()) for images, labels in self.batches(data, count)]
        trials = reference.trials(numpy, batches)
        network = tensorflow_job.network(self.tensorflow, self.place, layers.initial(numpy, SEED))
        differentiate = tensorflow_job.differentiation(network, self.place)
        steps = []
        for trial in trials:
            for name, variable in network.variables.items():
                variable.assign(trial.weights[name])
            loss, gradients = differentiate(trial.images, trial.labels)
            exact = {
                name: gradient.numpy()
                for name, gradient in zip(network.variables, gradients)  # noqa: B905
            }
            steps.append(Differentiated(float(loss), exact))
        return reference.compare(numpy, steps, trials)

    def dropouts(self, count: int, share: float) -> List[Tuple[List[float], List[float]]]:
        """Try TensorFlow's dropout, with a seed and without one."""
        with self.tensorflow.device(self.place):
            values = self.tensorflow.ones([count])
            drop = partial(tensorflow_job.drop, self.tensorflow, values, share)
            return [(drop([1, 2]).numpy().tolist(), drop(None).numpy().tolist())]

    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random matrices."""
        random = self.tensorflow.random.stateless_uniform
        with self.tensorflow.device(self.place):
            # Random numbers: on GPUs, products of constants take less power and thus less time.
            left, right = (
                self.tensorflow.cast(random([size, size], [1, number]), dtype)
                for number in range(2)
            )
        return partial(self._on_device, self.tensorflow.linalg.matmul, left, right)

    def _on_device(self, operator: Callable[..., Any], *arguments: Any) -> Any:
        with self.tensorflow.device(self.place):
            return operator(*arguments)

    def smallest(self) -> Callable[[], Any]:
        """Return a function that adds 1 to one number."""
        with self.tensorflow.device(self.place):
            number, step = self.tensorflow.Variable([0.0]), self.tensorflow.constant([1.0])
        add = self.tensorflow.raw_ops.AssignAddVariableOp
        return partial(self._on_device, partial(add, resource=number.handle, value=step))

    def bandwidths(self, budget: float) -> Dict[str, Measurement]:
        """Return the paths of memory and what measures each."""
        return tensorflow_bandwidth.measurements(self.tensorflow, self.accelerator, budget)
