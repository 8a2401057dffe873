"""The checks of a verification: what each one examines, and the sentence it reports.

A check returns a status and a detail, or raises CheckError. Checks judge what other modules
observed; ``verify`` decides which of them run, and when.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .machine import clock, contention, device, importing, memory, threads
from .machine.accelerators import ACCELERATORS, device_of
from .numerics import (
    arithmetic,
    compilers,
    determinism,
    extensions,
    numerics,
    precision,
    profiling,
    vae,
)
from .options import only_compiled
from .report import PASSED, SKIPPED, WARNING, CheckError
from .speed import measure
from .training import blind_test, model, train

if TYPE_CHECKING:
    from .run import Run
    from .training.dataset import Dataset

Result = Tuple[str, str]

LEAST_MOVE = 1e-3
"""Minimum distance that training must move each parameter, relative to the parameter's norm."""

DROPPED_FROM = 1 << 16
"""Number of values on which dropout is tested."""


def check_extension(name: str) -> Result:
    """Require that the extension imports together with this torch, in a separate process."""
    return PASSED, extensions.require_importable(name)


def refuse(sentence: str) -> Result:
    """Fail with a sentence: what it is about must not even be tried."""
    raise CheckError(sentence)


def check_import(run: Run) -> Result:
    """Import torch, set up threads and IPEX, and require the expected version."""
    torch = run.torch = importing.torch_for(run.accelerator)
    if threads.chosen_by_user(run.threads["OMP_NUM_THREADS"]) is None:
        torch.set_num_threads(run.threads["decided"])
    if "ipex" in run.options.extensions:
        run.ipex = extensions.load("ipex")
    installed, expected = str(torch.__version__), run.options.torch_version
    # A version without a local part matches every build of that release.
    comparable = installed if expected and "+" in expected else installed.partition("+")[0]
    if expected and comparable != expected:
        raise CheckError(f"torch {installed} is installed, but {expected} is expected")
    return PASSED, f"torch {installed}"


def check_dataset(data: Dataset) -> Result:
    """Check by hash that the data are MNIST or the shipped subset."""
    counts = f"{data.train.count} training and {data.test.count} test images of {data.name}"
    if data.genuine:
        return PASSED, counts
    return WARNING, f"{counts}; by sha256 these are neither MNIST nor the shipped subset"


