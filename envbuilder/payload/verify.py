"""The whole verification, in order: import, device, train, test, check the numbers, compare.

Training comes before the numerical checks so that cold start and the first epoch are those of a
fresh process. A failed check keeps later ones from running only where they could not run.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import (
    compilers,
    device,
    extensions,
    facts,
    model,
    numerics,
    precision,
    profiling,
    threads,
    train,
)
from .options import Options, only_compiled
from .report import FAILED, PASSED, SKIPPED, WARNING, Check, CheckError
from .run import Run

if TYPE_CHECKING:
    from .dataset import Dataset
    from .events import Events

PROFILED_STEPS = 3

Result = Tuple[str, str]


def verify(options: Options, data: Dataset, events: Events) -> Dict[str, Any]:
    """Run everything and return the report; whatever goes wrong is in it."""
    run = Run(options, data, events)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="envbuilder-verify-") as scratch:
            _set_environment(run, scratch)
            _verify(run)
    except (Exception, SystemExit) as error:  # some extensions call sys.exit when imported
        run.traceback = traceback.format_exc()
        detail = f"unexpected {type(error).__name__}: {error}"
        run.checks.done.append(Check("run", FAILED, time.perf_counter() - began, detail))
    return run.report()


def _set_environment(run: Run, scratch: str) -> None:
    # Compiled code of earlier runs must neither be trusted nor shorten the compile times.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
    for name in device.FALLBACK_VARIABLES:
        os.environ.pop(name, None)
    limits = threads.fetch()
    run.threads = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "affinity": limits.affinity,
        "quota": limits.quota,
        "physical": limits.physical,
        "decided": threads.decide(limits),
    }


def _verify(run: Run) -> None:
    options, checks = run.options, run.checks
    for name in options.extensions:
        run.events.phase(f"try {name}")
        if not checks.run(f"extension {name}", _importable, name):
            return
    run.events.phase("import torch")
    if not checks.run("import", _import, run):
        return
    torch = run.torch
    assert torch is not None
    checks.run("dataset", _dataset, run.data)
    if not checks.run("build", _build, torch, run.accelerator):
        return
    run.events.phase(f"use {run.accelerator}")
    if not checks.run("device", _usable, torch, run.accelerator):
        return
    run.described = device.describe(torch, run.accelerator)
    _train(run, torch)
    for name, check in (("arithmetic", _arithmetic), ("gradients", _gradients)):
        run.events.phase(name)
        checks.run(name, check, run, torch)
    for backend in options.backends():
        run.events.phase(f"compile {backend}")
        checks.run(f"compile {backend}", _compile, run, torch, backend)
    if options.require_kernels:
        checks.run("kernels", _kernels, run)
    if options.trains_baseline():
        _baseline(run, torch)


def _importable(name: str) -> Result:
    return PASSED, extensions.require_importable(name)


def _import(run: Run) -> Result:
    import torch

    run.torch = torch
    if threads.chosen_by_user(run.threads["OMP_NUM_THREADS"]) is None:
        torch.set_num_threads(run.threads["decided"])
    if "ipex" in run.options.extensions:
        run.ipex = extensions.load("ipex")
    installed, wanted = str(torch.__version__), run.options.torch_version
    # A version without a local part names every build of that release.
    comparable = installed if wanted and "+" in wanted else installed.partition("+")[0]
    if wanted and comparable != wanted:
        raise CheckError(f"torch {installed} is installed, but {wanted} is expected")
    return PASSED, f"torch {installed}"


def _dataset(data: Dataset) -> Result:
    counts = f"{data.train.count} training and {data.test.count} test images of {data.name}"
    if data.genuine:
        return PASSED, counts
    return WARNING, f"{counts}; by sha256 these are neither MNIST nor the shipped subset"


def _build(torch: Any, accelerator: str) -> Result:
    return PASSED, device.require_build(torch, accelerator)


def _usable(torch: Any, accelerator: str) -> Result:
    return PASSED, device.require_usable(torch, accelerator)


def _train(run: Run, torch: Any) -> None:
    options, accelerator = run.options, run.accelerator
    precision.prepare(torch, options.precision)
    before = precision.observe(torch, accelerator)
    memory = device.allocated(torch, accelerator)
    run.tensors = (
        train.tensors(torch, run.data.train, accelerator),
        train.tensors(torch, run.data.test, accelerator),
    )
    job = train.prepare(torch, accelerator, model.fastest(accelerator), options.seed)
    run.job = job
    if run.ipex is not None:
        extensions.optimize(run.ipex, job)
    job.on_first_step = partial(_cold_start, run)
    run.epochs = _epochs(run, job, run.tensors, options.epochs_for(run.data), "epoch")
    run.checks.run("accuracy", _accuracy, run)

    run.events.phase("profile")
    images, labels = train.batches(run.tensors[0], 1)[0]
    batch = model.arrange(torch, images, job.form), labels
    job.model.train()
    census = train.observe(job, *batch)
    devices = sorted(census.devices)
    run.used = ", ".join(devices)
    run.observed = profiling.observe(torch, accelerator, partial(_steps, job, batch))
    after = device.allocated(torch, accelerator)
    growth = None if memory is None or after is None else after - memory
    run.checks.run("device used", _device_used, run, devices, growth)
    run.precision = precision.observe(torch, accelerator)
    run.checks.run("precision", _precision, run, before, sorted(census.dtypes))


def _cold_start(run: Run) -> None:
    started = facts.seconds_since_start()
    # The subprocess that tried the extension is no part of starting to train.
    spared = sum(run.checks.seconds(f"extension {name}") for name in run.options.extensions)
    run.cold_start = started - spared


def _epochs(
    run: Run, job: train.Job, tensors: Tuple[Any, Any], count: int, name: str
) -> List[Dict[str, float]]:
    done = []
    for number in range(1, count + 1):
        phase = f"{name} {number}"
        run.events.phase(phase)
        result = train.epoch(job, tensors[0], partial(run.events.progress, phase))
        done.append({**result, "accuracy": train.accuracy(job, tensors[1])})
    return done


def _steps(job: train.Job, batch: Tuple[Any, Any]) -> None:
    for _ in range(PROFILED_STEPS):
        train.step(job, *batch)


def _accuracy(run: Run) -> Result:
    gate, reached = run.options.gate_for(run.data), run.epochs[-1]["accuracy"]
    losses = [epoch["loss"] for epoch in run.epochs]
    if not all(math.isfinite(loss) for loss in losses):
        raise CheckError(f"the training loss is not finite: {losses}")
    plural = "s" if len(losses) > 1 else ""
    text = f"{reached:.2%} after {len(losses)} epoch{plural}, at least {gate:.2%} is needed"
    if reached < gate:
        raise CheckError(text)
    return PASSED, text


def _device_used(run: Run, devices: List[str], growth: Optional[int]) -> Result:
    assert run.observed is not None
    found, how = profiling.problems(run.accelerator, devices, run.observed, growth)
    if found:
        raise CheckError("; ".join([*found, how]))
    return PASSED, f"parameters, gradients and activations were on {run.accelerator}; {how}"


def _precision(run: Run, before: Dict[str, Any], dtypes: List[str]) -> Result:
    assert run.precision is not None
    found = precision.problems(run.options.precision, before, run.precision, dtypes)
    if found:
        raise CheckError("; ".join(found))
    return PASSED, f"{run.options.precision} throughout"


def _arithmetic(run: Run, torch: Any) -> Result:
    tolerance = numerics.ARITHMETIC_TOLERANCE[run.options.precision]
    errors = numerics.arithmetic(torch, run.accelerator)
    wrong = [
        f"{name} (relative error {error:.1e})"
        for name, error in errors.items()
        if not error <= tolerance
    ]
    if wrong:
        raise CheckError(
            f"wrong numbers against float64, tolerance {tolerance:.0e}: {', '.join(wrong)}"
        )
    return PASSED, (
        f"{len(errors)} cases against float64, largest relative error "
        f"{max(errors.values()):.1e}, tolerance {tolerance:.0e}"
    )


def _gradients(run: Run, torch: Any) -> Result:
    run.trials = numerics.trials(torch, run.tensors[0])
    form = model.fastest(run.accelerator)
    if run.ipex is not None:
        steps = [
            extensions.ipex_step(torch, run.ipex, run.accelerator, trial) for trial in run.trials
        ]
        comparison = numerics.compare(steps, run.trials)
    else:
        net = numerics.network(torch, form).to(run.accelerator)
        comparison = numerics.check(torch, form, net, net, run.trials)
    name, error = comparison.worst()
    limits = f"{name}; {len(run.trials)} steps of {train.BATCH}, tolerance {run.tolerance:.0e}"
    if not comparison.passed(run.tolerance):
        raise CheckError(
            f"training steps give wrong gradients against float64: relative error {error:.2g} "
            f"({limits})"
        )
    return PASSED, f"largest relative error against float64 {error:.1e} ({limits})"


def _compile(run: Run, torch: Any, backend: str) -> Result:
    form = model.fastest(run.accelerator)
    bench = compilers.Bench(
        torch, run.accelerator, form, run.tensors[0], run.tensors[1], run.trials, run.tolerance
    )
    progress = partial(run.events.progress, f"compile {backend}")
    outcome = compilers.measure(bench, backend, progress)
    run.outcomes.append(outcome)
    return compilers.verdict(outcome, run.tolerance)


def _kernels(run: Run) -> Result:
    found: List[str] = []
    missing: List[str] = []
    for prefix in run.options.required_kernels():
        for place, observation in _places(run, prefix).items():
            names = observation.matching(prefix) if observation else []
            text = f"{prefix} in {place}: {', '.join(names) or 'none'}"
            (found if names else missing).append(text)
    if missing:
        errors = [f"{o.backend}: {o.error}" for o in run.outcomes if o.error]
        raise CheckError("; ".join(["required kernels did not run", *missing, *errors]))
    if not found:
        return SKIPPED, "the kernels asked for run only in compiled code; quick compiles nothing"
    return PASSED, "; ".join(found)


def _places(run: Run, prefix: str) -> Dict[str, Optional[profiling.Observation]]:
    if not only_compiled(prefix):
        return {"training": run.observed}
    seen = next((o.observed for o in run.outcomes if o.backend == "zentorch"), {})
    return {f"compiled {phase}": seen.get(phase) for phase in ("inference", "training")}


def _baseline(run: Run, torch: Any) -> None:
    data = train.tensors(torch, run.data.train, "cpu"), train.tensors(torch, run.data.test, "cpu")
    job = train.prepare(torch, "cpu", model.fastest("cpu"), run.options.seed)
    epoch = _epochs(run, job, data, 1, "baseline epoch")[0]
    run.baseline = {"device": "cpu", "name": device.cpu_name(), **epoch}
