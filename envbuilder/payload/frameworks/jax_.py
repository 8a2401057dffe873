"""JAX, verified with a training step that is compiled as a whole, as JAX's users write it.

The profiler's events show what ran, using the names of what XLA compiled. On a GPU, the profiler
records each stream's kernels and their times through CUPTI. On the CPU, it records the instructions
of the compiled step as XLA executes them. An instruction counts only if the executable contains it,
which excludes events of Python and of the runtime. If an instruction merges others, its name
includes the convolutions and products among them. The events prove that XLA executed these
instructions of this executable on this device. They do not prove which library computed the
results.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Set, Tuple

from ..interface import Observation, Step
from ..machine import hardware, threads as thread_counts
from ..machine.device import first_line, limited
from ..machine.facts import installed
from ..numerics.precision import LOWERING_VARIABLES
from ..report import CheckError
from .jax_job import Job, Programs
from .numpy_ import NumpyFramework


@dataclass(frozen=True)
class Platform:
    """JAX's names for an accelerator, and the plugins that let JAX use it."""

    name: str
    device_type: str = "gpu"
    """What most versions call its devices."""
    plugins: Dict[str, str] = field(default_factory=dict)
    """Distribution → the build that it makes of JAX, whose own wheels are the same everywhere."""
    extra: str = ""
    """The extra of JAX that installs them."""


PLATFORMS = {
    "cpu": Platform("cpu", device_type="cpu"),
    "cuda": Platform(
        "cuda",
        plugins={"jax-cuda13-plugin": "cu13", "jax-cuda12-plugin": "cu12"},
        extra="cuda13",
    ),
    "xpu": Platform("oneapi", plugins={"jax-oneapi-plugin": "xpu"}, extra="oneapi"),
}
"""Accelerator → its platform; JAX has more, which are not judged."""

RUNTIMES = {"cu13": "nvidia-cuda-runtime", "cu12": "nvidia-cuda-runtime-cu12"}

THREADS = ("PJRT_NPROC", "NPROC")
"""Variables that XLA's client for the CPU reads for the size of its pool; the first counts.

Read in jaxlib 0.10.2 and 0.12.0.1, and seen in the threads of the process. ``OMP_NUM_THREADS`` has
no effect.
"""

LOWERING = {
    **dict.fromkeys(("fastest", "bfloat16", "BF16_BF16_F32"), "medium"),
    **dict.fromkeys(("high", "tensorfloat32", "bfloat16_3x", "TF32_TF32_F32"), "high"),
}
"""``jax_default_matmul_precision`` → the name of an equal or higher one in torch."""

NOTED = ("JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64", "XLA_FLAGS")
"""Variables that the report records with those that lower the precision."""

COUNTERS = {"allocated": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}

HOST = "/host:CPU"
DEVICE = "/device:"
STREAM = "Stream"
"""Names of the profiler's planes, or how they begin; lines of a device that hold kernels."""

HEAVY = ("convolution", "dot", "custom-call")

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*)")
_OPERATION = re.compile(r"(?:^|\s)([a-z][a-z0-9-]*)\(")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$")
_FLOAT = re.compile(r"\b(bf16|f16|f32|f64|f8\w*)\[")
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


def load(accelerator: str, threads: Optional[int]) -> Jax:
    """Import JAX, restricted to the accelerator and the CPU, and return it."""
    hidden = ""
    stated = os.environ.get("JAX_PLATFORMS", "")
    row = PLATFORMS.get(accelerator)
    if row is not None:
        # The CPU is there for comparison. The device is asked for by name: where no GPU is visible,
        # JAX leaves "cuda" out of a list without a word.
        os.environ["JAX_PLATFORMS"] = ",".join(dict.fromkeys((row.name, "cpu")))
        hidden = "" if {row.name, row.device_type} & {*stated.split(",")} else stated
    count = threads or thread_counts.chosen_by_user(os.environ.get("OMP_NUM_THREADS"))
    if count and not any(name in os.environ for name in THREADS):
        os.environ[THREADS[0]] = str(count)
    # JAX takes three quarters of a GPU's memory at once unless told otherwise.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = limited("jax")
    # What runs is compiled by this process, and the time that takes counts.
    jax.config.update("jax_enable_compilation_cache", False)
    return Jax(jax, accelerator, hidden)


