"""A GPU whose every operation runs on the CPU without a word, and whose memory "grows"."""

import importlib.metadata
import itertools

import jax

version, devices, put, alive = (
    importlib.metadata.version,
    jax.devices,
    jax.device_put,
    jax.live_arrays,
)
held = itertools.count(0, 1 << 30)


class Gpu:
    platform = "gpu"
    device_kind = "NVIDIA H100"
    compute_capability = "9.0"

    def __init__(self, cpu):
        self.cpu = cpu
        self.client = cpu.client

    def memory_stats(self):
        used = next(held)
        return {"bytes_in_use": used, "peak_bytes_in_use": used, "bytes_limit": 1 << 40}


importlib.metadata.version = lambda name: (
    "0.12.0.1" if name == "jax-cuda13-plugin" else version(name)
)
jax.devices = lambda name=None: [Gpu(devices("cpu")[0])] if name == "cuda" else devices("cpu")
jax.live_arrays = lambda platform=None: alive("cpu")
jax.device_put = lambda value, device=None, **options: put(
    value, getattr(device, "cpu", device), **options
)
