"""Intel: whether PyTorch supports a GPU, and the runtime that native environments need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.profiles.finding import Finding, blocked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Gpu, Host


def judge(gpu: Gpu, *, native: bool) -> list[Finding]:
    """Check whether PyTorch supports a GPU and its device node can be opened."""
    if gpu.support == "validated" and gpu.render_node_readable is False and not native:
        # The engine opens the node as root, and the container joins the group that owns it.
        return [blocked("warning", _sentence(gpu), gpu)]
    if gpu.support == "unsupported" or gpu.state == "present":
        return [blocked("no", _sentence(gpu), gpu)]
    if gpu.state == "unknown":
        return [blocked("warning", _sentence(gpu), gpu)]
    if gpu.support != "validated":
        text = f"{gpu.name} is not on PyTorch's list of validated Intel GPUs; it may work"
        return [Finding("warning", text, "unlisted", gpu)]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: supported before others, discrete before integrated."""
    support = ("unsupported", None, "unlisted", "validated").index(gpu.support)
    return support, gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def hide(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
    """Return the variable that shows torch.xpu only some GPUs; empty if it sees no others.

    torch.xpu uses discrete GPUs alone if there is one (c10/xpu, note on device management). Level
    Zero numbers discrete GPUs first, by PCI address, then the integrated one.
    """
    discrete = [gpu for gpu in gpus if gpu.memory_kind == "dedicated" and _is_seen(gpu)]
    if all(gpu in selected for gpu in discrete) and discrete:
        return {}
    if not all(gpu.bus for gpu in gpus):
        return None
    discrete.sort(key=lambda gpu: gpu.bus or "")
    integrated = [gpu for gpu in gpus if gpu not in discrete and _is_seen(gpu)]
    order = [*discrete, *integrated]
    places = [str(place) for place, gpu in enumerate(order) if gpu in selected]
    return {"ZE_AFFINITY_MASK": ",".join(places)}


def _is_seen(gpu: Gpu) -> bool:
    """Return whether Level Zero sees a GPU: a driver is bound to it, and its node can be opened."""
    driven = gpu.kernel_driver in ("i915", "xe")
    return gpu.state != "present" or (gpu.obstacle == "unsupported" and driven)


def _sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    return detail if detail.startswith(gpu.name.partition(" (")[0]) else f"{gpu.name}: {detail}"


def level_zero(host: Host) -> list[Finding]:
    """Check for the GPU runtime, which native environments use from the host; images contain it."""
    if host.level_zero:
        return []
    if host.level_zero is None:
        text = "whether Level Zero is installed could not be read"
        return [Finding("warning", text, "level-zero-unread")]
    text = (
        "Level Zero and Intel's GPU driver for it, which no wheel contains, are not installed "
        "(libze1, libze-intel-gpu1)"
    )
    return [Finding("no", text, "level-zero")]
