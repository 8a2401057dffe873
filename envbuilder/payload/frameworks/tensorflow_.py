"""TensorFlow, verified with training steps that are traced once and run as graphs.

TensorFlow's profiler shows what ran, and where. It writes one *plane* for the host and one for each
GPU. On the host, TensorFlow's executor names each operation together with the kernel that it
called. This is the kernel that really ran, after all rewriting of the graph, so the names show the
kernels of oneDNN (``_MklNativeConv2D``) and of plug-ins. On a GPU, events are taken from the
driver's own records (CUPTI) and show that the GPU itself ran something. An operation that only
launches a kernel on a GPU is on the host's plane. That plane does not record which device holds a
tensor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
)

from ..interface import Observation, Step, Tensors
from ..machine import hardware, threads as thread_counts
from ..machine.accelerators import ACCELERATORS
from ..machine.device import (
    first_line,
    limited,
    require_nodes,
    require_undisguised,
    without_kernel,
)
from ..numerics import precision
from ..report import CheckError
from . import tensorflow_job
from .numpy_ import NumpyFramework


@dataclass(frozen=True)
class Row:
    """TensorFlow's device type for an accelerator, and the build and driver that this requires."""

    device: str
    """Its type of device."""
    flag: str = ""
    """Entry of the build's description that says that the build drives it; the CPU needs none."""
    install: str = ""
    """The build to install for it, in words."""
    driver: Callable[[], Optional[str]] = lambda: None
    """The version of the kernel driver; None if none is loaded."""


ROWS = {
    "cpu": Row("CPU"),
    "cuda": Row("GPU", "is_cuda_build", "tensorflow[and-cuda]", hardware.nvidia_driver),
    "rocm": Row("GPU", "is_rocm_build", "a ROCm build from AMD", hardware.amdgpu_driver),
}
"""No version of TensorFlow that is still maintained drives the others (tensorflow#84167, #91)."""

SIZE = 1 << 20
SEEDS = 1 << 30
"""Number of different seeds: TensorFlow's are 32-bit integers, which training adds to."""

AUTOCAST = "auto_mixed_precision"
"""Beginning of the names of graph rewriters that lower the precision of operations."""

DEVICE = "/device:"
"""Beginning of the names of the profiler's planes, but of the host's and its own."""

QUIET = "2"
"""Errors are logged, but no warnings: TensorFlow logs dozens of lines that need no action."""


def load(accelerator: str, threads: Optional[int]) -> TensorFlow:
    """Import TensorFlow, apply the settings that must precede its use, and return it."""
    require_nodes(accelerator)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", QUIET)
    tensorflow = limited("tensorflow")
    config = tensorflow.config
    count = threads or thread_counts.chosen_by_user(os.environ.get("OMP_NUM_THREADS"))
    if count:
        config.threading.set_intra_op_parallelism_threads(count)
        # One operation after the other: this network has none that could run side by side.
        config.threading.set_inter_op_parallelism_threads(1)
    # An operation that the device lacks is an error, instead of work of the CPU.
    config.set_soft_device_placement(False)
    if accelerator == "cpu":
        config.set_visible_devices([], "GPU")
    else:
        for gpu in config.list_physical_devices("GPU"):
            # Otherwise all of its memory is reserved, and growth tells nothing.
            config.experimental.set_memory_growth(gpu, True)
    return TensorFlow(tensorflow, accelerator)


