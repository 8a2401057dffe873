"""One accelerator as torch sees it: whether it is usable, and waiting for it."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from ..report import CheckError
from .accelerators import ACCELERATORS, build_of, device_of


def synchronize(torch: Any, accelerator: str) -> None:
    """Wait until the device has finished; without this, timings measure only the queueing."""
    if accelerator != "cpu":
        ACCELERATORS[accelerator].module(torch).synchronize()


def allocated(torch: Any, accelerator: str) -> Optional[int]:
    """Return the bytes that torch now holds on the device; None if torch does not count them."""
    row = ACCELERATORS[accelerator]
    return row.counted(torch, row.allocated)


def used(accelerator: str, devices: Sequence[str]) -> str:
    """Return the accelerator if torch's device types are its own alone, else those types."""
    own = [device_of(accelerator)]
    return accelerator if list(devices) == own else ", ".join(devices)


def require_build(torch: Any, accelerator: str) -> str:
    """Return a sentence on the build; raise CheckError if it can never drive the accelerator."""
    version, build = str(torch.__version__), build_of(torch)
    row = ACCELERATORS[accelerator]
    if row.drives(torch):
        return f"torch {version} is a {build} build, which can drive {accelerator}"
    driven = [name for name, other in ACCELERATORS.items() if other.drives(torch)]
    raise CheckError(
        f"torch {version} is a {build} build and cannot use {accelerator}; "
        f"install {row.build}, or verify with --device {driven[-1]}"
    )


def require_usable(torch: Any, accelerator: str) -> str:
    """Allocate, compute, read back and compare; raise CheckError with the reason if this fails."""
    row = ACCELERATORS[accelerator]
    if accelerator != "cpu" and not row.available(torch):
        raise CheckError(f"no {accelerator} device can be used: {_why_not(torch, accelerator)}")
    size = 1 << 20
    try:
        values = torch.arange(size, dtype=torch.float32, device=row.device)
        # float32 is exact for integers below 2**24, so the result must be equal, not close.
        returned = (values * 2 + 1).to("cpu")
    except RuntimeError as error:
        kernels = row.kernels(torch)
        hint = f" ({kernels})" if kernels else ""
        raise CheckError(f"{accelerator} cannot compute: {error}{hint}") from error
    if not torch.equal(returned, torch.arange(size, dtype=torch.float32) * 2 + 1):
        raise CheckError(f"{accelerator} returned wrong numbers for x * 2 + 1 of whole numbers")
    return f"{row.describe(torch)['name']}: allocated, computed and read back"


def _why_not(torch: Any, accelerator: str) -> str:
    # is_available() swallows the reason; using the device raises it.
    try:
        torch.zeros(1, device=device_of(accelerator))
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch reports it as unavailable, without a reason"
