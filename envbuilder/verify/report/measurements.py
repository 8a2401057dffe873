"""Types with range constraints for the settings and the measurements of a verification."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Size = Annotated[int, Meta(ge=0)]
"""A number of bytes or items, at least 0."""

Positive = Annotated[float, Meta(gt=0)]
"""A measured rate or duration, greater than 0."""

NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Dataset(Struct, frozen=True, kw_only=True):
    """The data set: its numbers of training and test images, and the SHA-256 of every file."""

    name: str | None = None
    train: Size | None = None
    test: Size | None = None
    sha256: dict[str, str] = {}
    subset: bool = False


class Framework(Struct, frozen=True, kw_only=True):
    """The framework, the interpreter, and the extensions that the payload looked for."""

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
    """The framework's number of threads, the CPU quota, and the memory allocator.

    `allocator` is the path of the allocator's library, or `libc`.
    """

    framework: Size | None = None
    quota: Annotated[float, Meta(gt=0)] | None = None
    allocator: str | None = None


class Origins(Struct, frozen=True, kw_only=True):
    """The caller's environment variables that affected which code ran, with their values.

    If `as_found` is true, the payload was not isolated from these variables.
    """

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
    """The sizes of the machine's memory and of /dev/shm, and the container's or cgroup's limit."""

    total_bytes: Size | None = None
    limit_bytes: Size | None = None
    shm_bytes: Size | None = None


class Host(Struct, frozen=True, kw_only=True):
    """The facts about the machine that report pages show; `detect --json` lists all facts."""

    os: str | None = None
    os_version: str | None = None
    machine: str | None = None
    kernel: str | None = None
    container: bool | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()


class Contention(Struct, frozen=True, kw_only=True):
    """Competition for the CPU during one timed piece of work.

    A value is null if it could not be measured on this machine. `cpus` and `quota` are the limits
    on the process's CPU use. `threads` is the framework's number of threads, or null if an
    accelerator did the work. The pressure values say how long at least one task waited for a CPU,
    on the whole machine and in the process's own cgroup. `other_seconds` is the CPU time that other
    processes used, and `steal_seconds` is the CPU time that a hypervisor took. Both are totals over
    all CPUs.
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
    """Bandwidths in bytes per second.

    A value is null if the data path does not exist or could not be measured.
    """

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
    On idle machines, values of up to 1.05 were measured. A value above 1.1 means that one of the
    two measurements was disturbed. The report then has the warning `matmul rate`, and its times
    should be measured again.
    """

    matmul: tuple[Matmul, ...] | None = None
    bandwidth: Bandwidth | None = None
    launch_seconds: Positive | None = None
    inference: Inference | None = None
    peak_memory_bytes: Count | None = None
    epoch_flops: Positive | None = None
    matmul_share: Positive | None = None


class Repeated(Struct, frozen=True, kw_only=True):
    """A training step that was repeated in float64 outside the environment.

    Steps are counted from 1 over all epochs. `error` is the largest error among the arrays that the
    step changes, where an array's error is relative to its change. `array` is the name of the array
    with this error.
    """

    step: Count
    epoch: Count
    error: float
    array: str
    loss_error: float
