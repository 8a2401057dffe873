"""Evaluation of torch.compile backends: correct gradients and outputs first, then speed.

The timings of a backend count only if its results agree with float64. Gradients are checked with
batches of 64 in two forms of the network, the published one and the trained one. This is because
the Inductor of torch 2.13.0+cpu on AVX-512 returns zero gradients for the convolutions of one form
and correct ones for the other. Weights change in place between the checks, because zentorch
2.13.0.2 caches packed weights by their address and reuses them for whatever is stored there later,
unless its weight cache is off.
"""

from __future__ import annotations

import importlib
import os
import statistics
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..interface import PROFILED_STEPS, Observation, Tensors
from ..machine import clock, device, facts
from ..machine.accelerators import device_of
from ..report import PASSED, WARNING
from ..training import eager, model, train
from . import arithmetic, numerics

BACKENDS = ("inductor", "zentorch")
INFERENCE_SAMPLES = 20
TRAINING_BLOCKS = 6
STEPS_A_BLOCK = 10
OUTPUT_TOLERANCE = 1e-4
"""For log-probabilities against float64, norm-wise; float32 stays below 1e-6."""

CACHES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    # ROCm's: MIOpen compiles convolutions, the driver's compiler all else.
    "MIOPEN_CUSTOM_CACHE_DIR",
    "MIOPEN_USER_DB_PATH",
    "AMD_COMGR_CACHE_DIR",
)
"""Variables that name the folders of compiled code."""

WEIGHT_CACHE = "ZENDNNL_MATMUL_WEIGHT_CACHE"
"""Set to 0, it turns zentorch's weight cache off; it is read when the library is loaded. Measured
with zentorch 2.13.0.2: with 0, gradients agree with float64; without it, they are entirely
wrong."""

Progress = Callable[[int, int], None]


@contextmanager
def fresh_cache() -> Iterator[str]:
    """Provide a new folder for compiled code, for the duration of a ``with`` block.

    Code compiled by earlier runs must not be trusted, and must not shorten the compile times.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-compiled-") as folder:
        os.environ.update(dict.fromkeys(CACHES, folder))
        yield folder


@dataclass
class Bench:
    """The data and settings that all backends are measured with."""

    torch: Any
    accelerator: str
    form: model.Form
    training: Tensors
    test: Tensors
    trials: List[numerics.Trial]
    tolerance: float

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        device.synchronize(self.torch, self.accelerator)


@dataclass
class Outcome:
    """One backend's measurements. If some are missing, ``error`` is the reason."""

    backend: str
    error: Optional[str] = None
    gradients: Dict[str, numerics.Comparison] = field(default_factory=dict)
    output_error: Optional[float] = None
    """Of the compiled network's outputs."""
    updated_output_error: Optional[float] = None
    """After the weights had changed in place."""
    compile_seconds: Dict[str, float] = field(default_factory=dict)
    inference_ms: Optional[float] = None
    inference_eager_ms: Optional[float] = None
    training_ms: Optional[float] = None
    training_eager_ms: Optional[float] = None
    observed: Dict[str, Observation] = field(default_factory=dict)

    def gradients_pass(self, tolerance: float) -> bool:
        """Return whether gradients were checked and are correct in every form of the network."""
        return bool(self.gradients) and all(c.passed(tolerance) for c in self.gradients.values())


def measure(bench: Bench, backend: str, progress: Progress) -> Outcome:
    """Check and time one backend, and return the outcome.

    Any exception becomes the outcome's ``error``.
    """
    outcome = Outcome(backend)
    try:
        # torch 1 has none; in 2.0 it is no attribute until it is imported.
        dynamo = importlib.import_module("torch._dynamo")
    except ImportError as error:
        outcome.error = f"torch {bench.torch.__version__} cannot compile: {error}"
        return outcome
    try:
        if backend == "zentorch":
            facts.load_extension("zentorch")
        _check_gradients(bench, outcome)
        progress(1, 3)
        _measure_inference(bench, outcome)
        progress(2, 3)
        _measure_training(bench, outcome)
        progress(3, 3)
    except Exception as error:
        outcome.error = explain(error)
    finally:
        # Code compiled by one backend must not be used when the next one is measured.
        dynamo.reset()
    return outcome


