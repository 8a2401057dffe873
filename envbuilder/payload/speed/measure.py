"""Performance of this machine: matmul, memory bandwidth, launch latency, inference, logging.

Everything is warmed up, synchronized and repeated; medians count (see ``clock``). A failed
measurement is null in the report and named in a warning: it says nothing about whether training
works.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ..machine import clock
from ..machine.accelerators import device_of
from ..training import flops, model, train
from . import bandwidth

if TYPE_CHECKING:
    from ..training.train import Job, Tensors

DTYPES = ("float32", "bfloat16")
FIRST_SIZE, LAST_SIZE = 512, 8192
LONG_ENOUGH = 0.01
"""Minimum seconds of one product for it to show the rate rather than the overhead."""

ROUNDS = 3
LEAST_STEPS, MOST_STEPS = 3, 50

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Budget:
    """Approximate seconds for each kind of measurement; the warm-up comes on top."""

    matmul: float
    bandwidth: float
    launch: float
    inference: float
    logging: float


QUICK = Budget(matmul=0.1, bandwidth=0.1, launch=0.05, inference=0.3, logging=0.5)
FULL = Budget(matmul=0.5, bandwidth=0.3, launch=0.2, inference=1.0, logging=2.5)


@dataclass
class Bench:
    """Inputs of the measurements: ``trained`` for inference; ``make`` prepares a fresh job."""

    torch: Any
    accelerator: str
    budget: Budget
    trained: Job
    make: Callable[[], Job]
    data: Tensors
    test: Tensors
    problems: List[str] = field(default_factory=list)

    def median(self, work: Callable[[], Any], budget: float) -> float:
        """Return the median seconds of one call of ``work``."""
        return clock.median_seconds(self.torch, self.accelerator, work, budget)

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, or None with the problem recorded."""
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

    ``epoch`` is the last one, warm; ``peak`` is the peak memory of training in bytes.
    ``matmul_share`` is the fraction of the measured float32 matmul rate that the epoch's computing
    reached.
    """
    parts: Dict[str, Callable[[], Any]] = {
        "matmul": partial(_matmuls, bench),
        "bandwidth": partial(_bandwidth, bench),
        "launch_seconds": partial(_launch, bench),
        "inference": partial(_inference, bench),
        "logging": partial(_logging, bench),
        "epoch_flops": partial(flops.training_flops, bench.torch, len(bench.data.labels)),
    }
    result: Dict[str, Any] = {}
    for number, (name, part) in enumerate(parts.items(), 1):
        result[name] = bench.attempt(name, part)
        progress(number, len(parts))
    result["peak_memory_bytes"] = peak
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
    """Measure the rate of one square product, large enough for the device to show its speed."""
    size = FIRST_SIZE
    while True:
        work = _product(bench, dtype, size)
        clock.timed(bench.torch, bench.accelerator, work)
        seconds, _ = clock.timed(bench.torch, bench.accelerator, work)
        if seconds >= LONG_ENOUGH or size >= LAST_SIZE:
            break
        size *= 2
    seconds = bench.median(work, bench.budget.matmul)
    return {"dtype": dtype, "size": size, "flops_per_second": 2 * size**3 / seconds}


def _product(bench: Bench, dtype: str, size: int) -> Callable[[], Any]:
    torch, place = bench.torch, device_of(bench.accelerator)
    # Random numbers: on GPUs, products of constants take less power and thus less time.
    left, right = (torch.rand(size, size, device=place).to(getattr(torch, dtype)) for _ in range(2))
    return partial(torch.mm, left, right, out=torch.empty_like(left))


def _bandwidth(bench: Bench) -> Dict[str, Optional[float]]:
    paths = bandwidth.measurements(bench.torch, bench.accelerator, bench.budget.bandwidth)
    return {
        path: bench.attempt(f"bandwidth {path}", measurement) for path, measurement in paths.items()
    }


def _launch(bench: Bench) -> float:
    """Return the seconds per smallest operation when many are launched one after another."""
    number = bench.torch.zeros(1, device=device_of(bench.accelerator))
    return bench.median(partial(number.add_, 1), bench.budget.launch)


def _inference(bench: Bench) -> Dict[str, Any]:
    torch, job = bench.torch, bench.trained
    images = model.arrange(torch, train.normalise(bench.test.images[: train.TEST_BATCH]), job.form)
    job.model.eval()
    with torch.no_grad():
        seconds = bench.median(partial(job.model, images), bench.budget.inference)
    return {"batch": len(images), "samples_per_second": len(images) / seconds}


def _logging(bench: Bench) -> Dict[str, Any]:
    """Time the same steps in turns with the loss fetched after every one, or all after the last.

    Fetching a number waits for the device, so that it has nothing queued when the next step comes.
    """
    torch, job = bench.torch, bench.make()
    job.model.train()
    batches = [
        (model.arrange(torch, images, job.form), labels)
        for images, labels in train.batches(bench.data, MOST_STEPS)
    ]
    single = min(_timed_steps(bench, job, batches[:1], _at_end) for _ in range(2))
    affordable = int(bench.budget.logging / (2 * ROUNDS * single))
    batches = batches[: max(LEAST_STEPS, min(MOST_STEPS, affordable))]
    samples: Dict[Callable[..., None], List[float]] = {_every_step: [], _at_end: []}
    for _ in range(ROUNDS):
        for way, spent in samples.items():
            spent.append(_timed_steps(bench, job, batches, way))
    return {
        "steps": len(batches),
        "every_step_seconds": statistics.median(samples[_every_step]),
        "at_end_seconds": statistics.median(samples[_at_end]),
    }


Batches = List[Tuple[Any, Any]]


def _timed_steps(
    bench: Bench, job: Job, batches: Batches, way: Callable[[Job, Batches], None]
) -> float:
    return clock.timed(bench.torch, bench.accelerator, partial(way, job, batches))[0]


def _every_step(job: Job, batches: Batches) -> None:
    for images, labels in batches:
        train.step(job, images, labels).item()


def _at_end(job: Job, batches: Batches) -> None:
    losses = [train.step(job, images, labels) for images, labels in batches]
    job.torch.stack(losses).tolist()
