"""Checks that only PyTorch has: arithmetic, extensions, compile backends, an autoencoder."""

from __future__ import annotations

import math
import statistics
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, List, Tuple

from . import start
from .machine import facts
from .machine.accelerators import device_of
from .numerics import arithmetic, compilers
from .report import PASSED, WARNING, CheckError, require_none
from .training.dataset import SIDE

if TYPE_CHECKING:
    from .frameworks.torch_ import Torch
    from .interface import Tensors
    from .run import Run

Result = Tuple[str, str]

IMPORT_TIMEOUT = 300.0
"""Seconds; a cold import from a slow disk takes half a minute."""

MARK = "imported-by-envbuilder"
"""Start of the last line that the subprocess prints."""

VAE_STEPS = 40
VAE_BATCH = 128
LEARNING_RATE = 1e-3
HIDDEN = 400
LATENT = 20
WINDOW = 5
"""Steps at each end whose mean losses are compared."""

GAIN = 0.75
"""Greatest allowed ratio of the loss at the end to that at the start. Measured with torch 2.13.0 on
the CPU, seeds 1 to 8: 0.43 to 0.44."""


def check_extension(name: str, timeout: float = IMPORT_TIMEOUT) -> Result:
    """Require that the extension imports together with its framework, in a separate process.

    Some end the whole process: IPEX with another minor version of torch calls os._exit, which no
    ``try`` catches.
    """
    module = facts.EXTENSIONS[name]
    framework = facts.EXTENDED.get(name, "torch")
    code = (
        f"import {framework}, {module} as x; print('{MARK}', getattr(x, '__version__', 'unknown'))"
    )
    try:
        done = subprocess.run(
            start.python("-W", "ignore", "-c", code),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{module} did not finish importing in {timeout:.0f} s") from None
    # Some exit with code 0 in the middle of the import: only the mark proves that it finished.
    version = [line for line in done.stdout.splitlines() if line.startswith(f"{MARK} ")]
    if done.returncode == 0 and version:
        return PASSED, f"{module} {version[-1].partition(' ')[2]} imports with this {framework}"
    last = [
        text.strip().splitlines()[-1].strip() for text in (done.stdout, done.stderr) if text.strip()
    ]
    output = "; ".join(last) or "no output"
    raise CheckError(f"{module} cannot be imported (exit {done.returncode}): {output}")


def check_arithmetic(run: Run, framework: Torch) -> Result:
    """Run small computations in every dtype that the device supports.

    Other frameworks are judged by their repeated steps and answers alone: no fault of theirs is
    known that a case of this kind would show.
    """
    stated = run.options.precision
    errors = partial(arithmetic.errors, framework.torch, run.accelerator)
    results = [errors(dtype, stated) for dtype in ("float32", *arithmetic.HALVES)]
    wrong = [phrase for result in results for phrase in result.wrong()]
    phrases = "; ".join(result.phrase() for result in results)
    if wrong:
        raise CheckError(f"wrong numbers against float64: {', '.join(wrong)}; of {phrases}")
    status = WARNING if any(result.unjudged for result in results) else PASSED
    return status, f"against float64: {phrases}"


def check_vae(run: Run, framework: Torch) -> Result:
    """Require that the loss of a variational autoencoder stays finite and falls."""
    losses = train_vae(framework.torch, run.accelerator, run.tensors[0], run.options.seed)
    require_none(vae_problems(losses))
    return PASSED, f"loss {losses[0]:.0f} to {losses[-1]:.0f} in {len(losses)} steps"


def check_compile(run: Run, framework: Torch, backend: str) -> Result:
    """Check and time a compile backend; the measurements are kept in ``run``."""
    torch = framework.torch
    training = run.tensors[0]
    test = run.tensors[1]
    bench = compilers.Bench(
        torch, run.accelerator, framework.form, training, test, framework.trials, run.tolerance
    )
    outcome = compilers.measure(bench, backend, partial(run.events.progress, f"compile {backend}"))
    run.outcomes.append(outcome)
    return compilers.verdict(outcome, run.tolerance)


# ---- a variational autoencoder: exp, random numbers on the device, and Adam
#
# The network is that of PyTorch's VAE example on MNIST (pytorch/examples, vae/main.py: 784-400-20,
# Adam 1e-3, batch 128). On early MPS its loss diverged to NaN while convolutional networks still
# trained.


def train_vae(torch: Any, accelerator: str, data: Tensors, seed: int) -> List[float]:
    """Train an autoencoder and return the loss per image of each step, fetched once at the end."""
    torch.manual_seed(seed)
    nn = torch.nn
    pixels = SIDE * SIDE
    net = nn.ModuleDict(
        {
            "encode": nn.Linear(pixels, HIDDEN),
            "mean": nn.Linear(HIDDEN, LATENT),
            "log_variance": nn.Linear(HIDDEN, LATENT),
            "decode": nn.Linear(LATENT, HIDDEN),
            "pixels": nn.Linear(HIDDEN, pixels),
        }
    ).to(device_of(accelerator))
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    batches = max(1, len(data.images) // VAE_BATCH)
    losses = []
    for step in range(VAE_STEPS):
        first = step % batches * VAE_BATCH
        images = data.images[first : first + VAE_BATCH].float().div(255).flatten(1)
        optimizer.zero_grad()
        loss = _vae_loss(torch, net, images)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() / len(images))
    return [*map(float, torch.stack(losses).tolist())]


def _vae_loss(torch: Any, net: Any, images: Any) -> Any:
    functional = torch.nn.functional
    hidden = functional.relu(net["encode"](images))
    mean = net["mean"](hidden)
    log_variance = net["log_variance"](hidden)
    latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
    logits = net["pixels"](functional.relu(net["decode"](latent)))
    # With logits: on probabilities, a number that is not finite destroys the CUDA context.
    loss = functional.binary_cross_entropy_with_logits
    reconstruction = loss(logits, images, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return reconstruction + divergence


def vae_problems(losses: List[float]) -> List[str]:
    """Return sentences on what is wrong with the losses of ``train_vae``."""
    broken = next((n for n, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
    if broken is not None:
        return [f"the loss of a variational autoencoder is not finite from step {broken} on"]
    start = statistics.mean(losses[:WINDOW])
    end = statistics.mean(losses[-WINDOW:])
    if not 0 < end <= GAIN * start:
        fell = f"went from {start:.0f} to {end:.0f} in {len(losses)} steps"
        return [
            f"the loss of a variational autoencoder {fell}; at most {GAIN * start:.0f} is expected"
        ]
    return []