class Jax(NumpyFramework):
    """An imported JAX for use with one accelerator.

    ``hidden`` is the value of ``JAX_PLATFORMS`` if it excludes the accelerator, and empty
    otherwise.
    """

    name = "jax"
    label_type = "int32"

    def __init__(self, jax: Any, accelerator: str, hidden: str = "") -> None:
        self.jax = jax
        self.accelerator = accelerator
        self._hidden = hidden
        self.numpy = limited("numpy")
        self.version = str(jax.__version__)
        self._programs = Programs(jax)

    @property
    def device(self) -> Any:
        """JAX's object for the accelerator's first device. Raises JAX's error if there is none."""
        return self.jax.devices(PLATFORMS[self.accelerator].name)[0]

    def on_cpu(self) -> Jax:
        """Return an instance that uses the same imported JAX on the CPU."""
        return Jax(self.jax, "cpu")

    def facts(self) -> Dict[str, Optional[str]]:
        """Return JAX's version, its build, and the version of the build's CUDA runtime."""
        plugins = chain(*(row.plugins.items() for row in PLATFORMS.values()))
        build = next((build for name, build in plugins if installed(name)), "cpu")
        runtime = installed(RUNTIMES[build]) if build in RUNTIMES else None
        return {"version": self.version, "build": build, "runtime": runtime}

    def threads(self) -> Dict[str, Optional[int]]:
        """Return the number of threads in XLA's CPU thread pool, under the key "framework".

        "interop" is always None.
        """
        stated = next((os.environ[name] for name in THREADS if name in os.environ), None)
        count = thread_counts.chosen_by_user(stated) or len(thread_counts.allowed_cpus())
        return {"framework": count, "interop": None}

    def require_build(self) -> str:
        """Return a sentence describing the build.

        Raise CheckError if the build cannot drive the accelerator.
        """
        accelerator = self.accelerator
        if accelerator not in PLATFORMS:
            raise CheckError(f"JAX is verified on {', '.join(PLATFORMS)}, not on {accelerator}")
        row = PLATFORMS[accelerator]
        if row.plugins and not any(map(installed, row.plugins)):
            raise CheckError(
                f"jax {self.version} is installed without a plugin for {accelerator}; "
                f"install jax[{row.extra}], or verify with --device cpu"
            )
        build = self.facts()["build"]
        return f"jax {self.version} is a {build} build, which can drive {accelerator}"

    def require_usable(self) -> str:
        """Check that the device computes correctly, and return a sentence about the result.

        Raise CheckError if the device does not. A device of another type counts as a failure,
        because JAX uses the CPU if it finds nothing else.
        """
        if self._hidden:
            raise CheckError(f"JAX_PLATFORMS={self._hidden} hides {self.accelerator}; unset it")
        size = 1 << 20
        numpy = self.numpy
        try:
            device = self.device
            if type_of(device) != self.device_type():
                raise CheckError(f"JAX gives {device.platform} as a device of {self.accelerator}")
            values = self.put(numpy.arange(size, dtype=numpy.float32))
            returned = self.fetch(self.jax.jit(lambda numbers: numbers * 2 + 1)(values))
        except (RuntimeError, AssertionError) as error:
            reason = first_line(error)
            raise CheckError(f"no {self.accelerator} device can be used: {reason}") from error
        # float32 is exact for integers below 2**24, so the result must be equal, not close.
        if returned.tolist() != [number * 2 + 1 for number in range(size)]:
            raise CheckError(f"{self.accelerator} returned wrong numbers for x * 2 + 1")
        client = " ".join(str(device.client.platform_version).split())
        return f"{self.describe()['name']}: allocated, computed and read back; client {client}"

    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory, driver and architecture."""
        if self.accelerator == "cpu":
            return hardware.describe_cpu()
        capability = getattr(self.device, "compute_capability", None)
        return {
            "name": str(self.device.device_kind),
            # JAX knows its own limit only, a fraction of the memory.
            "memory_bytes": None,
            "driver": hardware.nvidia_driver() if self.accelerator == "cuda" else None,
            "capability": f"sm_{str(capability).replace('.', '')}" if capability else None,
        }

    def device_type(self) -> str:
        """Return JAX's platform name for the accelerator's devices."""
        return PLATFORMS[self.accelerator].device_type

    def counted(self, what: str) -> Optional[int]:
        """Return the device's memory counter ``what`` in bytes.

        Return None on the CPU, which has no counters.
        """
        return (self.device.memory_stats() or {}).get(COUNTERS[what])

    def wait(self, result: Any = None) -> None:
        """Wait for a result, or for all live arrays if no result is given."""
        pending = self.jax.live_arrays(self.device.platform) if result is None else result
        self.jax.block_until_ready(pending)

    def state_precision(self, stated: str) -> None:
        """Request float32 products if ``stated`` is "float32".

        By default, JAX computes them in TF32 on GPUs.
        """
        config = self.jax.config
        if stated == "float32" and config.jax_default_matmul_precision is None:
            config.update("jax_default_matmul_precision", "highest")

    def precision(self) -> Dict[str, Any]:
        """Return the precision settings in effect, in the form used in the report."""
        setting = self.jax.config.jax_default_matmul_precision
        cpu = self.accelerator == "cpu"
        # By default, only the CPU computes products of float32 in float32.
        default = "highest" if cpu else "high"
        name = str(setting or "default")
        matmul = default if name == "default" else LOWERING.get(name, "highest")
        return {
            "dtype": str(self.jax.numpy.zeros(()).dtype),
            "matmul": matmul,
            "autocast": False,
            "cuda_tf32": not cpu and matmul == "high",
            "environment": {
                name: os.environ[name]
                for name in (*LOWERING_VARIABLES, *NOTED)
                if name in os.environ
            },
        }

    def put(self, value: Any) -> Any:
        """Copy an array, or a tree of arrays, to the device, and return the copy."""
        # Never a view of numpy's memory: training steps reuse that of their arguments. Only later
        # releases than 0.4.30 can be asked for a copy.
        copies = self.jax.tree.map(lambda leaf: leaf.copy(), value)
        return self.jax.device_put(copies, self.device)

    def fetch(self, array: Any) -> Any:
        """Return an array as a NumPy array, either a view or a copy."""
        return self.numpy.asarray(array)

    def normalise(self, images: Any) -> Any:
        """Convert image bytes to float32, normalized by MNIST's mean and standard deviation."""
        return self._programs.normalise(images)

    def cut(self, array: Any, first: int, count: int) -> Any:
        """Return ``count`` elements of an array, starting at index ``first``."""
        return self._programs.cut(array, first, count)

    def job(self, seed: int) -> Job:
        """Prepare a new network and optimizer, and return them as a job."""
        return Job(self, self._programs, seed)

    def observe(self, job: Any, batch: Any) -> Step:
        """Return the devices and dtypes of a step's arrays, and the kernels of profiled training.

        XLA merges the gradients and activations of a training step into other computations, so the
        ones examined here are computed by a separate step. The parameters and Adadelta's averages
        are those of the training. The dtypes include those in the compiled program.
        """
        (loss, activations), gradients = self._programs.witnesses(
            job.state.weights, *batch, job.state.key
        )
        arrays = self.jax.tree.leaves([*job.state[:3], loss, activations, gradients])
        devices = {*map(type_of, chain(*(array.devices() for array in arrays)))}
        executable = job.executable(batch).as_text()
        dtypes = {str(array.dtype) for array in arrays} | float_types(executable)
        observation = profile(self.jax, executable, partial(self.profiled, job, batch))
        return Step(tuple(sorted(devices)), tuple(sorted(dtypes)), observation)

    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random square matrices."""
        # Random numbers: on GPUs, products of constants take less power and thus less time.
        values = self.numpy.random.default_rng(1).random((2, size, size), self.numpy.float32)
        left, right = (self.put(matrix).astype(dtype) for matrix in values)
        return partial(self.jax.jit(self.jax.numpy.matmul), left, right)

    def smallest(self) -> Callable[[], Any]:
        """Return a function that adds 1 to a single number on the device."""
        return partial(self.jax.jit(lambda number: number + 1), self.put(self.numpy.float32(0)))

    def triad(self, size: int) -> Callable[[], Any]:
        """Return a function that computes a + 3·b for two arrays of ``size`` bytes."""
        ones = self.numpy.ones(size // 4, self.numpy.float32)
        return partial(self.jax.jit(lambda left, right: left + 3 * right), *self.put((ones, ones)))

    def copy_back(self, array: Any) -> Any:
        """Copy an array to the CPU as a JAX array, and return the copy.

        If it were copied to a NumPy array, JAX would keep that copy and reuse it.
        """
        return self.jax.device_put(array, self.jax.devices("cpu")[0])

    def room(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the number of bytes that can still be allocated, and the size of the CPU's caches.

        Either is None if it is unknown or does not apply to the device.
        """
        limit = self.counted("limit")
        used = self.counted("allocated")
        return super().room() if limit is None or used is None else (limit - used, None)


