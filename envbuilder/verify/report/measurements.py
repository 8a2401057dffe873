"""Typed data with valid ranges: the setup and the measurements of a verification."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Size = Annotated[int, Meta(ge=0)]
"""A number of bytes or items, from 0."""

Positive = Annotated[float, Meta(gt=0)]
"""A measured rate or duration above 0."""

NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Dataset(Struct, frozen=True, kw_only=True):
    """The data: the numbers of training and test images, and the sha256 of each file."""

    name: str | None = None
    train: Size | None = None
    test: Size | None = None
    sha256: dict[str, str] = {}
    subset: bool = False


class Framework(Struct, frozen=True, kw_only=True):
    """The framework, the interpreter, and the extensions that were searched for."""

    name: str | None = None
    version: str | None = None
    build: str | None = None
    runtime: str | None = None
    python: str | None = None
    platform: str | None = None
    extensions: dict[str, str | None] = {}


class Precision(Struct, frozen=True, kw_only=True):
    """The settings that determine the precision of the training."""

    dtype: str
    matmul: str | None
    autocast: bool
    cuda_tf32: bool
    environment: dict[str, str]
    """Environment variables that are set and may lower the precision, with their values."""


class Threads(Struct, frozen=True, kw_only=True):
    """The framework's number of threads, the CPU quota, and the allocator: a path, or `libc`."""

    framework: Size | None = None
    quota: Annotated[float, Meta(gt=0)] | None = None
    allocator: str | None = None


class Origins(Struct, frozen=True, kw_only=True):
    """Whether the caller's variables determined which code ran, and their values."""

    as_found: bool
    variables: dict[str, str] = {}


class Artifact(Struct, frozen=True, kw_only=True):
    """The verified environment: an image, a folder or an interpreter."""

    kind: str | None = None
    ref: str | None = None
    digest: str | None = None


class Cpu(Struct, frozen=True, kw_only=True):
    """The machine's processor; `threads` is the number of threads that the environment uses."""

    model_name: str | None = None
    generation: str | None = None
    physical: Size | None = None
    threads: Size | None = None


class Memory(Struct, frozen=True, kw_only=True):
    """The sizes of the machine's memory, the limit of the container or group, and /dev/shm."""

    total_bytes: Size | None = None
    limit_bytes: Size | None = None
    shm_bytes: Size | None = None


class Host(Struct, frozen=True, kw_only=True):
    """The facts about the machine that pages show; `detect --json` has all."""

    os: str | None = None
    os_version: str | None = None
    machine: str | None = None
    kernel: str | None = None
    container: bool | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()


class Contention(Struct, frozen=True, kw_only=True):
    """Competition for the CPU during one timed piece of work; null if not counted here.

    `cpus` and `quota` limit the process. `threads` is the number of the framework's threads, or
    null if an accelerator did the work. Pressure is the time during which some task waited for a
    CPU, on the whole machine and in the process's own cgroup. `other_seconds` is the time that the
    CPUs worked for other processes, and `steal_seconds` the time that a hypervisor took from them;
    both are summed over the CPUs.
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
    """Bandwidths in bytes per second; null if a path does not exist or could not be measured."""

    device: Positive | None = None
    host_to_device: Positive | None = None
    host_to_device_pinned: Positive | None = None
    device_to_host: Positive | None = None
    device_to_host_pinned: Positive | None = None
    device_to_device: Positive | None = None


class Inference(Struct, frozen=True, kw_only=True):
    """The throughput of the trained network in evaluation mode."""

    batch: Count
    samples_per_second: Positive


class Measurements(Struct, frozen=True, kw_only=True):
    """The machine's performance; a value is null if it could not be measured.

    `matmul_share` is the compute rate of the last epoch as a fraction of the float32 matmul rate.
    Quiet machines gave up to 1.05. Above 1.1, one of the two measurements was disturbed: the report
    then has the warning `matmul rate`, and its times should be measured again.
    """

    matmul: tuple[Matmul, ...] | None = None
    bandwidth: Bandwidth | None = None
    launch_seconds: Positive | None = None
    inference: Inference | None = None
    peak_memory_bytes: Count | None = None
    epoch_flops: Positive | None = None
    matmul_share: Positive | None = None


class Repeated(Struct, frozen=True, kw_only=True):
    """A training step that was repeated outside of the environment, in float64.

    Steps are counted from 1 over all epochs. `error` is the largest error among the arrays that the
    step changes, relative to the change of that array; `array` is its name.
    """

    step: Count
    epoch: Count
    error: float
    array: str
    loss_error: float
