"""Performance of this machine: matmul, memory bandwidth, launch latency, inference.

Everything is warmed up, synchronized and repeated, and the median is reported (see ``clock``). A
failed measurement is null in the report and named in a warning, because it says nothing about
whether training works.

Bandwidth on a device is that of STREAM's triad, a = b + s·c, over arrays too large for the device's
caches. As in STREAM, the bytes of all three arrays count. Copies count their bytes once.

The operations of an epoch are counted from the network's layers. A multiplication and an addition
count as two operations. Only convolutions and linear layers are counted; everything else in this
network amounts to less than one percent of them. Each of these layers has three products of the
same size: the result, the weight's gradient, and the input's gradient. The images need no gradient,
so the first layer has only two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from .machine import clock
from .training.dataset import SIDE
from .training.model import WEIGHTS

if TYPE_CHECKING:
    from .interface import Framework, Job, Tensors

MIB = 1 << 20
LEAST_ARRAY = 64 * MIB
MOST_ARRAY = 512 * MIB
COPY = 64 * MIB
SHARE = 16
"""One array takes at most the free memory divided by this; three are needed."""

PATHS = (
    "device",
    "host_to_device",
    "host_to_device_pinned",
    "device_to_host",
    "device_to_host_pinned",
    "device_to_device",
)

DTYPES = ("float32", "bfloat16")
FIRST_SIZE = 512
LAST_SIZE = 8192
LONG_ENOUGH = 0.01
"""Minimum seconds of one product for it to show the rate rather than the overhead."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Budget:
    """Approximate seconds for each kind of measurement, in addition to the warm-up."""

    matmul: float
    bandwidth: float
    launch: float
    inference: float


QUICK = Budget(matmul=0.05, bandwidth=0.05, launch=0.02, inference=0.1)
FULL = Budget(matmul=0.5, bandwidth=0.3, launch=0.2, inference=1.0)


@dataclass
class Bench:
    """The inputs of the measurements. ``trained`` is the job whose inference speed is measured."""

    framework: Framework
    budget: Budget
    trained: Job
    data: Tensors
    test: Tensors
    problems: List[str] = field(default_factory=list)

    def median(self, work: Callable[[], Any], budget: float) -> float:
        """Return the median seconds of one call of ``work``."""
        return clock.median_seconds(self.framework.wait, work, budget)

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``. If it raises, record the problem and return None."""
        try:
            return work()
        except Exception as error:
            first = next(iter(str(error).splitlines()), "no message")
            self.problems.append(f"{name} could not be measured: {type(error).__name__}: {first}")
            return None


def measure(
    bench: Bench, epoch: Optional[Dict[str, float]], peak: Optional[int], progress: Progress
) -> Dict[str, Any]:
    """Return the report's ``measurements``.

    ``epoch`` contains the timings of the last epoch, when everything is warm. ``peak`` is the peak
    memory use of training in bytes. In the result, ``matmul_share`` is the rate of the epoch's
    computing as a fraction of the measured float32 matmul rate.
    """
    parts: Dict[str, Callable[[], Any]] = {
        "matmul": partial(_matmuls, bench),
        "bandwidth": partial(_bandwidth, bench),
        # The seconds per smallest operation when many are launched one after another.
        "launch_seconds": lambda: bench.median(bench.framework.smallest(), bench.budget.launch),
        "inference": partial(_inference, bench),
        "epoch_flops": partial(training_flops, len(bench.data.labels)),
    }
    result: Dict[str, Any] = {}
    for number, (name, part) in enumerate(parts.items(), 1):
        result[name] = bench.attempt(name, part)
        progress(number, len(parts))
    result["peak_memory_bytes"] = peak or None  # if the device was not used, its check says so
    result["matmul_share"] = _share(result["epoch_flops"], epoch, result["matmul"] or [])
    return result


def _share(
    operations: Optional[int], epoch: Optional[Dict[str, float]], rates: List[Dict[str, Any]]
) -> Optional[float]:
    rate = next((r["flops_per_second"] for r in rates if r["dtype"] == "float32"), None)
    if not operations or not epoch or not rate or not epoch["compute_seconds"] > 0:
        return None
    return float(operations / epoch["compute_seconds"] / rate)


def _matmuls(bench: Bench) -> List[Dict[str, Any]]:
    measured = [bench.attempt(f"matmul in {d}", partial(_matmul, bench, d)) for d in DTYPES]
    return [entry for entry in measured if entry is not None]


def _matmul(bench: Bench, dtype: str) -> Dict[str, Any]:
    """Measure the rate of a square matrix product that is large enough to reach full speed.

    Return the report's entry for it.
    """
    size = FIRST_SIZE
    while True:
        work = bench.framework.product(dtype, size)
        clock.timed(bench.framework.wait, work)
        seconds, _ = clock.timed(bench.framework.wait, work)
        if seconds >= LONG_ENOUGH or size >= LAST_SIZE:
            break
        size *= 2
    seconds = bench.median(work, bench.budget.matmul)
    return {"dtype": dtype, "size": size, "flops_per_second": 2 * size**3 / seconds}


def _bandwidth(bench: Bench) -> Dict[str, Optional[float]]:
    """Map each memory path to its bytes per second, or to None if this machine lacks the path.

    A path that could not be measured is None as well.
    """

    def rate(path: str) -> Optional[float]:
        traffic = bench.framework.traffic(path)
        if traffic is None:
            return None
        moved, work = traffic
        return moved / bench.median(work, bench.budget.bandwidth)

    return {path: bench.attempt(f"bandwidth {path}", partial(rate, path)) for path in PATHS}


def array_bytes(accelerator: str, free: Optional[int], cache: Optional[int]) -> int:
    """Return the size of one array, so that three arrays have at least four times the caches' size.

    The size is in bytes, and is limited to ``MOST_ARRAY`` and to a fraction of the free memory.
    """
    size = LEAST_ARRAY if accelerator == "cpu" else MOST_ARRAY
    # Three arrays together are then at least four times the caches.
    size = min(MOST_ARRAY, max(size, (cache or 0) * 4 // 3))
    return size if free is None else max(MIB, min(size, free // SHARE))


def _inference(bench: Bench) -> Dict[str, Any]:
    work, size = bench.trained.inference(bench.test.images)
    return {"batch": size, "samples_per_second": size / bench.median(work, bench.budget.inference)}


def training_flops(images: int) -> int:
    """Return the number of operations in one training pass over ``images`` images."""
    layers = forward_flops()
    return images * (3 * sum(layers) - layers[0])


def forward_flops() -> List[int]:
    """Return the number of operations in each layer for one image.

    A convolution is computed once for each pixel of its result.
    """
    side = SIDE
    counts = []
    for shape in WEIGHTS.values():
        pixels = 1
        if len(shape) > 2:
            side -= shape[0] - 1
            pixels = side * side
        counts.append(2 * pixels * math.prod(shape))
    return counts
