"""The accelerators that profiles are for, one row each, in the order of preference.

All that differs between them is in their rows, so another one is another row: a vendor's GPUs and
how they are judged (`gpus/`), what the locked wheels state, and what to call it. Elsewhere only the
CPU is compared by name, which every host has. The payload has such a table, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.host.model import Gpu, Host, Vendor
from envbuilder.profiles.finding import Finding, Needs
from envbuilder.profiles.gpus import apple, intel, nvidia
from envbuilder.profiles.lock import Target
from envbuilder.profiles.profile import Requires

if TYPE_CHECKING:
    from envbuilder.core import types
    from envbuilder.profiles.profile import Profile


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device, by whose GPUs it works. The CPU has neither a vendor nor a judge."""

    vendor: Vendor | None = None
    brand: str = ""
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Judge one GPU; the last argument is whether for a native environment or for an image."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Check what native environments need from the host in addition."""
    required: Callable[[Requires, Needs], bool] = lambda requires, needs: False
    """Whether a profile for another device needs such a GPU all the same."""
    locked: Callable[[Target, Needs], Needs] = lambda target, needs: needs
    """Add to the needs what the locked files state about GPUs and drivers."""
    hardware: str = ""
    """What it needs in words, if versions and kernels do not state it."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for it in addition to the one of its name, in order of preference."""


ACCELERATORS: dict[types.Accelerator, Accelerator] = {
    "cuda": Accelerator(
        vendor="nvidia",
        brand="NVIDIA",
        judge=lambda gpu, needs, native: nvidia.judge(gpu, needs),
        required=lambda requires, needs: bool(needs.nvidia_driver or needs.sm),
        locked=nvidia.locked,
        variants=("cuda-legacy",),
    ),
    "xpu": Accelerator(
        vendor="intel",
        brand="Intel",
        judge=lambda gpu, needs, native: intel.judge(gpu, native=native),
        native=intel.level_zero,
        required=lambda requires, needs: requires.intel_gpu,
        hardware="an Intel GPU, and Intel's GPU runtime (Level Zero) from the system",
    ),
    "mps": Accelerator(
        vendor="apple",
        brand="Apple",
        judge=lambda gpu, needs, native: apple.judge(gpu),
        hardware="Apple silicon",
    ),
    "cpu": Accelerator(variants=("zendnn", "cpu-debian", "zendnn-debian", "cpu-ipex")),
}


def of_vendor(vendor: Vendor) -> types.Accelerator | None:
    """Return the accelerator that a vendor's GPUs are; None if no profile can be for them."""
    return next((name for name, row in ACCELERATORS.items() if row.vendor == vendor), None)


def needed(profile: Profile, needs: Needs) -> Accelerator:
    """Return the accelerator that a profile needs: its own, or the GPU that it requires."""
    for name, row in ACCELERATORS.items():
        if profile.accelerator == name or row.required(profile.requires, needs):
            return row
    return ACCELERATORS[profile.accelerator]


def findings(profile: Profile, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about the GPUs that a profile needs.

    The worst of the working GPUs decides, because torch sees them all. GPUs that do not work
    matter only if none does.
    """
    row = needed(profile, needs)
    if row.vendor is None:
        return []
    return [*_of_gpus(row, host, needs, native=native), *(row.native(host) if native else ())]


def _of_gpus(row: Accelerator, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    gpus = [gpu for gpu in host.gpus if gpu.vendor == row.vendor]
    if not gpus:
        unknown = [gpu for gpu in host.gpus if gpu.vendor == "unknown"]
        if unknown:
            reason = unknown[0].detail.rstrip(".")
            text = f"whether there is an {row.brand} GPU is unknown: {reason}"
            return [Finding("warning", text, "unread", unknown[0])]
        return [Finding("no", f"no {row.brand} GPU was found", "no-gpu")]
    for state in ("usable", "unknown", "present"):
        group = [gpu for gpu in gpus if gpu.state == state]
        if group:
            return [finding for gpu in group for finding in row.judge(gpu, needs, native)]
    return []
