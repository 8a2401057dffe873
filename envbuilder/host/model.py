"""The data model of a host: its hardware, and the accelerators that actually work on it.

A value of None, or a GPU state of `unknown`, means that something could not be read. Neither ever
means that something is absent.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import Hint, InvalidError

State = Literal["usable", "present", "unknown"]
Support = Literal["validated", "unlisted", "unsupported"]
Obstacle = Literal[
    "hidden",
    "driver-missing",
    "driver-other",
    "driver-unread",
    "library-failed",
    "node-missing",
    "node-closed",
    "node-unread",
    "not-given",
    "no-instances",
    "fabric",
    "unsupported",
    "unlisted",
    "virtual",
    "wsl",
    "unread",
]
"""The reason why a GPU does not work. In the order above: an environment variable hides the GPU;
the kernel driver is missing, the wrong one or unreadable; the vendor's library failed; the device
node is missing, not accessible or unchecked; the container or the driver does not give the GPU to
this process; MIG is on, but there are no instances; no fabric manager has set up NVSwitch; PyTorch
does not support the GPU; no table lists the GPU; the GPU is in a virtual machine; WSL hides the
GPU; /sys could not be read."""
Count = Annotated[int, Meta(ge=0, le=2**53)]

# The flags by which oneDNN and zentorch choose kernels on x86, and the equivalents on 64-bit ARM.
_X86_FLAGS = """
sse2 sse4_1 avx avx2 fma f16c
avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16
amx_tile amx_bf16 amx_int8 avx_vnni
"""
_ARM_FLAGS = "asimd asimddp asimdhp bf16 fphp i8mm sve sve2 svebf16"
X86_FLAGS = frozenset(_X86_FLAGS.split())
TRACKED_FLAGS = X86_FLAGS | frozenset(_ARM_FLAGS.split())
"""The CPU flags that `Cpu.flags` covers. It is unknown whether the CPU has other flags."""


_RELEASE = re.compile(r"(Debian|Ubuntu|Fedora)\b[^0-9]*([0-9]{1,3}(?:\.[0-9]{2})?)?", re.ASCII)


class Cpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor, and the share of it that this process may use."""

    vendor: str | None = None
    model_name: str | None = None
    family: Count | None = None
    model: Count | None = None
    generation: str | None = None
    """The microarchitecture, such as "Zen 5". It is only a name. The CPU's capabilities are in
    `flags`."""
    flags: tuple[str, ...] | None = None
    """The flags in `TRACKED_FLAGS` that the CPU has, sorted; None if unknown."""
    logical: Count | None = None
    physical: Count | None = None
    sockets: Count | None = None
    threads_per_core: Count | None = None
    """2 if SMT is on; 1 if the CPU has no SMT or SMT is off."""
    numa_nodes: Count | None = None
    l3_bytes: Count | None = None
    """The total size of all level-3 caches in bytes."""
    affinity: Count | None = None
    """Number of CPUs on which this process may run."""
    quota: float | None = None
    """Number of CPUs that the cgroup's quota allows, such as 1.5; None if there is no quota."""
    threads: Count | None = None
    """Number of threads that torch should use on this host."""


class Memory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Main memory: its size, the share that this process may use, and its theoretical speed."""

    total_bytes: Count | None = None
    limit_bytes: Count | None = None
    """The cgroup's memory limit in bytes; None if there is no limit."""
    shm_bytes: Count | None = None
    """Size in bytes of /dev/shm, through which DataLoader workers pass their batches."""
    kind: str | None = None
    """The kind of memory, such as "DDR5"."""
    speed: Count | None = None
    """Configured speed in millions of transfers per second (MT/s)."""
    channels: Count | None = None
    """Number of memory channels that hold at least one module."""
    channels_available: Count | None = None
    """Number of memory channels for which the board has slots."""
    modules: Count | None = None
    slots: Count | None = None
    bandwidth: Count | None = None
    """Theoretical bandwidth in bytes per second: channels × channel width × transfers per second.
    """
    detail: str = ""
    """A sentence with the reason why channels and speed are unknown; empty if they are known."""


class Gpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU of the machine, and whether this process can use it."""

    vendor: str
    """The vendor, as named in the table of accelerators, or "unknown"."""
    name: str
    state: State
    detail: str = ""
    """A sentence with the reason why the GPU is not usable, or why it is unknown whether it is
    usable."""
    obstacle: Obstacle | None = None
    """The reason in `detail` as a code; None for a usable GPU."""
    bus: str | None = None
    device_id: str | None = None
    """PCI device id: four lower-case hexadecimal digits."""
    family: str | None = None
    """The GPU's generation or chip. For AMD, the target of ROCm's compiler, such as "gfx1100"."""
    support: Support | None = None
    """For Intel GPUs, the support that PyTorch states for the device; None if envbuilder's table
    does not contain the device."""
    kernel_driver: str | None = None
    driver_version: str | None = None
    sm: Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]\Z")] | None = None
    """CUDA compute capability, such as "8.9"."""
    memory_kind: Literal["dedicated", "shared"] | None = None
    memory_bytes: Count | None = None
    """Size in bytes of the GPU's own memory, or of the main memory that it shares."""
    usable_bytes: Count | None = None
    """Number of bytes that programs can use. The driver reserves some memory and limits the use of
    shared memory."""
    bandwidth: Count | None = None
    """Theoretical bandwidth of the GPU's own memory in bytes per second; None for shared memory
    (see `Memory`)."""
    mig: bool | None = None
    """For NVIDIA GPUs, whether the GPU is split into MIG instances."""
    render_node: str | None = None
    render_node_readable: bool | None = None
    render_node_group: str | None = None
    """The group that owns the render node, as a name or number. It is known only on the live
    machine. For AMD GPUs, it is the group of /dev/kfd if this user may not open /dev/kfd."""


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A container engine that is reached through a socket."""

    name: Literal["docker", "podman", "unknown"]
    socket: str
    version: str | None = None
    state: State
    """`usable` if the engine responded, `present` if access or connection was refused, or `unknown`
    if there was no usable response."""
    detail: str = ""


class Containers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engines and tools for building and running containers."""

    engines: tuple[Engine, ...] = ()
    buildx: bool | None = None
    """Whether Docker's buildx plugin is installed."""
    buildx_version: str | None = None
    """Version of buildx. It is set only with `--full`, because reading it runs a command."""
    runtimes: tuple[str, ...] = ()
    """Installed GPU runtimes, such as "nvidia-container-runtime"."""

    @property
    def has_engine(self) -> bool:
        """Whether an engine responded."""
        return any(engine.state == "usable" for engine in self.engines)


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts about a machine's hardware and software that determine which profiles fit.

    `detect --json` prints this object.
    """

    schema: Literal[1] = 1
    os: Literal["linux", "macos", "other"]
    os_version: str | None = None
    """The product version on macOS ("14.5"), or the distribution's name on Linux."""
    kernel: str | None = None
    machine: str = "unknown"
    """The hardware's architecture (x86_64, aarch64, arm64), even under Rosetta."""
    platform: types.Platform | None = None
    wsl: bool = False
    container: bool = False
    rosetta: bool | None = None
    """Whether this process is x86_64 code translated on Apple silicon."""
    libc: str | None = None
    """The C library and its version, such as "glibc 2.36" or "musl"."""
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    gpus: tuple[Gpu, ...] = ()
    containers: Containers = Containers()
    level_zero: bool | None = None
    """Whether Intel's Level Zero loader and its GPU driver are installed. No wheel contains either
    of them."""
    notes: tuple[str, ...] = ()
    """Notes about facts that could not be read, and other remarks on the detected values."""


def distribution_of(host: Host) -> tuple[str, str]:
    """Return the name and the version of a host's distribution, such as ("Ubuntu", "24.04").

    Both strings are empty if the distribution is unknown. If only the version is unknown, the
    version is empty.
    """
    match = _RELEASE.match(host.os_version or "")
    if host.os == "linux" and match:
        return match[1], match[2] or ""
    return "", ""


def is_wsl1(kernel: str | None) -> bool:
    """Return whether a kernel release belongs to WSL 1, in which no program can use a GPU."""
    return bool(kernel and kernel.startswith("4.4.0-") and kernel.endswith("-Microsoft"))


_LARGEST = 16 << 20
"""Maximum size in bytes of a file that describes a host and comes from another machine."""


def read(path: Path) -> Host:
    """Read a host from a file written by `detect --json`.

    The host's data may be at the top level of the file or under the key `host`. Raise
    `InvalidError` if the file is invalid.
    """
    hint = Hint("To write one, run this on the other machine", ("detect", "--json"))
    content = files.read_named(path, _LARGEST, hint)
    try:
        decoding.require_few_values(content)
        data: Any = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: cannot be read as JSON: {error}", hint) from error
    if isinstance(data, dict) and isinstance(data.get("host"), dict):
        data = data["host"]
    if not isinstance(data, dict):
        raise InvalidError(f"{path}: expected host data, found {type(data).__name__}", hint)
    return decoding.decode(data, Host, str(path))
