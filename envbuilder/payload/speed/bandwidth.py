"""Memory bandwidth: on the device, between host and device, and between two devices.

On a device it is STREAM's triad, a = b + s·c, over arrays too large for its caches; as in STREAM,
the bytes of all three arrays count. Copies count their bytes once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Optional, Tuple

from ..machine import clock, device, memory
from ..machine.accelerators import ACCELERATORS, device_of

MIB = 1 << 20
LEAST_ARRAY, MOST_ARRAY = 64 * MIB, 512 * MIB
COPY = 64 * MIB
SHARE = 16
"""One array takes at most the free memory divided by this; three are needed."""

PATHS = (
    "device",
    "host_to_device",
    "host_to_device_pinned",
    "device_to_host",
    "device_to_host_pinned",
    "device_to_device",
)

Measurement = Callable[[], Optional[float]]


def measurements(torch: Any, accelerator: str, budget: float) -> Dict[str, Measurement]:
    """Return path → function that measures its bytes per second, in about ``budget`` seconds each.

    For a path that does not exist here, the function returns None.
    """
    functions: Dict[str, Measurement] = dict.fromkeys(PATHS, _none)
    functions["device"] = partial(_triad, torch, accelerator, budget)
    if accelerator == "cpu":
        return functions
    row = ACCELERATORS[accelerator]
    for pinned in (False, True) if row.pinned else (False,):
        suffix = "_pinned" if pinned else ""
        copy = partial(_copy, torch, accelerator, budget, pinned)
        functions[f"host_to_device{suffix}"] = partial(copy, to_device=True)
        functions[f"device_to_host{suffix}"] = partial(copy, to_device=False)
    if row.collective and row.count(torch) > 1:
        functions["device_to_device"] = partial(_between, torch, accelerator, budget)
    return functions


def _none() -> Optional[float]:
    return None


def array_bytes(accelerator: str, free: Optional[int], cache: Optional[int]) -> int:
    """Return the size of one array, so that three are at least four times the CPU's caches.

    It is limited by ``MOST_ARRAY`` and by a fraction of the free memory.
    """
    size = LEAST_ARRAY if accelerator == "cpu" else MOST_ARRAY
    # Three arrays together are then at least four times the caches.
    size = min(MOST_ARRAY, max(size, (cache or 0) * 4 // 3))
    return size if free is None else max(MIB, min(size, free // SHARE))


def _triad(torch: Any, accelerator: str, budget: float) -> float:
    size = array_bytes(accelerator, *_room(torch, accelerator))
    first, second, result = (torch.ones(size // 4, device=device_of(accelerator)) for _ in range(3))
    work = partial(torch.add, first, second, alpha=3, out=result)
    return 3 * size / clock.median_seconds(device.waiter(torch, accelerator), work, budget)


def _room(torch: Any, accelerator: str) -> Tuple[Optional[int], Optional[int]]:
    free = ACCELERATORS[accelerator].free
    if free:
        return int(getattr(ACCELERATORS[accelerator].module(torch), free)()[0]), None
    # MPS and integrated GPUs use the system's memory.
    cache = memory.cache_bytes() if accelerator == "cpu" else None
    return memory.available_bytes(), cache


def _copy(torch: Any, accelerator: str, budget: float, pinned: bool, *, to_device: bool) -> float:
    host = torch.ones(COPY // 4, pin_memory=pinned)
    remote = torch.ones(COPY // 4, device=device_of(accelerator))
    target, source = (remote, host) if to_device else (host, remote)
    # non_blocking has no effect without pinned memory; with it, the copies need not wait.
    work = partial(target.copy_, source, non_blocking=pinned)
    return COPY / clock.median_seconds(device.waiter(torch, accelerator), work, budget)


def _between(torch: Any, accelerator: str, budget: float) -> float:
    row = ACCELERATORS[accelerator]
    source = torch.ones(COPY // 4, device=f"{row.device}:0")
    target = torch.ones(COPY // 4, device=f"{row.device}:1")

    def work() -> None:
        target.copy_(source)
        # The timer synchronizes the first device only.
        row.module(torch).synchronize(1)

    return COPY / clock.median_seconds(device.waiter(torch, accelerator), work, budget)