class TensorFlow(NumpyFramework):
    """An imported TensorFlow for use with one accelerator."""

    name = "tensorflow"
    label_type = "int64"

    def __init__(self, tensorflow: Any, accelerator: str) -> None:
        self.tensorflow = tensorflow
        self.accelerator = accelerator
        self.numpy = limited("numpy")
        self.version = str(tensorflow.__version__)
        self.place = f"/device:{self.device_type()}:0"

    def on_cpu(self) -> TensorFlow:
        """Return an instance that uses the same imported TensorFlow on the CPU."""
        return TensorFlow(self.tensorflow, "cpu")

    @property
    def build(self) -> Mapping[str, Any]:
        """TensorFlow's build information. Only GPU builds include libraries and versions in it."""
        return dict(self.tensorflow.sysconfig.get_build_info())

    def facts(self) -> Dict[str, Optional[str]]:
        """Return TensorFlow's version, its build, and the version of the build's runtime.

        The build is, for example, "cpu", "cu125" or "rocm6.2".
        """
        runtime = self.build.get("cuda_version") or self.build.get("rocm_version")
        build = "cpu"
        parts = str(runtime or "").split(".")
        if self.build.get("is_rocm_build"):
            build = "rocm" + ".".join(parts[:2])
        elif self.build.get("is_cuda_build"):
            build = "cu" + "".join(parts[:2])
        return {
            "version": self.version,
            "build": build,
            "runtime": str(runtime) if runtime else None,
        }

    def threads(self) -> Dict[str, Optional[int]]:
        """Return the numbers of threads within and across operators.

        A number is None if TensorFlow chooses it.
        """
        threading = self.tensorflow.config.threading
        return {
            "framework": threading.get_intra_op_parallelism_threads() or None,
            "interop": threading.get_inter_op_parallelism_threads() or None,
        }

    def require_build(self) -> str:
        """Return a sentence describing the build.

        Raise CheckError if the build cannot drive the accelerator.
        """
        accelerator = self.accelerator
        built = self.build
        name = f"tensorflow {self.version} is a {self.facts()['build']} build"
        row = ROWS.get(accelerator)
        if row is None:
            raise CheckError(
                f"{name}; no maintained build of TensorFlow drives {accelerator}: use another"
                " framework"
            )
        if not row.flag or built.get(row.flag):
            return f"{name}, which can drive {accelerator}"
        driven = [each for each, other in ROWS.items() if not other.flag or built.get(other.flag)]
        raise CheckError(
            f"{name} and cannot use {accelerator}; "
            f"install {row.install}, or verify with --device {driven[-1]}"
        )

    def require_usable(self) -> str:
        """Check that the device computes correctly, and return a sentence about the result.

        Raise CheckError if the device does not.
        """
        tensorflow = self.tensorflow
        numpy = self.numpy
        accelerator = self.accelerator
        require_undisguised(accelerator, os.environ)
        if not tensorflow.config.list_physical_devices(self.device_type()):
            raise CheckError(f"no {accelerator} device can be used: {self._why_none()}")
        numbers = numpy.arange(SIZE, dtype=numpy.float32)
        try:
            with tensorflow.device(self.place):
                # float32 is exact for integers below 2**24: the result must be equal, not close.
                returned = (tensorflow.constant(numbers) * 2 + 1).numpy()
        except (RuntimeError, ValueError, tensorflow.errors.OpError) as error:
            raise CheckError(f"{accelerator} cannot compute: {first_line(error)}") from error
        if not numpy.array_equal(returned, numbers * 2 + 1):
            raise CheckError(f"{accelerator} returned wrong numbers for x * 2 + 1 of whole numbers")
        text = f"{self.describe()['name']}: allocated, computed and read back"
        return "; ".join(filter(None, (text, self._runtime())))

    def _runtime(self) -> str:
        built = self.build
        driver = ROWS[self.accelerator].driver() or "unknown"
        if self.accelerator == "cuda":
            libraries = f"CUDA {built.get('cuda_version')}, cuDNN {built.get('cudnn_version')}"
            kernels = " ".join(built.get("cuda_compute_capabilities", ())) or "unknown GPUs"
            return f"built with {libraries} for {kernels}, driver {driver}"
        return f"driver {driver}" if self.accelerator == "rocm" else ""

    def _why_none(self) -> str:
        """Return a phrase that explains why TensorFlow lists no device.

        TensorFlow itself only logs the reason.
        """
        accelerator = self.accelerator
        row = ROWS[self.accelerator]
        driver = row.driver()
        if driver is None:
            return "no kernel driver is loaded"
        loaded = f"driver {driver} is loaded"
        hidden = [ACCELERATORS[accelerator].visible, *ACCELERATORS[accelerator].also_visible]
        for name in hidden:
            if name in os.environ:
                return f"{loaded}, and {name}={os.environ[name]} chooses the devices"
        libraries = Path(self.tensorflow.__file__).parent.parent / "nvidia" / "cudnn"
        if accelerator == "cuda" and not libraries.is_dir():
            return (
                f"{loaded}, but the environment has no cuDNN (package nvidia-cudnn);"
                f" install {row.install}"
            )
        return f"{loaded}, and TensorFlow lists no GPU; its log says why"

    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory, driver and architecture. Unknown values are None."""
        if self.accelerator == "cpu":
            return hardware.describe_cpu()
        config = self.tensorflow.config
        device = config.list_physical_devices(self.device_type())[0]
        details = config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        return {
            "name": details.get("device_name"),
            "memory_bytes": None,
            "driver": ROWS[self.accelerator].driver(),
            "capability": "sm_" + "".join(map(str, capability)) if capability else None,
        }

    def device_type(self) -> str:
        """Return "CPU" or "GPU", or the accelerator's id if TensorFlow has no name for it."""
        return ROWS[self.accelerator].device if self.accelerator in ROWS else self.accelerator

    def why_not(self, error: BaseException) -> str:
        """Return a sentence if the error means that the build lacks a kernel, or "" otherwise."""
        return without_kernel(error)

    def counted(self, what: str) -> Optional[int]:
        """Return the number of bytes allocated on a GPU, or its peak if ``what`` is "peak"."""
        counters = self.tensorflow.config.experimental.get_memory_info(f"{self.device_type()}:0")
        return int(counters["current" if what == "allocated" else what])

    def wait(self, result: Any = None) -> None:
        """Wait until all devices have finished."""
        self.tensorflow.test.experimental.sync_devices()

    def state_precision(self, stated: str) -> None:
        """Switch TF32, TensorFlow's default, off if ``stated`` is "float32"."""
        if stated == "float32":
            self.tensorflow.config.experimental.enable_tensor_float_32_execution(False)

    def precision(self) -> Dict[str, Any]:
        """Return the precision settings in effect. They apply to both matmuls and convolutions."""
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

    def put(self, value: Any) -> Any:
        """Copy a NumPy array to the device, and return the copy."""
        return self.on_device(self.tensorflow.constant, value)

    def fetch(self, array: Any) -> Any:
        """Return a tensor as a NumPy array."""
        return array.numpy()

    def normalise(self, images: Any) -> Any:
        """Convert image bytes to normalized float32 images, as in training."""
        return self.on_device(tensorflow_job.normalise, self.tensorflow, images)

    def batches(self, data: Tensors, count: int) -> List[tensorflow_job.Batch]:
        """Return the first ``count`` normalized batches and their labels.

        If the data contain fewer batches, they are repeated.
        """
        return list(self.on_device(super().batches, data, count))

    def on_device(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function so that its operations run on the device, and return its result."""
        with self.tensorflow.device(self.place):
            return function(*arguments)

    def job(self, seed: int) -> tensorflow_job.Job:
        """Prepare a new network and optimizer on the device, and return them as a job."""
        return tensorflow_job.Job(self, self.tensorflow, self.place, seed % SEEDS)

    def observe(self, job: Any, batch: Any) -> Step:
        """Return the devices and dtypes of a step's tensors, and the kernels of profiled training.

        The step runs operator by operator, whereas the profiled training runs as a graph.
        """
        seen = job.census(batch)
        return Step.of(seen, profile(self.tensorflow, partial(self.profiled, job, batch)))

    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random square matrices."""
        # Random numbers: on GPUs, products of constants take less power and thus less time.
        draw = partial(self.on_device, self.tensorflow.random.stateless_uniform, [size, size])
        left, right = (
            self.on_device(self.tensorflow.cast, draw([1, number]), dtype) for number in range(2)
        )
        return partial(self.on_device, self.tensorflow.linalg.matmul, left, right)

    def smallest(self) -> Callable[[], Any]:
        """Return a function that adds 1 to a single number."""
        number = self.on_device(self.tensorflow.Variable, [0.0])
        step = self.put([1.0])
        add = self.tensorflow.raw_ops.AssignAddVariableOp
        return partial(self.on_device, partial(add, resource=number.handle, value=step))

    def triad(self, size: int) -> Callable[[], Any]:
        """Return a function that runs a gradient descent step, a = a - s·b, in place.

        Each of the two arrays has ``size`` bytes.
        """
        tensorflow = self.tensorflow
        on_device = self.on_device
        ones = on_device(tensorflow.ones, [size // 4])
        rate = on_device(tensorflow.constant, 1e-9)
        array = on_device(tensorflow.Variable, ones)
        descend = tensorflow.raw_ops.ResourceApplyGradientDescent
        return partial(on_device, partial(descend, var=array.handle, alpha=rate, delta=ones))


def profile(tensorflow: Any, work: Callable[[], Any]) -> Observation:
    """Profile ``work`` and return an observation of what ran. ``work`` must wait for the device."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tensorflow.profiler.experimental
    with TemporaryDirectory() as folder:
        profiler.start(folder)
        try:
            work()
        finally:
            profiler.stop()
        space = xplane_pb2.XSpace()
        for file in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(file.read_bytes())
    return Observation.of(events(space))


def events(space: Any) -> Iterator[Tuple[str, bool, float]]:
    """Yield (name, on device, microseconds) of host operations and of all events on devices.

    ``space`` is the profiler's record of the run.
    """
    for plane in space.planes:
        on_device = plane.name.startswith(DEVICE)
        for line in plane.lines:
            for event in line.events:
                named = plane.event_metadata[event.metadata_id]
                # Of the host's events, only operations have a second name: the kernel's.
                name = named.name if on_device else named.display_name
                if name:
                    yield name, on_device, event.duration_ps / 1e6
