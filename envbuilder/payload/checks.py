"""The checks of a verification: what each one examines, and the sentence it reports.

A check returns a status and a detail, or raises CheckError. It evaluates what the framework and
other modules observed; ``verify`` decides which checks run, and when. The checks in this module
apply to every framework. Checks that apply only to PyTorch are in ``torch_checks``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import frameworks, measure
from .machine import clock, contention, threads
from .numerics import precision
from .options import COMPILED_ONLY
from .report import PASSED, SKIPPED, UNREPEATED, WARNING, CheckError, require_none
from .training import outside
from .training.dataset import SIDE, Dataset

if TYPE_CHECKING:
    from .interface import Framework, Job, Observation
    from .run import Run

Result = Tuple[str, str]


def check_import(run: Run) -> Result:
    """Import the framework and its extensions, and require the expected version."""
    options = run.options
    by_user = threads.chosen_by_user(run.threads["OMP_NUM_THREADS"]) is not None
    count = None if by_user else run.threads["decided"]
    run.framework = frameworks.load(options.framework, run.accelerator, count)
    run.framework.extend(options.extensions)
    name = options.framework
    installed = run.framework.version
    expected = options.version
    # A version without a local part matches every build of that release.
    comparable = installed if expected and "+" in expected else installed.partition("+")[0]
    if expected and comparable != expected:
        raise CheckError(f"{name} {installed} is installed, but {expected} is expected")
    return PASSED, f"{name} {installed}"


def check_dataset(data: Dataset) -> Result:
    """Check by hash that the data are MNIST or the shipped subset.

    Return the status and detail. The status is a warning if the hashes match neither.
    """
    counts = f"{data.train.count} training and {data.test.count} test images of {data.name}"
    if data.genuine:
        return PASSED, counts
    return WARNING, f"{counts}; by sha256 these are neither MNIST nor the shipped subset"


def check_step(run: Run) -> Result:
    """Require that all losses are finite and that every requested step was recorded.

    To prove the recorded steps, the core repeats them outside the environment.
    """
    losses = [epoch["loss"] for epoch in run.epochs]
    if not all(map(math.isfinite, losses)):
        raise CheckError(f"the training loss is not finite: {losses}")
    if run.recorder is None:
        return SKIPPED, UNREPEATED
    if run.recorder.written != len(run.options.recorded):
        raise CheckError(f"{run.recorder.written} of {len(run.options.recorded)} were recorded")
    return PASSED, f"{run.recorder.written} steps were recorded"


def check_answers(run: Run, framework: Framework, job: Job) -> Result:
    """Answer the core's blind test with the trained network. The core then scores the answers."""
    assert run.options.questions is not None
    count = outside.answer(framework, job, run.options.questions, run.events)
    return PASSED, f"{count} images without labels were answered"


def device_problems(
    accelerator: str,
    device_type: str,
    devices: Tuple[str, ...],
    observation: Observation,
    growth: Optional[int],
    needed: int,
) -> Tuple[List[str], str]:
    """Return the reasons why the accelerator did not do the work, and a summary of the evidence.

    ``devices`` are the device types of the parameters, gradients and activations in a training
    step. ``device_type`` is the framework's name for the accelerator's type of device. ``growth``
    is the number of bytes by which the device's memory use grew during the training, or None if the
    framework does not count them. ``needed`` is the size of the data in bytes.
    """
    unjudged = f"what ran is not judged: {observation.unjudged}" if observation.unjudged else ""
    sentences = []
    if devices != (device_type,):
        sentences.append(f"tensors of the training step lived on {', '.join(devices) or 'nothing'}")
    if accelerator == "cpu":
        if observation.on_device():
            sentences.append(f"the profiler saw work elsewhere: {observation.on_device()[0].name}")
        if unjudged:
            return sentences, unjudged
        if not any("conv" in kernel.name.lower() for kernel in observation.kernels):
            sentences.append("the profiler saw no convolution on the CPU")
        return sentences, f"the profiler saw {len(observation.kernels)} operators on the CPU"
    kernels = observation.timed()
    if growth is not None and growth < needed:
        sentences.append(
            f"the memory of {accelerator} grew by {growth} bytes, less than the data's {needed}"
        )
    # MPS has no profiler activity, and CUPTI is often blocked in containers.
    if not kernels and growth is None:
        sentences.append(f"neither a kernel nor memory of {accelerator} was used")
    count = f"{len(kernels)} different kernels" if kernels else "no kernel"
    how = unjudged or f"the profiler saw {count} on {accelerator}"
    return sentences, how if growth is None else f"{how}; its memory grew by {growth} bytes"


