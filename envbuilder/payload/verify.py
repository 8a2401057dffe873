"""The whole verification: import, device, training, test, numerical checks, comparison.

Training precedes the numerical checks, so that the cold start and the first epoch are those of a
fresh process. After a failed check, later checks still run if they can.

A quick run makes every check of a full run except those of compile backends, and trains no
baseline. It trains on part of the data and measures more briefly.
"""

from __future__ import annotations

import os
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import checks, origins, torch_checks
from .frameworks import FRAMEWORKS
from .machine import clock, contention, device, facts, hardware, threads
from .machine.accelerators import FALLBACK_VARIABLES
from .numerics import compilers
from .report import BLIND_TEST, FAILED, PASSED, STEP, Check
from .run import Run
from .training import dataset, outside, train

if TYPE_CHECKING:
    from .events import Events
    from .interface import Framework, Job, Tensors
    from .options import Options

OF_ONE_FRAMEWORK = {"arithmetic": torch_checks.check_arithmetic}


def verify(options: Options, data: dataset.Dataset, events: Events) -> Dict[str, Any]:
    """Run all checks and return the report, which includes any unexpected error."""
    run = Run(options, data, events)
    began = time.perf_counter()
    try:
        with compilers.fresh_cache() as cache:
            _set_environment(run)
            _verify(run, cache)
    except (Exception, SystemExit) as error:  # some extensions call sys.exit when imported
        detail = run.framework.why_not(error) if run.framework else ""
        if not detail:
            run.traceback = traceback.format_exc()
            detail = f"unexpected {type(error).__name__}: {error}"
        run.checks.done.append(Check("run", FAILED, time.perf_counter() - began, detail))
    return run.report()


def _set_environment(run: Run) -> None:
    for name in FALLBACK_VARIABLES:
        os.environ.pop(name, None)
    limits = threads.fetch()
    run.threads = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "affinity": limits.affinity,
        "quota": limits.quota,
        "physical": limits.physical,
        "decided": threads.decide(limits),
    }


def _verify(run: Run, cache: str) -> None:
    options = run.options
    done = run.checks
    if not done.run("isolation", options.start.check) or _may_hang(run):
        return
    for name in options.extensions:
        run.events.phase(f"try {name}")
        if not done.run(f"extension {name}", torch_checks.check_extension, name):
            return
    run.events.phase(device.PHASE)
    if not done.run("import", checks.check_import, run):
        return
    framework = run.framework
    assert framework is not None
    if origins.failing(options.start):
        done.run("origins", origins.check, options.start, run.origins, options.framework)
        return
    done.run("dataset", checks.check_dataset, run.data)
    done.run("shared memory", hardware.check_shared_memory)
    if not done.run("build", lambda: (PASSED, framework.require_build())):
        return
    run.events.phase(f"use {run.accelerator}")
    if not done.run("device", lambda: (PASSED, framework.require_usable())):
        return
    run.described = framework.describe()
    _train(run, framework)
    own = {name: OF_ONE_FRAMEWORK[name] for name in FRAMEWORKS[options.framework].checks}
    for name, check in {"measurements": checks.check_measurements, **own}.items():
        run.events.phase(name)
        done.run(name, check, run, framework)
    for backend in options.backends():
        run.events.phase(f"compile {backend}")
        done.run(f"compile {backend}", torch_checks.check_compile, run, framework, backend)
    if options.require_kernels:
        done.run("kernels", checks.check_kernels, run)
    if options.trains_baseline():
        _baseline(run, framework.on_cpu())
    done.run("origins", origins.check, options.start, run.origins, options.framework, cache)
    done.run("clock", checks.check_clock, run)


def _may_hang(run: Run) -> bool:
    """Return whether importing the framework could hang.

    If it could, record a failed device check.
    """
    obstacle = device.obstacle(run.accelerator)
    if obstacle:
        run.checks.done.append(Check("device", FAILED, 0.0, obstacle))
    return bool(obstacle)


def _train(run: Run, framework: Framework) -> None:
    options = run.options
    data = run.data
    framework.state_precision(options.precision)
    before = framework.precision()
    held = framework.allocated()
    run.tensors = framework.hold(data.train), framework.hold(data.test)
    job = run.job = framework.job(options.seed)
    job.on_first_step = partial(_cold_start, run)
    job.curve = train.curve(data.train.count, options.epochs_for(data))
    if options.record is not None:
        run.recorder = outside.Recorder(framework, options.record, options.recorded)
    run.epochs = _epochs(run, framework, job, run.tensors, options.epochs_for(data), run.recorder)
    run.peak_memory = framework.peak()
    run.checks.run(STEP, checks.check_step, run)
    if options.questions is not None:
        run.events.phase(BLIND_TEST)
        run.checks.run(BLIND_TEST, checks.check_answers, run, framework, job)

    run.events.phase("profile")
    step = framework.observe(job, framework.batches(run.tensors[0], 1)[0])
    own = step.devices == (framework.device_type(),)
    run.used = run.accelerator if own else ", ".join(step.devices)
    run.observed = step.observation
    after = framework.allocated()
    growth = None if held is None or after is None else after - held
    run.checks.run("device used", checks.check_device_used, run, framework, step.devices, growth)
    run.precision = framework.precision()
    run.checks.run("precision", checks.check_precision, run, before, step.dtypes)


def _cold_start(run: Run) -> None:
    started = facts.seconds_since_start()
    # The subprocess that tried the extension is not part of the cold start.
    tried = [c.seconds for c in run.checks.done if c.name.startswith("extension ")]
    run.cold_start = started - sum(tried)


def _epochs(
    run: Run,
    framework: Framework,
    job: Job,
    tensors: Tuple[Tensors, Tensors],
    count: int,
    recorder: Optional[outside.Recorder] = None,
    name: str = "epoch",
) -> List[Dict[str, float]]:
    done = []
    step = recorder.step if recorder else None
    for number in range(1, count + 1):
        phase = f"{name} {number}"
        counted = contention.read()
        run.events.phase(phase)
        before = clock.read()
        result = train.epoch(job, tensors[0], partial(run.events.progress, phase), step)
        run.intervals[phase] = before, clock.read()
        # The core times the pass by its own clock, from one phase event to the next.
        run.events.phase(f"test {phase}")
        run.count(phase, framework, counted)
        if recorder:
            recorder.write(job, number)
        done.append({**result, "accuracy": train.accuracy(job, tensors[1])})
    return done


def _baseline(run: Run, framework: Framework) -> None:
    data = framework.hold(run.data.train), framework.hold(run.data.test)
    job = framework.job(run.options.seed)
    epoch = _epochs(run, framework, job, data, 1, name="baseline epoch")[0]
    run.baseline = {"device": "cpu", "name": hardware.cpu_name(), **epoch}