def check_copied(run: Run, torch: Any) -> Result:
    """Require that the data on the device equal the data read from the files, byte for byte."""
    splits = {"training": run.data.train, "test": run.data.test}
    for tensors, (name, split) in zip(run.tensors, splits.items()):  # noqa: B905 - Python 3.9
        parts = {"images": (tensors.images, split.images), "labels": (tensors.labels, split.labels)}
        for part, (tensor, read) in parts.items():
            expected = read[: len(read) // len(split.labels) * split.count]
            if train.content(torch, tensor) != expected:
                where = f"the {name} {part} on {run.accelerator}"
                raise CheckError(f"{where} are not those that were read from the file")
    return PASSED, f"images and labels on {run.accelerator} are those that were read"


def check_dropout(run: Run, torch: Any) -> Result:
    """Check torch's and the byte-mask dropout: active in training, off in evaluation."""
    values = torch.ones(DROPPED_FROM, device=device_of(run.accelerator))
    shares = []
    for form in {model.PUBLISHED, model.fastest(run.accelerator)}:
        layer = model.drop(torch, 0.5, form)
        layer.train()
        trained = layer(values).to("cpu")
        layer.eval()
        evaluated = layer(values).to("cpu")
        # Kept values are doubled. The dropped fraction has a standard deviation of 0.2 %.
        share = float((trained == 0).double().mean())
        survivors = trained[trained != 0]
        if not 0.48 < share < 0.52 or not torch.equal(survivors, torch.full_like(survivors, 2)):
            raise CheckError(f"dropout of a half dropped {share:.0%} in training")
        if not torch.equal(evaluated, torch.ones(DROPPED_FROM)):
            raise CheckError("dropout also changes numbers in evaluation mode")
        shares.append(share)
    return PASSED, f"a half drops {max(shares):.1%} in training and nothing in evaluation"


def check_build(torch: Any, accelerator: str) -> Result:
    """Require a build of torch that can drive the accelerator."""
    return PASSED, device.require_build(torch, accelerator)


def check_device(torch: Any, accelerator: str) -> Result:
    """Require that the device allocates, computes and returns right results; name its runtime."""
    usable = device.require_usable(torch, accelerator)
    return PASSED, f"{usable}; {ACCELERATORS[accelerator].runtime(torch)}"


def check_shared_memory() -> Result:
    """Warn if data loader workers cannot use /dev/shm; the payload itself does not need it."""
    problem, text = memory.shared_problem()
    return (WARNING, problem) if problem else (PASSED, text)


def check_accuracy(run: Run) -> Result:
    """Require finite losses and the minimum accuracy."""
    gate, reached = run.options.gate_for(run.data), run.epochs[-1]["accuracy"]
    losses = [epoch["loss"] for epoch in run.epochs]
    if not all(math.isfinite(loss) for loss in losses):
        raise CheckError(f"the training loss is not finite: {losses}")
    plural = "s" if len(losses) > 1 else ""
    text = f"{reached:.2%} after {len(losses)} epoch{plural}, at least {gate:.2%} is needed"
    if reached < gate:
        raise CheckError(text)
    return PASSED, text


def check_learning(run: Run) -> Result:
    """Require that the training loss fell far enough and that every parameter moved."""
    most, loss = run.options.most_loss_for(run.data), run.epochs[-1]["loss"]
    still = [name for name, moved in run.moved.items() if not moved >= LEAST_MOVE]
    if still:
        raise CheckError(f"the training did not change {', '.join(still)}")
    if not loss <= most:
        raise CheckError(
            f"the training loss of the last epoch is {loss:.3f}; at most {most:.2f} is allowed"
            " (an untrained network has 2.303)"
        )
    return PASSED, f"loss {loss:.3f}, at most {most:.2f} is allowed; all {len(run.moved)} moved"


def check_answers(run: Run, job: train.Job) -> Result:
    """Answer the blind test with the trained network; the core, which sent it, also scores it."""
    assert run.options.questions is not None
    count = blind_test.answer(job, run.options.questions, run.events)
    return PASSED, f"{count} images without labels were answered"


def check_device_used(run: Run, devices: List[str], growth: Optional[int]) -> Result:
    """Require that tensors, kernels and memory were on the requested device, and only there."""
    assert run.observed is not None
    needed = sum(part.nbytes() for part in run.tensors)
    evidence = profiling.Evidence(tuple(devices), run.observed, growth, needed)
    problems, how = profiling.problems(run.accelerator, evidence)
    if problems:
        raise CheckError("; ".join([*problems, how]))
    return PASSED, f"parameters, gradients and activations were on {run.accelerator}; {how}"


def check_precision(run: Run, before: Dict[str, Any], dtypes: List[str]) -> Result:
    """Require the stated precision both before and after the training, and in its tensors."""
    assert run.precision is not None
    problems = precision.problems(run.options.precision, before, run.precision, dtypes)
    if problems:
        raise CheckError("; ".join(problems))
    return PASSED, f"{run.options.precision} throughout"


def check_arithmetic(run: Run, torch: Any) -> Result:
    """Run every case of ``cases`` in every dtype that the device supports."""
    stated = run.options.precision
    results = [
        arithmetic.errors(torch, run.accelerator, dtype, stated)
        for dtype in ("float32", *arithmetic.HALVES)
    ]
    wrong = [phrase for result in results for phrase in result.wrong()]
    phrases = "; ".join(result.phrase() for result in results)
    if wrong:
        raise CheckError(f"wrong numbers against float64: {', '.join(wrong)}; of {phrases}")
    return PASSED, f"against float64: {phrases}"


def check_vae(run: Run, torch: Any) -> Result:
    """Require that the loss of a variational autoencoder stays finite and falls."""
    losses = vae.train(torch, run.accelerator, run.tensors[0], run.options.seed)
    problems = vae.problems(losses)
    if problems:
        raise CheckError("; ".join(problems))
    return PASSED, f"loss {losses[0]:.0f} to {losses[-1]:.0f} in {len(losses)} steps"


def check_determinism(run: Run, torch: Any) -> Result:
    """Compare two trainings from one seed; a difference is reported as a warning, not a failure."""
    steps = determinism.QUICK_STEPS if run.options.quick else determinism.STEPS
    form = model.fastest(run.accelerator)
    batches = [
        (model.arrange(torch, images, form), labels)
        for images, labels in train.batches(run.tensors[0], steps)
    ]
    comparison = determinism.compare(partial(make_job, run, torch), batches)
    run.determinism = comparison
    text = f"two trainings of {steps} steps from one seed"
    if comparison["equal"]:
        return PASSED, f"{text} give equal weights"
    return WARNING, (
        f"{text} give weights that differ by up to {comparison['largest_difference']:.1e}; "
        "torch.use_deterministic_algorithms(True) makes them equal"
    )


def check_measurements(run: Run, torch: Any) -> Result:
    """Measure the machine's performance; a measurement that fails is a warning."""
    assert run.job is not None
    bench = measure.Bench(
        torch,
        run.accelerator,
        measure.QUICK if run.options.quick else measure.FULL,
        run.job,
        partial(make_job, run, torch),
        run.tensors[0],
        run.tensors[1],
    )
    progress = partial(run.events.progress, "measurements")
    last = run.epochs[-1] if run.epochs else None
    counted = contention.read()
    try:
        run.measurements = measure.measure(bench, last, run.peak_memory, progress)
        run.count("measurements", run.accelerator, counted)
    except Exception as error:
        return WARNING, f"nothing could be measured: {type(error).__name__}: {error}"
    if bench.problems:
        return WARNING, "; ".join(bench.problems)
    rates = [f"{m['dtype']} {m['flops_per_second']:.2e}" for m in run.measurements["matmul"]]
    return PASSED, f"matmul in operations a second: {', '.join(rates)}"


def check_clock(run: Run) -> Result:
    """Require that all clocks agree on the durations of the run and its epochs, none zero."""
    problems, text = clock.problems(run.started, clock.read())
    for name, (before, after) in run.intervals.items():
        problems += [f"{name}: {problem}" for problem in clock.problems(before, after)[0]]
    short = [epoch["seconds"] for epoch in run.epochs if not epoch["seconds"] > 0]
    if short:
        problems.append(f"an epoch took {short[0]:.3f} s")
    if problems:
        raise CheckError("; ".join(problems))
    return PASSED, text


def make_job(run: Run, torch: Any) -> train.Job:
    """Prepare a new network in the same way as the trained one."""
    job = train.prepare(torch, run.accelerator, model.fastest(run.accelerator), run.options.seed)
    if run.ipex is not None:
        extensions.optimize(run.ipex, job)
    return job


def check_gradients(run: Run, torch: Any) -> Result:
    """Require the right loss and gradients from training steps of the real network."""
    count = numerics.QUICK_TRIALS if run.options.quick else numerics.TRIALS
    run.trials = numerics.trials(torch, run.tensors[0], count)
    form = model.fastest(run.accelerator)
    if run.ipex is not None:
        steps = [
            extensions.ipex_step(torch, run.ipex, run.accelerator, trial) for trial in run.trials
        ]
        comparison = numerics.compare(steps, run.trials)
    else:
        net = numerics.network(torch, form).to(device_of(run.accelerator))
        comparison = numerics.check(torch, form, net, net, run.trials)
    name, error = comparison.worst()
    limits = f"{name}; {len(run.trials)} steps of {train.BATCH}, tolerance {run.tolerance:.0e}"
    if not comparison.passed(run.tolerance):
        raise CheckError(
            f"training steps give wrong gradients against float64: relative error {error:.2g} "
            f"({limits})"
        )
    return PASSED, f"largest relative error against float64 {error:.1e} ({limits})"


def check_compile(run: Run, torch: Any, backend: str) -> Result:
    """Check and time a compile backend; the measurements are kept in ``run``."""
    form = model.fastest(run.accelerator)
    bench = compilers.Bench(
        torch, run.accelerator, form, run.tensors[0], run.tensors[1], run.trials, run.tolerance
    )
    progress = partial(run.events.progress, f"compile {backend}")
    outcome = compilers.measure(bench, backend, progress)
    run.outcomes.append(outcome)
    return compilers.verdict(outcome, run.tolerance)


def check_kernels(run: Run) -> Result:
    """Require that the kernels named by the profile ran."""
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


def _places(run: Run, prefix: str) -> Dict[str, Optional[profiling.Observation]]:
    if not only_compiled(prefix):
        return {"training": run.observed}
    observed = next((o.observed for o in run.outcomes if o.backend == "zentorch"), {})
    return {f"compiled {phase}": observed.get(phase) for phase in ("inference", "training")}
