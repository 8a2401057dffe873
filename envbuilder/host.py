"""The host: what this machine is and which accelerators really work here.

`probe` only ties the steps together. `detection.snapshot` is the only code that touches the
machine; the other modules of `detection` parse text and decide from data, so a recorded tree gives
the same answer anywhere. None, and a GPU's state `unknown`, mean that something could not be read,
never that it is absent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder import words
from envbuilder.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

Vendor = Literal["nvidia", "intel", "amd", "apple", "unknown"]
State = Literal["usable", "present", "unknown"]
Support = Literal["validated", "unlisted", "unsupported"]
Count = Annotated[int, Meta(ge=0, le=2**53)]

# What oneDNN and zentorch choose their kernels by on x86, and their like on 64-bit ARM.
_X86_FLAGS = """
avx avx2 fma f16c avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16
amx_tile amx_bf16 amx_int8 avx_vnni
"""
_ARM_FLAGS = "asimd asimddp asimdhp bf16 fphp i8mm sve sve2 svebf16"
TRACKED_FLAGS = frozenset((_X86_FLAGS + _ARM_FLAGS).split())
"""The CPU flags that `Cpu.flags` tells about; of any other flag it says nothing."""


class Cpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor, and how much of it this process may use."""

    vendor: str | None = None
    model_name: str | None = None
    family: Count | None = None
    model: Count | None = None
    generation: str | None = None
    """The microarchitecture, such as "Zen 5"; a name only, flags have the last word."""
    flags: tuple[str, ...] | None = None
    """Those of `TRACKED_FLAGS` that it has, sorted."""
    logical: Count | None = None
    physical: Count | None = None
    affinity: Count | None = None
    """CPUs that this process may run on."""
    quota: float | None = None
    """CPUs that the cgroup's quota pays for (1.5 = one and a half); None where none was found."""
    threads: Count | None = None
    """Threads that torch should use here."""


class Gpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU that the machine has, and whether this process could use it."""

    vendor: Vendor
    name: str
    state: State
    detail: str = ""
    """Why it is not usable, or why that is unknown; one sentence."""
    bus: str | None = None
    device_id: str | None = None
    """PCI device id, four lower-case hexadecimal digits."""
    family: str | None = None
    support: Support | None = None
    """Intel: whether PyTorch lists the device. None: envbuilder's table does not have it."""
    kernel_driver: str | None = None
    driver_version: str | None = None
    sm: Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]\Z")] | None = None
    """CUDA compute capability, such as "8.9"."""
    memory_bytes: Count | None = None
    render_node: str | None = None
    render_node_readable: bool | None = None


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides which profiles fit; `detect --json` is this object."""

    schema: Literal[1] = 1
    os: Literal["linux", "macos", "other"]
    os_version: str | None = None
    """The product version on macOS ("14.5"), the distribution's name on Linux."""
    kernel: str | None = None
    machine: str = "unknown"
    """The hardware's architecture (x86_64, aarch64, arm64), also under Rosetta."""
    platform: words.Platform | None = None
    wsl: bool = False
    container: bool = False
    rosetta: bool | None = None
    """Whether this process is x86_64 code translated on Apple silicon."""
    cpu: Cpu = Cpu()
    memory_bytes: Count | None = None
    gpus: tuple[Gpu, ...] = ()
    level_zero: bool | None = None
    """Whether Intel's Level Zero loader and GPU driver, which no wheel brings, are installed."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what else one should know about this answer."""


def probe(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Host:
    """The host, from this machine or from a recorded tree (`proc/ sys/ dev/ nvml.json sysctl.txt`).

    Starts no process on Linux. Without `environ` this process's environment counts, and none for
    a recorded tree.
    """
    from envbuilder.detection import snapshot, system

    taken = snapshot.fetch(root)
    if environ is None:
        environ = os.environ if taken.live else {}
    return system.decide(taken, environ)


def read(path: Path) -> Host:
    """The host in a file written by `detect --json` (the host itself, or under the key `host`)."""
    from envbuilder.schema import decode

    hint = "Write it with `envbuilder detect --json` on the machine in question."
    try:
        data: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"{path}: cannot be read as JSON: {error}", hint) from error
    if isinstance(data, dict) and isinstance(data.get("host"), dict):
        data = data["host"]
    if not isinstance(data, dict):
        raise InvalidError(f"{path}: expected a host, found {type(data).__name__}", hint)
    return decode(data, Host, str(path))
