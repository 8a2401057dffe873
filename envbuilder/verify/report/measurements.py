"""Performance measurements of the payload, as typed data with valid ranges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0)]
"""A measured rate or duration."""

NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Contention(Struct, frozen=True, kw_only=True):
    """What competed for the processor during one timed piece of work; null if not counted here.

    `cpus` and `quota` are what the process may use, `threads` the framework's (null if an
    accelerator did the work). Pressure is the time in which some task waited for a CPU, on the
    machine and in the process's own cgroup. `other_seconds` is the time that these CPUs worked for
    others, steal what a hypervisor took from them, both added up over the CPUs.
    """

    seconds: NotNegative
    cpu_seconds: NotNegative
    cpus: Count
    threads: Count | None
    quota: Positive | None
    pressure_seconds: NotNegative | None
    cgroup_pressure_seconds: NotNegative | None
    throttled_seconds: NotNegative | None
    throttled_periods: Annotated[int, Meta(ge=0)] | None
    steal_seconds: NotNegative | None
    involuntary_switches: Annotated[int, Meta(ge=0)] | None
    other_seconds: NotNegative | None


class Matmul(Struct, frozen=True, kw_only=True):
    """The rate of one large square matrix product."""

    dtype: str
    size: Count
    flops_per_second: Positive


class Bandwidth(Struct, frozen=True, kw_only=True):
    """Bytes per second; null if the path does not exist or could not be measured."""

    device: Positive | None = None
    host_to_device: Positive | None = None
    host_to_device_pinned: Positive | None = None
    device_to_host: Positive | None = None
    device_to_host_pinned: Positive | None = None
    device_to_device: Positive | None = None


class Inference(Struct, frozen=True, kw_only=True):
    """Throughput of the trained network in evaluation mode."""

    batch: Count
    samples_per_second: Positive


class Logging(Struct, frozen=True, kw_only=True):
    """Seconds for the same steps, fetching the loss after each step or all losses at the end."""

    steps: Count
    every_step_seconds: Positive
    at_end_seconds: Positive


class Captured(Struct, frozen=True, kw_only=True):
    """Epochs whose whole step is one captured graph: seconds of the second, and of the first.

    The first one includes the capture. `largest_difference` is that of `compared` losses and those
    of eager steps; if it is too large, the times do not count.
    """

    seconds: Positive
    first_seconds: Positive
    compared: Count
    largest_difference: NotNegative | None
    counts: bool


class Measurements(Struct, frozen=True, kw_only=True):
    """The machine's performance; null if it could not be measured.

    `matmul_share` is the fraction of the float32 matmul rate that the last epoch's compute reached.
    Quiet machines gave up to 1.05. Above 1.1 one of the two measurements was disturbed: the report
    then has the warning `matmul rate`, and its times should be measured again. Above 2 on a machine
    that was not busy, the verification fails.
    """

    matmul: tuple[Matmul, ...] | None = None
    bandwidth: Bandwidth | None = None
    launch_seconds: Positive | None = None
    inference: Inference | None = None
    peak_memory_bytes: Count | None = None
    epoch_flops: Positive | None = None
    matmul_share: Positive | None = None
    logging: Logging | None = None
    captured: Captured | None = None


class Determinism(Struct, frozen=True, kw_only=True):
    """Two training runs with one seed: whether their weights are equal, and how far they differ.

    A non-finite difference is null.
    """

    steps: Count
    equal: bool
    largest_difference: NotNegative | None = None


class Repeated(Struct, frozen=True, kw_only=True):
    """A training step that was repeated outside of the environment, in float64.

    Steps count from 1 over all epochs. `error` is the largest of all arrays that a step changes,
    relative to what it changes of that array; `array` names it.
    """

    step: Count
    epoch: Count
    error: float
    array: str
    loss_error: float
