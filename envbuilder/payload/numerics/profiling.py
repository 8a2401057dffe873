"""Kernels that ran, and where: from torch's profiler over a few steps, else from memory use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

from ..interface import Kernel, Observation
from ..machine import device
from ..machine.accelerators import ACCELERATORS


def observe(torch: Any, accelerator: str, work: Callable[[], Any]) -> Observation:
    """Run ``work`` under the profiler, without device activity if that is not available."""
    cpu = torch.profiler.ProfilerActivity.CPU
    activity = ACCELERATORS[accelerator].profiler
    if activity:
        device_activity = getattr(torch.profiler.ProfilerActivity, activity)
        try:
            return _observe(torch, accelerator, work, [cpu, device_activity])
        except RuntimeError:
            # The profiler's library for the device is missing or blocked; if the work itself is at
            # fault, it raises again below.
            pass
    return _observe(torch, accelerator, work, [cpu])


def _observe(
    torch: Any, accelerator: str, work: Callable[[], Any], activities: List[Any]
) -> Observation:
    with torch.profiler.profile(activities=activities) as profile:
        work()
        device.synchronize(torch, accelerator)
    return Observation(tuple(_kernels(torch, profile)))


def _kernels(torch: Any, profile: Any) -> List[Kernel]:
    kernels = []
    for event in profile.key_averages():
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        spent = event.self_device_time_total if on_device else event.self_cpu_time_total
        kernels.append(Kernel(event.key, float(spent), on_device))
    return kernels


@dataclass(frozen=True)
class Evidence:
    """Evidence of where a training ran.

    ``devices`` are the device types of parameters, gradients and activations in a training step;
    ``growth`` is the number of bytes by which the device's memory grew from before the training to
    after it, None if torch does not count them; ``needed`` is the size of the data alone.
    """

    devices: Tuple[str, ...]
    observation: Observation
    growth: Optional[int]
    needed: int


def problems(accelerator: str, device_type: str, evidence: Evidence) -> Tuple[List[str], str]:
    """Return why the work was not done on the accelerator, and a sentence on the evidence.

    ``device_type`` is what the framework calls a device of it.
    """
    sentences = []
    if evidence.devices != (device_type,):
        sentences.append(
            f"tensors of the training step lived on {', '.join(evidence.devices) or 'nothing'}"
        )
    if accelerator == "cpu":
        return _problems_on_cpu(sentences, evidence.observation)
    # A name without a time is no kernel that ran.
    kernels = [kernel for kernel in evidence.observation.on_device() if kernel.microseconds > 0]
    growth = evidence.growth
    if growth is not None and growth < evidence.needed:
        sentences.append(
            f"the memory of {accelerator} grew by {growth} bytes, "
            f"less than the data's {evidence.needed}"
        )
    # MPS has no profiler activity, and CUPTI is often blocked in containers.
    if not kernels and growth is None:
        sentences.append(f"neither a kernel nor memory of {accelerator} was used")
    count = f"{len(kernels)} different kernels" if kernels else "no kernel"
    how = f"the profiler saw {count} on {accelerator}"
    return sentences, how if growth is None else f"{how}; its memory grew by {growth} bytes"


def _problems_on_cpu(sentences: List[str], observation: Observation) -> Tuple[List[str], str]:
    if observation.on_device():
        sentences.append(f"the profiler saw work elsewhere: {observation.on_device()[0].name}")
    if not any("conv" in kernel.name.lower() for kernel in observation.kernels):
        sentences.append("the profiler saw no convolution on the CPU")
    return sentences, f"the profiler saw {len(observation.kernels)} operators on the CPU"