def explain(error: BaseException) -> str:
    """Return one line that explains why a backend failed.

    The line is in plain words if a compiler or header is missing.
    """
    text = str(error)
    if "InvalidCxxCompiler" in type(error).__name__ + text or "No working C++ compiler" in text:
        return "torch.compile needs a C++ compiler and found none that works; install g++"
    if "Python.h" in text:
        return (
            "torch.compile needs Python's C headers (Python.h); install a package like python3-dev"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first}"


def _compiled(bench: Bench, backend: str, net: Any) -> Any:
    return bench.torch.compile(net, backend=backend, dynamic=False)


def _check_gradients(bench: Bench, outcome: Outcome) -> None:
    for name, form in (("published", model.PUBLISHED), ("trained", bench.form)):
        bench.torch._dynamo.reset()
        net = numerics.network(bench.torch, form).to(device_of(bench.accelerator))
        call = _compiled(bench, outcome.backend, net)
        outcome.gradients[name] = numerics.check(bench.torch, form, net, call, bench.trials)


def _measure_inference(bench: Bench, outcome: Outcome) -> None:
    torch = bench.torch
    torch._dynamo.reset()
    net = numerics.network(torch, bench.form).to(device_of(bench.accelerator)).eval()
    call = _compiled(bench, outcome.backend, net)
    size = min(train.TEST_BATCH, len(bench.test.images))
    batches = [
        model.arrange(torch, eager.normalise(images), bench.form)
        for images in bench.test.images.split(size)
        if len(images) == size
    ]
    with torch.no_grad():
        seconds, output = clock.timed(bench.wait, partial(call, batches[0]))
        outcome.compile_seconds["inference"] = seconds
        outcome.output_error = _output_error(bench, net, batches[0], output)
        numerics.load_weights(torch, net, bench.trials[-1])
        output = call(batches[0])
        outcome.updated_output_error = _output_error(bench, net, batches[0], output)
        eagerly, compiled = _in_turns(
            bench, INFERENCE_SAMPLES, lambda n, form: form(batches[n % len(batches)]), net, call
        )
        outcome.observed["inference"] = eager.profile(
            torch, bench.accelerator, partial(call, batches[0])
        )
    outcome.inference_eager_ms = eagerly * 1e6 / size
    outcome.inference_ms = compiled * 1e6 / size


def _output_error(bench: Bench, net: Any, images: Any, output: Any) -> float:
    exact = numerics.network(bench.torch, model.PUBLISHED).double().eval()
    exact.load_state_dict(net.state_dict())
    return arithmetic.relative_error(output, exact(images.cpu().double()))


def _measure_training(bench: Bench, outcome: Outcome) -> None:
    torch = bench.torch
    torch._dynamo.reset()
    plain = eager.prepare(torch, bench.accelerator, bench.form, numerics.SEED)
    # The generated code draws the dropout masks.
    form = replace(bench.form, byte_masks=False)
    compiled = eager.prepare(torch, bench.accelerator, form, numerics.SEED)
    compiled.model = _compiled(bench, outcome.backend, compiled.model)
    batches = [
        (model.arrange(torch, images, bench.form), labels)
        for images, labels in eager.batches(bench.training, STEPS_A_BLOCK)
    ]
    for job in (plain, compiled):
        job.model.train()
    first = partial(eager.step, compiled, *batches[0])
    outcome.compile_seconds["training"] = clock.timed(bench.wait, first)[0]
    for job in (plain, compiled):
        _steps(job, batches)
    each = _in_turns(bench, TRAINING_BLOCKS, lambda _, job: _steps(job, batches), plain, compiled)
    outcome.training_eager_ms, outcome.training_ms = (
        seconds / len(batches) * 1000 for seconds in each
    )
    outcome.observed["training"] = eager.profile(
        torch, bench.accelerator, partial(_steps, compiled, batches[:PROFILED_STEPS])
    )