def check_device_used(
    run: Run, framework: Framework, devices: Tuple[str, ...], growth: Optional[int]
) -> Result:
    """Require that tensors, kernels and memory use were on the requested device and only there."""
    assert run.observed is not None
    needed = sum(len(part.labels) * SIDE * SIDE for part in run.tensors)
    problems, seen = device_problems(
        run.accelerator, framework.device_type(), devices, run.observed, growth, needed
    )
    if problems:
        raise CheckError("; ".join([*problems, seen]))
    # Memory alone is weaker evidence, and all there is of MPS.
    is_seen = run.observed.timed() or run.accelerator in ("cpu", "mps")
    status = PASSED if is_seen and not run.observed.unjudged else WARNING
    return status, f"parameters, gradients and activations were on {run.accelerator}; {seen}"


def check_precision(run: Run, before: Dict[str, Any], dtypes: Tuple[str, ...]) -> Result:
    """Require that the requested precision was in effect before, during and after training."""
    assert run.precision is not None
    require_none(precision.problems(run.options.precision, before, run.precision, dtypes))
    return PASSED, f"{run.options.precision} throughout"


def check_measurements(run: Run, framework: Framework) -> Result:
    """Measure the machine's performance. A failed measurement only causes a warning."""
    assert run.job is not None
    bench = measure.Bench(
        framework,
        measure.QUICK if run.options.quick else measure.FULL,
        run.job,
        run.tensors[0],
        run.tensors[1],
    )
    progress = partial(run.events.progress, "measurements")
    last = run.epochs[-1] if run.epochs else None
    counted = contention.read()
    try:
        run.measurements = measure.measure(bench, last, run.peak_memory, progress)
        run.count("measurements", framework, counted)
    except Exception as error:
        return WARNING, f"nothing could be measured: {type(error).__name__}: {error}"
    if bench.problems:
        return WARNING, "; ".join(bench.problems)
    rates = [f"{m['dtype']} {m['flops_per_second']:.2e}" for m in run.measurements["matmul"]]
    return PASSED, f"matmul in operations a second: {', '.join(rates)}"


def check_clock(run: Run) -> Result:
    """Require that the clocks agree on each duration, and that no epoch took zero seconds."""
    problems, text = clock.problems(run.started, clock.read())
    for name, (before, after) in run.intervals.items():
        problems += [f"{name}: {problem}" for problem in clock.problems(before, after)[0]]
    short = [epoch["seconds"] for epoch in run.epochs if not epoch["seconds"] > 0]
    if short:
        problems.append(f"an epoch took {short[0]:.3f} s")
    require_none(problems)
    return PASSED, text


def check_kernels(run: Run) -> Result:
    """Require that the kernels named in the environment's profile ran."""
    present: List[str] = []
    missing: List[str] = []
    for prefix in run.options.required_kernels():
        for place, observation in _places(run, prefix).items():
            names = observation.matching(prefix) if observation else []
            text = f"{prefix} in {place}: {', '.join(names) or 'none'}"
            (present if names else missing).append(text)
    if missing:
        errors = [f"{o.backend}: {o.error}" for o in run.outcomes if o.error]
        raise CheckError("; ".join(["required kernels did not run", *missing, *errors]))
    if not present:
        return SKIPPED, "the required kernels run only in compiled code; a quick run compiles none"
    return PASSED, "; ".join(present)


def _places(run: Run, prefix: str) -> Dict[str, Optional[Observation]]:
    """Map each phase that must run kernels with this prefix to the profiler's observation of it.

    The value is None for a phase that was not observed.
    """
    if not prefix.startswith(COMPILED_ONLY):
        return {"training": run.observed}
    observed = next((o.observed for o in run.outcomes if o.backend == "zentorch"), {})
    return {f"compiled {phase}": observed.get(phase) for phase in ("inference", "training")}
