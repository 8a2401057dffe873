"""Extensions of frameworks: first tried in a separate process, because some end the whole process.

IPEX with another minor version of torch calls os._exit, which no ``try`` catches.
"""

from __future__ import annotations

import importlib
import subprocess
from typing import Any

from .. import start
from ..machine import facts
from ..machine.accelerators import device_of
from ..report import CheckError
from ..training import eager
from ..training.model import arrange, fastest
from .numerics import load_weights, network
from .reference import Step, Trial

IMPORT_TIMEOUT = 300.0
"""Seconds; a cold import from a slow disk takes half a minute."""

MARK = "imported-by-envbuilder"
"""Start of the last line that the subprocess prints."""


def require_importable(name: str, timeout: float = IMPORT_TIMEOUT) -> str:
    """Import framework and extension in a subprocess; return a sentence with its version.

    Raises CheckError with the last lines of its output if the import fails or ends the process.
    """
    module, framework = facts.EXTENSIONS[name], facts.EXTENDED.get(name, "torch")
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
        return f"{module} {version[-1].partition(' ')[2]} imports with this {framework}"
    last = [
        text.strip().splitlines()[-1].strip() for text in (done.stdout, done.stderr) if text.strip()
    ]
    output = "; ".join(last) or "no output"
    raise CheckError(f"{module} cannot be imported (exit {done.returncode}): {output}")


def load(name: str) -> Any:
    """Import into this process an extension that ``require_importable`` accepted."""
    return importlib.import_module(facts.EXTENSIONS[name])


def optimize(ipex: Any, job: eager.Job) -> None:
    """Let IPEX replace the job's network and optimizer with its own, in float32, for training."""
    job.model.train()
    job.model, optimizer = ipex.optimize(job.model, optimizer=job.optimizer)
    job.extension = "ipex.optimize"
    # The existing schedule would still change the learning rate of the old optimizer.
    eager.scheduled(job, optimizer)


def ipex_step(torch: Any, ipex: Any, accelerator: str, trial: Trial) -> Step:
    """Run a trial's step through IPEX; derive its gradients from the change that plain SGD makes.

    IPEX keeps packed weights, whose gradients are packed, too. With learning rate 1 and no momentum
    the gradient is the weight before minus the weight after.
    """
    net = network(torch, fastest(accelerator)).to(device_of(accelerator)).train()
    load_weights(torch, net, trial)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net, optimizer = ipex.optimize(net, optimizer=optimizer)
    before = eager.weights(net)
    optimizer.zero_grad()
    images = arrange(torch, trial.images, fastest(accelerator))
    loss = torch.nn.functional.nll_loss(net(images), trial.labels)
    loss.backward()
    optimizer.step()
    after = eager.weights(net)
    return Step(float(loss.detach()), {name: before[name] - after[name] for name in before})
