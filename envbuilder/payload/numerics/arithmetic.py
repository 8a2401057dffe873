"""Correctness of the arithmetic: every case on the device against float64 on the CPU, by dtype.

All errors are relative and norm-wise: the norm of the difference over the norm of the reference.
Both sides start from equal numbers, rounded to the device's dtype. In float32 each case must run;
half precision is checked if the device supports it, and unsupported cases are listed.
"""

from __future__ import annotations

import math
from typing import Any, Optional

from ..evidence import Errors
from ..machine.accelerators import device_of
from .cases import CASES, Case, Outputs

SEED = 1
SCALE = 0.25
"""Scale of the random numbers; it keeps every sum of every case within float16's range."""

TOLERANCE = {"float32": 5e-5, "tf32": 3e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""float32 with any algorithm (Winograd included) stays near 1e-6, and TF32 cannot reach 1e-4.
Results and gradients of half types differed by at most 5e-3 (bfloat16) and 7e-4 (float16) with
torch 2.13.0 on the CPU; the rest is for devices that accumulate in half precision. A wrong result
differs by 0.1 to 1."""

HALVES = ("bfloat16", "float16")

LACKING = ("not implemented", "not supported", "unsupported", "arch mismatch", "no kernel image")
"""Phrases with which torch and its libraries report that a device lacks an operator for a dtype."""


def errors(torch: Any, accelerator: str, dtype: str, stated: str) -> Errors:
    """Run every case in ``dtype``; the tolerance for float32 is that of the stated precision."""
    result = Errors(dtype, TOLERANCE[stated if dtype == "float32" else dtype])
    for name, case in CASES.items():
        error = _case_error(torch, accelerator, case, dtype)
        if error is None:
            result.lacking.append(name)
        else:
            result.by_case[name] = error
    return result


def _case_error(torch: Any, accelerator: str, case: Case, dtype: str) -> Optional[float]:
    try:
        ours = _run(torch, case, device_of(accelerator), dtype, dtype)
    except (RuntimeError, TypeError) as error:
        if dtype in HALVES and says_lacking(error):
            return None
        raise
    exact = _run(torch, case, "cpu", dtype, "float64")
    return max(relative_error(ours[number], exact[number]) for number in range(len(exact)))


def _run(torch: Any, case: Case, place: str, rounded: str, dtype: str) -> Outputs:
    generator = torch.Generator().manual_seed(SEED)

    def make(*shape: int) -> Any:
        values = torch.randn(*shape, generator=generator, dtype=torch.float32) * SCALE
        values = values.to(getattr(torch, rounded))
        return values.to(place, getattr(torch, dtype)).requires_grad_()

    return case(torch, make)


def says_lacking(error: BaseException) -> bool:
    """Return whether an error says that a device lacks an operator for a dtype."""
    text = str(error).lower().replace("_", " ")
    return any(words in text for words in LACKING)


def relative_error(ours: Any, exact: Any) -> float:
    """Return the difference's norm over that of ``exact``; infinite if anything is not finite."""
    difference = (ours.detach().to("cpu").double() - exact.detach()).norm()
    error = float(difference / exact.detach().norm())
    return error if math.isfinite(error) else math.inf
