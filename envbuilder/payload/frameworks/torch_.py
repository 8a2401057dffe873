"""PyTorch, verified with eager training, as in PyTorch's MNIST example."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..interface import (
    PROFILED_STEPS,
    Framework,
    Split,
    Step,
    Tensors,
    Traffic,
)
from ..machine import device, facts, hardware
from ..machine.accelerators import ACCELERATORS, build_of, device_of, runtime_of
from ..measure import COPY, array_bytes
from ..numerics import precision
from ..training import eager, model


def load(accelerator: str, threads: Optional[int]) -> Torch:
    """Import torch and return it.

    Raise CheckError without importing it if a missing device node could make the import hang.
    """
    torch = device.torch_for(accelerator)
    if threads is not None:
        torch.set_num_threads(threads)
    return Torch(torch, accelerator)


class Torch(Framework):
    """An imported torch for use with one accelerator."""

    name = "torch"

    def __init__(self, torch: Any, accelerator: str, ipex: Any = None) -> None:
        self.torch = torch
        self.accelerator = accelerator
        self.ipex = ipex
        self.row = ACCELERATORS[accelerator]
        self.form = model.fastest(accelerator)
        self.version = str(torch.__version__)

    def extend(self, names: Sequence[str]) -> None:
        """Load IPEX if it is in ``names``. Other extensions take effect only in compiled code."""
        if "ipex" in names:
            self.ipex = facts.load_extension("ipex")

    def on_cpu(self) -> Torch:
        """Return an instance that uses the same imported torch on the CPU."""
        return Torch(self.torch, "cpu")

    def facts(self) -> Dict[str, Optional[str]]:
        """Return torch's version, its build, and the version of the build's runtime."""
        build = build_of(self.torch)
        runtime = runtime_of(self.torch)
        return {"version": self.version, "build": build, "runtime": runtime}

    def threads(self) -> Dict[str, Optional[int]]:
        """Return the numbers of threads within and across operators."""
        torch = self.torch
        return {"framework": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}

    def require_build(self) -> str:
        """Return a sentence describing the build.

        Raise CheckError if the build cannot drive the accelerator.
        """
        return device.require_build(self.torch, self.accelerator)

    def require_usable(self) -> str:
        """Check that the device computes correctly, and return a sentence about the result.

        The sentence includes the runtime. Raise CheckError if the device does not compute
        correctly.
        """
        usable = device.require_usable(self.torch, self.accelerator)
        device.require_arrays(self.torch)
        return f"{usable}; {self.row.runtime(self.torch)}"

    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory, driver and instruction set or architecture."""
        return self.row.describe(self.torch)

    def device_type(self) -> str:
        """Return torch's type for the device. AMD's GPUs have the type "cuda", like NVIDIA's."""
        return device_of(self.accelerator)

    def why_not(self, error: BaseException) -> str:
        """Return a sentence if the error means that the build lacks a kernel, or "" otherwise."""
        sentence = device.without_kernel(error)
        return f"{sentence} ({self.row.kernels(self.torch)})" if sentence else ""

    def counted(self, what: str) -> Optional[int]:
        """Return the device's memory counter ``what`` in bytes, or None if torch lacks it."""
        return self.row.counted(self.torch, getattr(self.row, what))

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        device.synchronize(self.torch, self.accelerator)

    def state_precision(self, stated: str) -> None:
        """Switch TF32 off in cuDNN's convolutions if ``stated`` is "float32"."""
        precision.prepare(self.torch, stated)

    def precision(self) -> Dict[str, Any]:
        """Return the precision settings in effect, in the form used in the report."""
        return precision.observe(self.torch, self.accelerator)

    def hold(self, split: Split) -> Tensors:
        """Copy a split to the device."""
        return eager.tensors(self.torch, split, self.accelerator)

    def images(self, content: bytes) -> Any:
        """Copy consecutive images, given as unsigned bytes, to the device."""
        return eager.images_of(self.torch, content, self.accelerator)

    def content(self, array: Any) -> bytes:
        """Copy a tensor of integers back from the device, and return them as unsigned bytes."""
        return eager.content(self.torch, array)

    def floats(self, arrays: Sequence[Any]) -> bytes:
        """Copy tensors back from the device, and return their numbers as float32 bytes."""
        return eager.floats(self.torch, arrays)

    def batches(self, data: Tensors, count: int) -> List[eager.Batch]:
        """Return the first ``count`` normalized batches in the form's memory layout, with labels.

        If the data contain fewer batches, they are repeated.
        """
        pairs = eager.batches(data, count)
        return [(model.arrange(self.torch, images, self.form), labels) for images, labels in pairs]

    def job(self, seed: int) -> eager.Job:
        """Prepare a new network in its fastest form and return it as a job.

        If IPEX is loaded, it optimizes the network.
        """
        job = eager.prepare(self.torch, self.accelerator, self.form, seed)
        if self.ipex is not None:
            eager.optimize_by_ipex(self.ipex, job)
        return job

    def observe(self, job: Any, batch: Any) -> Step:
        """Return the devices and dtypes of a step's tensors, and the kernels of profiled training.

        Hooks on every layer observe the tensors of one step. The profiler then observes further
        steps.
        """
        job.model.train()
        return Step.of(
            eager.observe(job, *batch),
            eager.profile(
                self.torch,
                self.accelerator,
                lambda: [job.train(batch) for _ in range(PROFILED_STEPS)],
            ),
        )

    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random square matrices into a third one."""
        torch = self.torch
        place = device_of(self.accelerator)
        # Random numbers: on GPUs, products of constants take less power and thus less time.
        left, right = (
            torch.rand(size, size, device=place).to(getattr(torch, dtype)) for _ in range(2)
        )
        return partial(torch.mm, left, right, out=torch.empty_like(left))

    def smallest(self) -> Callable[[], Any]:
        """Return a function that adds 1 to a single number."""
        number = self.torch.zeros(1, device=device_of(self.accelerator))
        return partial(number.add_, 1)

    def traffic(self, path: str) -> Optional[Traffic]:
        """Return a number of bytes and a function that moves them along a memory path.

        Return None if this machine has no such path.
        """
        torch = self.torch
        row = self.row
        place = device_of(self.accelerator)
        if path == "device":
            size = array_bytes(self.accelerator, *self._room())
            first, second, result = (torch.ones(size // 4, device=place) for _ in range(3))
            return 3 * size, partial(torch.add, first, second, alpha=3, out=result)
        if self.accelerator == "cpu":
            return None
        if path == "device_to_device":
            return (COPY, self._between()) if row.collective and row.count(torch) > 1 else None
        pinned = path.endswith("_pinned")
        if pinned and not row.pinned:
            return None
        host = torch.ones(COPY // 4, pin_memory=pinned)
        remote = torch.ones(COPY // 4, device=place)
        target, source = (remote, host) if path.startswith("host") else (host, remote)
        # non_blocking has no effect without pinned memory; with it, the copies need not wait.
        return COPY, partial(target.copy_, source, non_blocking=pinned)

    def _room(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the number of bytes that can still be allocated, and the size of the CPU's caches.

        The size of the caches is None on other devices than the CPU.
        """
        if self.row.free:
            return int(getattr(self.row.module(self.torch), self.row.free)()[0]), None
        # MPS and integrated GPUs use the system's memory.
        return (
            hardware.available_bytes(),
            hardware.cache_bytes() if self.accelerator == "cpu" else None,
        )

    def _between(self) -> Callable[[], None]:
        """Return a function that copies from the first device to the second."""
        source, target = (
            self.torch.ones(COPY // 4, device=f"{self.row.device}:{number}") for number in range(2)
        )

        def work() -> None:
            target.copy_(source)
            # The timer synchronizes the first device only.
            self.row.module(self.torch).synchronize(1)

        return work