def _in_turns(
    bench: Bench, rounds: int, work: Callable[[int, Any], Any], eagerly: Any, compiled: Any
) -> Tuple[float, float]:
    """Return the median seconds of ``work`` with ``eagerly`` and with ``compiled``.

    ``work`` receives the number of the round and one of the two. They are timed alternately,
    because the machine's speed may change.
    """
    spent: List[List[float]] = [[], []]
    for number in range(rounds):
        for samples, subject in zip(spent, (eagerly, compiled)):  # noqa: B905 - Python 3.8
            samples.append(clock.timed(bench.wait, partial(work, number, subject))[0])
    return statistics.median(spent[0]), statistics.median(spent[1])


def _steps(job: eager.Job, batches: List[Tuple[Any, Any]]) -> None:
    for images, labels in batches:
        eager.step(job, images, labels)


def _within(error: Optional[float]) -> bool:
    return error is not None and error <= OUTPUT_TOLERANCE


def verdict(outcome: Outcome, tolerance: float) -> Tuple[str, str]:
    """Return the status and detail of the check "compile BACKEND".

    A fault is a warning, never a failure, because the environment trains eagerly. A backend with
    wrong results is merely not recommended.
    """
    name = outcome.backend
    problems = []
    wrong = {form: c for form, c in outcome.gradients.items() if not c.passed(tolerance)}
    if wrong:
        form, comparison = max(wrong.items(), key=lambda item: item[1].worst()[1])
        parameter, error = comparison.worst()
        problems.append(
            f"compiled training with {name} gives wrong gradients on this machine "
            f"({parameter}: relative error {error:.2g}, {form} form); its training numbers "
            "do not count; do not use torch.compile for training with this build"
        )
    if outcome.output_error is not None and not _within(outcome.output_error):
        problems.append(
            f"compiled inference with {name} gives wrong outputs on this machine (relative error "
            f"{outcome.output_error:.2g}); its inference numbers do not count"
        )
    elif outcome.updated_output_error is not None and not _within(outcome.updated_output_error):
        problems.append(
            f"compiled inference with {name} keeps using old weights after they change in place "
            f"(relative error {outcome.updated_output_error:.2g}): compile again after each change"
        )
    if problems and name == "zentorch" and os.environ.get(WEIGHT_CACHE) != "0":
        problems.append(f"zentorch's cache of packed weights does this; set {WEIGHT_CACHE}=0")
    if outcome.error:
        problems.append(f"{name} could not be measured: {outcome.error}")
    if problems:
        return WARNING, "; ".join(problems)
    return PASSED, f"gradients and outputs of {name} agree with float64"


def summary(outcome: Outcome, tolerance: float) -> Dict[str, Any]:
    """Return a backend's entry in the report's ``compile``: errors, milliseconds and speedups.

    A speedup above 1 means that the backend is faster than eager mode. ``counts`` tells whether
    timings are valid.
    """
    return {
        "backend": outcome.backend,
        "error": outcome.error,
        "compile_seconds": dict(outcome.compile_seconds),
        "gradients": {
            "passed": outcome.gradients_pass(tolerance),
            "tolerance": tolerance,
            "forms": {
                form: {"loss": c.loss, "gradients": c.gradients}
                for form, c in outcome.gradients.items()
            },
        },
        "inference": {
            "ms_per_1000_images": outcome.inference_ms,
            "eager_ms_per_1000_images": outcome.inference_eager_ms,
            "speedup_over_eager": _ratio(outcome.inference_eager_ms, outcome.inference_ms),
            "output_error": outcome.output_error,
            "output_error_after_update": outcome.updated_output_error,
            "counts": _within(outcome.output_error) and outcome.inference_ms is not None,
        },
        "training": {
            "ms_per_step": outcome.training_ms,
            "eager_ms_per_step": outcome.training_eager_ms,
            "speedup_over_eager": _ratio(outcome.training_eager_ms, outcome.training_ms),
            "counts": outcome.gradients_pass(tolerance) and outcome.training_ms is not None,
        },
        "kernels": {phase: observation.top() for phase, observation in outcome.observed.items()},
    }


def _ratio(dividend: Optional[float], divisor: Optional[float]) -> Optional[float]:
    return dividend / divisor if dividend and divisor else None