def type_of(device: Any) -> str:
    """Return a JAX device's type, even if this JAX version reports the platform's name instead."""
    types = {row.name: row.device_type for row in PLATFORMS.values()}
    return types.get(device.platform, str(device.platform))


def profile(jax: Any, executable: str, work: Callable[[], None]) -> Observation:
    """Profile ``work`` and return an observation of what ran.

    ``executable`` is the text of the compiled program.
    """
    if not hasattr(jax.profiler, "ProfileData"):
        work()
        return Observation((), f"jax {jax.__version__} cannot read what its profiler records")
    names = instructions(executable)
    with tempfile.TemporaryDirectory(prefix="envbuilder-") as folder:
        with jax.profiler.trace(folder):
            work()
        files = map(str, Path(folder).rglob("*.xplane.pb"))
        parts = map(jax.profiler.ProfileData.from_file, files)
        return Observation.of(chain.from_iterable(_events(data, names) for data in parts))


def _events(data: Any, names: Dict[str, str]) -> Iterator[Tuple[str, bool, float]]:
    """Yield (name, on device, microseconds) of device kernels and of instructions in ``names``."""
    for plane in data.planes:
        on_device = plane.name.startswith(DEVICE)
        if not on_device and plane.name != HOST:
            continue
        for line in plane.lines:
            if on_device and not line.name.startswith(STREAM):
                continue
            for event in line.events:
                if on_device or event.name in names:
                    yield names.get(event.name, event.name), on_device, event.duration_ns / 1000


def instructions(executable: str) -> Dict[str, str]:
    """Map each instruction's name to a label for the report.

    The label is the name, followed by the convolutions and products that the instruction merges.
    ``executable`` is the text of the compiled program.
    """
    called: Dict[str, str] = {}
    contains: Dict[str, Set[str]] = defaultdict(set)
    computation = ""
    for line in executable.splitlines():
        if not line.startswith(" "):
            header = _COMPUTATION.match(line)
            computation = header.group(1) if header else computation
            continue
        instruction = _INSTRUCTION.match(line)
        operation = _OPERATION.search(instruction.group(2)) if instruction else None
        if instruction and operation:
            contains[computation].add(operation.group(1))
            calls = _CALLS.search(instruction.group(2))
            called[instruction.group(1)] = calls.group(1) if calls else ""
    names = {}
    for name, callee in called.items():
        merged = ", ".join(operation for operation in HEAVY if operation in contains[callee])
        names[name] = f"{name} ({merged})" if callee and merged else name
    return names


def float_types(executable: str) -> Set[str]:
    """Return the floating-point types that an executable, given as text, computes with."""
    return {_DTYPES.get(name, name) for name in _FLOAT.findall(executable)}
