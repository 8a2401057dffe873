"""Checks that apply only to PyTorch: arithmetic, extensions and compile backends."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING, Tuple

from . import start
from .machine import facts
from .numerics import arithmetic, compilers, numerics
from .report import PASSED, CheckError

if TYPE_CHECKING:
    from .frameworks.torch_ import Torch
    from .run import Run

Result = Tuple[str, str]

IMPORT_TIMEOUT = 300.0
"""Seconds; a cold import from a slow disk takes half a minute."""

MARK = "imported-by-envbuilder"
"""Start of the last line that the subprocess prints."""


def check_extension(name: str, timeout: float = IMPORT_TIMEOUT) -> Result:
    """Require that the extension imports together with its framework, in a separate process.

    The process is separate because some extensions end the whole process: IPEX with a different
    minor version of torch calls os._exit, which no ``try`` catches.
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
    """Compare small computations with float64 in every dtype that the device supports.

    Other frameworks are verified only by their repeated steps and answers, because none of their
    known faults would show in such a computation.
    """
    stated = run.options.precision
    errors = partial(arithmetic.errors, framework.torch, run.accelerator)
    results = [errors(dtype, stated) for dtype in ("float32", *arithmetic.HALVES)]
    wrong = [phrase for result in results for phrase in result.wrong()]
    phrases = "; ".join(result.phrase() for result in results)
    if wrong:
        raise CheckError(f"wrong numbers against float64: {', '.join(wrong)}; of {phrases}")
    return PASSED, f"against float64: {phrases}"


def check_compile(run: Run, framework: Torch, backend: str) -> Result:
    """Check and time a compile backend, and keep the measurements in ``run``."""
    torch = framework.torch
    training = run.tensors[0]
    test = run.tensors[1]
    bench = compilers.Bench(
        torch,
        run.accelerator,
        framework.form,
        training,
        test,
        numerics.trials(torch, training),
        run.tolerance,
    )
    outcome = compilers.measure(bench, backend, partial(run.events.progress, f"compile {backend}"))
    run.outcomes.append(outcome)
    return compilers.verdict(outcome, run.tolerance)
