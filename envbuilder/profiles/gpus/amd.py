"""AMD: the GPUs that the libraries in a torch serve, and the driver's nodes.

Kernels run on the target that they were compiled for and on no other. The override that makes ROCm
take one GPU for another (HSA_OVERRIDE_GFX_VERSION) is a debugging aid, under which programs crash
(ROCm/MIOpen issues 3540 and 3954): nothing here counts on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from envbuilder.host import tables
from envbuilder.profiles.finding import Finding, blocked, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Gpu
    from envbuilder.profiles.finding import Level, Needs
    from envbuilder.profiles.lock import Target


def locked(target: Target, needs: Needs) -> Needs:
    """Add the GPUs that the wheels serve to `needs`, by torch's version, such as 2.14.0+rocm7.2."""
    torch = next((f.version for f in target.of_kind("wheel") if f.name == "torch"), "")
    targets = tables.torch_targets(torch.partition("+")[2], torch)
    if targets is None:
        return needs
    return msgspec.structs.replace(needs, gfx=targets.gfx, gfx_partly=targets.partly)


def judge(gpu: Gpu, needs: Needs, *, native: bool) -> list[Finding]:
    """Check the kernels, and whether driver and nodes let this process use the GPU."""
    kernels = _kernels(needs, gpu)
    if gpu.state == "usable":
        return [*kernels, Finding("note", f"kernel driver {gpu.kernel_driver}")]
    text = f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    # The engine opens the nodes as root, and the container joins the groups that own them.
    reachable = gpu.obstacle == "node-closed" and not native
    level: Level = "warning" if gpu.state == "unknown" or reachable else "no"
    # Worth knowing before anything is repaired: whether the wheels serve the GPU at all.
    worse = [f for f in kernels if f.level == "no" or f.code == "kernels-partly"]
    return [*worse, blocked(level, text, gpu)]


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: a card before an APU, then by memory."""
    return gpu.state == "usable", gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def hide(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
    """Return the variable that shows HIP only some GPUs; None if it is not certain what it sees.

    HIP numbers the GPUs that ROCm can open in the order of the compute driver, which is theirs.
    """
    # A container may see those that this user may not open.
    if any(gpu.state == "unknown" or gpu.obstacle == "node-closed" for gpu in gpus):
        return None
    seen = [gpu for gpu in gpus if gpu.state == "usable"]
    places = [str(place) for place, gpu in enumerate(seen) if gpu in selected]
    return {"HIP_VISIBLE_DEVICES": ",".join(places)}


def _kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Check whether the wheels' libraries serve a GPU."""
    if not needs.gfx:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.family is None:
        text = f"which chip {named(gpu)} is could not be read"
        return [Finding("warning", text, "gfx-unread", gpu)]
    if gpu.family in needs.gfx:
        return [Finding("note", f"{gpu.name} is {gpu.family}")]
    if gpu.family in needs.gfx_partly:
        text = f"{named(gpu)} is {gpu.family}, which only some of the wheels' libraries serve"
        return [Finding("warning", text, "kernels-partly", gpu)]
    text = f"{named(gpu)} is {gpu.family}; the wheels serve {', '.join(needs.gfx)}"
    return [Finding("no", text, "kernels", gpu)]
