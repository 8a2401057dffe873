"""Checks that only PyTorch has: its extensions, compile backends, and Adam in an autoencoder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Tuple

from .numerics import compilers, extensions, vae
from .report import PASSED, CheckError

if TYPE_CHECKING:
    from .frameworks.torch_ import Torch
    from .run import Run

Result = Tuple[str, str]


def check_extension(name: str) -> Result:
    """Require that the extension imports together with its framework, in a separate process."""
    return PASSED, extensions.require_importable(name)


def check_vae(run: Run, framework: Torch) -> Result:
    """Require that the loss of a variational autoencoder stays finite and falls."""
    losses = vae.train(framework.torch, run.accelerator, run.tensors[0], run.options.seed)
    problems = vae.problems(losses)
    if problems:
        raise CheckError("; ".join(problems))
    return PASSED, f"loss {losses[0]:.0f} to {losses[-1]:.0f} in {len(losses)} steps"


def check_compile(run: Run, framework: Torch, backend: str) -> Result:
    """Check and time a compile backend; the measurements are kept in ``run``."""
    torch, training, test = framework.torch, run.tensors[0], run.tensors[1]
    bench = compilers.Bench(
        *(torch, run.accelerator, framework.form, training, test, framework.trials, run.tolerance)
    )
    progress = partial(run.events.progress, f"compile {backend}")
    outcome = compilers.measure(bench, backend, progress)
    run.outcomes.append(outcome)
    return compilers.verdict(outcome, run.tolerance)
