"""One device as JAX sees it: what it is, what it holds, copies to and from it, and waiting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from ..machine import memory


@dataclass(frozen=True)
class Platform:
    """How JAX calls an accelerator, and what makes it drive one."""

    name: str
    device_type: str = "gpu"
    """What most versions call its devices."""
    plugins: Dict[str, str] = field(default_factory=dict)
    """Distribution → the build that it makes of JAX, whose own wheels are the same everywhere."""
    extra: str = ""
    """The extra of JAX that installs them."""


PLATFORMS = {
    "cpu": Platform("cpu", device_type="cpu"),
    "cuda": Platform(
        "cuda",
        plugins={"jax-cuda13-plugin": "cu13", "jax-cuda12-plugin": "cu12"},
        extra="cuda13",
    ),
    "xpu": Platform("oneapi", plugins={"jax-oneapi-plugin": "xpu"}, extra="oneapi"),
}
"""Accelerator → its platform; JAX has more, which are not judged."""


class JaxDevice:
    """The first device of an accelerator."""

    def __init__(self, jax: Any, numpy: Any, accelerator: str) -> None:
        self.jax, self.numpy, self.accelerator = jax, numpy, accelerator

    @property
    def device(self) -> Any:
        """JAX's own object; this raises what JAX raises if there is none."""
        return self.jax.devices(PLATFORMS[self.accelerator].name)[0]

    def counted(self, name: str) -> Optional[int]:
        """Return one of its memory counters; None on the CPU, which has none."""
        counted: Optional[int] = (self.device.memory_stats() or {}).get(name)
        return counted

    def free(self) -> Optional[int]:
        """Return the bytes that can still be allocated; None if unknown."""
        if self.accelerator == "cpu":
            return memory.available_bytes()
        limit, used = self.counted("bytes_limit"), self.counted("bytes_in_use")
        return None if limit is None or used is None else limit - used

    def put(self, value: Any) -> Any:
        """Copy an array, or several, to the device."""
        # Never a view of numpy's memory: training steps reuse that of their arguments.
        return self.jax.device_put(value, self.device, may_alias=False)

    def fetch(self, array: Any) -> Any:
        """Return numpy's view or copy of an array."""
        return self.numpy.asarray(array)

    def wait(self, result: Any = None) -> None:
        """Wait for a result, or for all arrays that there are."""
        pending = self.jax.live_arrays(self.device.platform) if result is None else result
        self.jax.block_until_ready(pending)


def type_of(device: Any) -> str:
    """Return the type of one of JAX's devices; some versions give a platform's name instead."""
    types = {row.name: row.device_type for row in PLATFORMS.values()}
    return types.get(device.platform, str(device.platform))
