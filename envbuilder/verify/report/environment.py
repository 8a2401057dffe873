"""What a verification ran on and with: machine, environment, framework and data."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Size = Annotated[int, Meta(ge=0)]
"""A number of bytes or of things."""


class Dataset(Struct, frozen=True, kw_only=True):
    """The data: images to train on and to test, and the sha256 of each file."""

    name: str | None = None
    train: Size | None = None
    test: Size | None = None
    sha256: dict[str, str] = {}
    subset: bool = False


class Framework(Struct, frozen=True, kw_only=True):
    """The framework, the interpreter, and the extensions that were looked for."""

    name: str | None = None
    version: str | None = None
    build: str | None = None
    runtime: str | None = None
    python: str | None = None
    platform: str | None = None
    extensions: dict[str, str | None] = {}


class Precision(Struct, frozen=True, kw_only=True):
    """The settings that decide the precision of the training."""

    dtype: str
    matmul: str | None
    autocast: bool
    cuda_tf32: bool
    environment: dict[str, str]
    """Variables that are set and may lower the precision."""


class Threads(Struct, frozen=True, kw_only=True):
    """The framework's threads, the quota in CPUs, and the allocator: a path, or `libc`."""

    framework: Size | None = None
    quota: Annotated[float, Meta(gt=0)] | None = None
    allocator: str | None = None


class Origins(Struct, frozen=True, kw_only=True):
    """Whether the caller's variables decided what ran, and their values."""

    as_found: bool
    variables: dict[str, str] = {}


class Artifact(Struct, frozen=True, kw_only=True):
    """The verified environment: an image, a folder or an interpreter."""

    kind: str | None = None
    ref: str | None = None
    digest: str | None = None


class Cpu(Struct, frozen=True, kw_only=True):
    """The machine's processor; `threads` is how many the environment uses."""

    model_name: str | None = None
    generation: str | None = None
    physical: Size | None = None
    threads: Size | None = None


class Memory(Struct, frozen=True, kw_only=True):
    """The machine's memory, the limit of the container or group, and /dev/shm."""

    total_bytes: Size | None = None
    limit_bytes: Size | None = None
    shm_bytes: Size | None = None


class Host(Struct, frozen=True, kw_only=True):
    """The machine, as far as reports of all versions describe it; `detect --json` has the rest."""

    os: str | None = None
    os_version: str | None = None
    machine: str | None = None
    kernel: str | None = None
    container: bool | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    memory_bytes: Size | None = None
    """Only in reports of earlier versions: now in `memory`."""
