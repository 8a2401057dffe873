"""The accelerators that profiles are for, one row each, in the order of preference.

All that differs between them is in their rows, so another one is another row: a vendor's GPUs and
how they are judged (`gpus/`), what the locked wheels state, and what to call it. Elsewhere only the
CPU is compared by name, which every host has. The payload has such a table, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.host.model import Gpu, Host, Vendor
from envbuilder.profiles import gpus
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Target
from envbuilder.profiles.needs import LEVELS, Finding, Level, Needs, named, of_wheels, worst
from envbuilder.profiles.profile import Requires, sm_of

if TYPE_CHECKING:
    from envbuilder.core import types
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device, by whose GPUs it works. The CPU has neither a vendor nor a judge."""

    vendor: Vendor | None = None
    brand: str = ""
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Judge one GPU; the last argument is whether for a native environment or for an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """How much a GPU can do, as a sort key: of several that do not work, the best is reported."""
    hide: Callable[[Sequence[Gpu], Sequence[Gpu]], dict[str, str] | None] = lambda gpus, best: {}
    """Return the variables that show the framework only the selected GPUs; None if none can."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Check what native environments need from the host in addition."""
    required: Callable[[Requires, Needs], bool] = lambda requires, needs: False
    """Whether a profile for another device needs such a GPU all the same."""
    locked: Callable[[Target, Needs, bool], Needs] = lambda target, needs, wsl: needs
    """Add to the needs what the locked files state about GPUs and drivers, also under WSL."""
    hardware: str = ""
    """What it needs in words, if versions and kernels do not state it."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for it in addition to the one of its name, in order of preference."""


ACCELERATORS: dict[types.Accelerator, Accelerator] = {
    "cuda": Accelerator(
        vendor="nvidia",
        brand="NVIDIA",
        judge=lambda gpu, needs, native: gpus.judge_nvidia(gpu, needs),
        capability=gpus.nvidia_capability,
        hide=gpus.hide_nvidia,
        required=lambda requires, needs: bool(needs.nvidia_driver or needs.sm),
        locked=lambda target, needs, wsl: gpus.locked_nvidia(target, needs, wsl=wsl),
        variants=("cuda-legacy",),
    ),
    "rocm": Accelerator(
        vendor="amd",
        brand="AMD",
        judge=lambda gpu, needs, native: gpus.judge_amd(gpu, needs, native=native),
        capability=gpus.amd_capability,
        hide=gpus.hide_amd,
        required=lambda requires, needs: bool(needs.gfx),
        locked=lambda target, needs, wsl: gpus.locked_amd(target, needs),
        hardware="Linux's driver amdgpu",
    ),
    "xpu": Accelerator(
        vendor="intel",
        brand="Intel",
        judge=lambda gpu, needs, native: gpus.judge_intel(gpu, native=native),
        capability=gpus.intel_capability,
        hide=gpus.hide_intel,
        native=gpus.level_zero,
        required=lambda requires, needs: requires.intel_gpu,
        hardware="an Intel GPU, and Intel's GPU runtime (Level Zero) from the system",
    ),
    "mps": Accelerator(
        vendor="apple",
        brand="Apple",
        judge=lambda gpu, needs, native: gpus.judge_apple(gpu),
        hardware="Apple silicon",
    ),
    "cpu": Accelerator(variants=("zendnn", "cpu-debian", "zendnn-debian", "cpu-ipex")),
}


_WORKS: tuple[Level, ...] = ("note", "warning")
_SEEN = ("unsupported", "unlisted", "no-instances")
"""Obstacles of GPUs that a framework sees all the same."""


def of_vendor(vendor: Vendor) -> types.Accelerator | None:
    """Return the accelerator that a vendor's GPUs are; None if no profile can be for them."""
    return next((name for name, row in ACCELERATORS.items() if row.vendor == vendor), None)


def needed(profile: Profile, needs: Needs) -> Accelerator:
    """Return the accelerator that a profile needs: its own, or the GPU that it requires."""
    for name, row in ACCELERATORS.items():
        if profile.accelerator == name or row.required(profile.requires, needs):
            return row
    return ACCELERATORS[profile.accelerator]


def needs(
    profile: Profile, lock: Lock | None, platform: types.Platform, *, wsl: bool = False
) -> Needs:
    """Return what a profile's wheels for one platform need. All Pythons have the same torch.

    `wsl`: under WSL, where the driver is that of Windows.
    """
    requires = profile.requires
    stated = Needs(
        sm=sm_of(requires, platform),
        sm_ptx=requires.sm_ptx,
        gfx=requires.gfx,
        gfx_partly=requires.gfx_partly,
        nvidia_driver=requires.nvidia_driver,
        macos=requires.macos,
    )
    target = profile_lock.first(lock, platform)
    if target is None:
        return stated
    wheels = tuple(f.basename for f in target.of_kind("wheel"))
    locked = ACCELERATORS[profile.accelerator].locked(target, of_wheels(wheels), wsl)
    return Needs(
        sm=stated.sm or locked.sm,
        sm_ptx=stated.sm_ptx if stated.sm else locked.sm_ptx,
        gfx=stated.gfx or locked.gfx,
        gfx_partly=stated.gfx_partly if stated.gfx else locked.gfx_partly,
        nvidia_driver=stated.nvidia_driver or locked.nvidia_driver,
        macos=stated.macos or locked.macos,
        glibc=locked.glibc,
    )


def findings(profile: Profile, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about the GPUs that a profile needs.

    Those that work best decide; the others are hidden from the framework, by variables if it would
    use them. If none works, the most capable one is reported.
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
            # Worded alike for all vendors, so that one cause is one sentence.
            text = f"whether there is a GPU is unknown: {unknown[0].detail.rstrip('.')}"
            return [Finding("warning", text, "unread", unknown[0])]
        return [Finding("no", f"no {row.brand} GPU was found", "no-gpu")]
    judged = [(gpu, row.judge(gpu, needs, native)) for gpu in gpus]
    judged.sort(key=lambda pair: row.capability(pair[0]), reverse=True)
    best = min((worst(findings) for _, findings in judged), key=LEVELS.index)
    deciding = [pair for pair in judged if worst(pair[1]) == best]
    if best not in _WORKS:
        return deciding[0][1]
    return [
        *(finding for _, findings in deciding for finding in findings),
        *_left_out(row, gpus, [gpu for gpu, _ in deciding]),
    ]


def _left_out(row: Accelerator, gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> list[Finding]:
    """Return a note on GPUs that the framework would use although others work better."""
    # Those that it does not see need not be hidden: no driver, no node, another container's.
    others = [
        g for g in gpus if g not in selected and (g.state != "present" or g.obstacle in _SEEN)
    ]
    variables = row.hide(gpus, selected) if others else {}
    names = " and ".join(named(gpu) for gpu in others)
    if variables is None:
        text = f"{names} must be hidden from it, and no variable can: their order is unknown"
        return [Finding("warning", text, "left-out", others[0])]
    if not variables:
        return []
    setting = " ".join(f"{name}={value}" for name, value in variables.items())
    text = f"{names} left out: envbuilder sets {setting}"
    return [Finding("note", text, "left-out", others[0], variables)]
