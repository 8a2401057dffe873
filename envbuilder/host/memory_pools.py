"""Compute the memory pools that models can use on a host, as input of `model_fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.host.model_fit import Pool

if TYPE_CHECKING:
    from envbuilder.host.model import Gpu, Host, Memory, Vendor


def pools(host: Host, vendor: Vendor | None) -> tuple[Pool, ...]:
    """Return the memory of a vendor's usable GPUs, if any, then main memory.

    GPUs that share main memory are one pool, and main memory is not counted again. If there are
    GPUs with dedicated memory, those that share main memory are ignored.
    """
    usable = [g for g in host.gpus if g.state == "usable"]
    gpus = [g for g in usable if g.vendor == vendor]
    dedicated = [g for g in gpus if g.memory_kind != "shared"]
    if gpus and not dedicated:
        return (_shared(gpus[0], host.memory),)
    return (*(_of_gpu(g) for g in dedicated), _main(host.memory))


def _of_gpu(gpu: Gpu) -> Pool:
    total = gpu.usable_bytes if gpu.usable_bytes is not None else gpu.memory_bytes
    return Pool(
        name=gpu.name,
        # A process gets one instance of a split GPU, and which one is unknown.
        usable_bytes=None if gpu.mig else total,
        bandwidth=gpu.bandwidth,
        kind="accelerator",
    )


def _shared(gpu: Gpu, memory: Memory) -> Pool:
    return Pool(
        name=gpu.name,
        usable_bytes=gpu.usable_bytes,
        bandwidth=gpu.bandwidth or memory.bandwidth,
        kind="accelerator",
    )


def _main(memory: Memory) -> Pool:
    sizes = [n for n in (memory.total_bytes, memory.limit_bytes) if n is not None]
    return Pool(
        name="main memory",
        usable_bytes=min(sizes) if sizes else None,
        bandwidth=memory.bandwidth,
        kind="memory",
    )
