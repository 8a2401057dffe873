"""The type of the rows of `host.accelerators`, each of which describes a kind of accelerator.

Each vendor's module in `host/gpus/` ends with that vendor's row. This module also contains the
types for judging a GPU: the requirements of wheels, and findings about whether a GPU meets these
requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from envbuilder.host.gpus.pci import Device
from envbuilder.host.model import Gpu, Host
from envbuilder.host.snapshot import Reader, Snapshot

Level = Literal["note", "warning", "no", "impossible"]
LEVELS: tuple[Level, ...] = ("note", "warning", "no", "impossible")
Packages = Mapping[str, Mapping[str, int]]
"""Package and version → target → size in bytes of the package's device code for this target. Wheels
that were not read are missing."""


class Finding(Struct, frozen=True):
    """A statement about a host or a GPU.

    The level `impossible` means that not even a build could succeed on this host.
    """

    level: Level
    text: str
    code: str = ""
    """Stable name of the finding's subject: a GPU's obstacle, or the check's own code."""
    gpu: Gpu | None = None
    variables: dict[str, str] = {}
    """Environment variables that hide unusable GPUs from the framework."""


class Needs(Struct, frozen=True, kw_only=True):
    """The versions that wheels require, and the GPUs for which the wheels have kernels.

    A field is empty if its value is unknown.
    """

    kernels: tuple[str, ...] = ()
    """Supported targets, in the accelerator's own terms: SM versions, gfx targets, or Intel's
    target names."""
    partly: tuple[str, ...] = ()
    """Targets that only some of the libraries support."""
    ptx: bool = False
    """Whether the wheels contain PTX. GPUs that are newer than the newest kernels can compile their
    own kernels from PTX."""
    driver: str = ""
    """The oldest sufficient version of the vendor's driver."""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


class Place(Struct, frozen=True, kw_only=True):
    """The environment in which detection runs, which affects how signs of a GPU are interpreted."""

    environ: Mapping[str, str] = {}
    wsl: bool = False
    container: bool = False


class Accelerator(Struct, frozen=True, kw_only=True):
    """A kind of device, with functions that detect it, judge it and say how to fix it.

    The CPU is an accelerator without a vendor. A test shows which fields each vendor needs.
    """

    name: str
    """The accelerator's name in profiles."""
    vendor: str | None = None
    """The vendor, as in `Gpu.vendor`; None for the CPU."""
    brand: str = ""
    """The vendor's own spelling of its name."""
    aliases: tuple[str, ...] = ()
    """Regular expressions for other names by which users may call the accelerator."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for this accelerator, in order of preference, except the profile that
    has the accelerator's name."""
    builds: str = ""
    """Prefixes of the names that frameworks give to builds for this accelerator, besides its own
    name."""

    # Detection
    pci: int | None = None
    """The vendor's PCI vendor id, or None if the vendor's GPUs are not on a PCI bus."""
    processing: bool = False
    """Whether some of the vendor's GPUs have the PCI class of processing accelerators instead of
    the class of displays."""
    read: Callable[[Reader], None] = lambda reader: None
    """A function that reads the data which the accelerator's drivers report. Display devices on the
    PCI bus must have been read before."""
    decide: Callable[[Snapshot, Sequence[Device], Place], tuple[Gpu, ...]] = lambda *_: ()
    """A function that returns the vendor's GPUs. They are in the framework's order if that order is
    known."""
    of_host: Callable[[Snapshot], dict[str, Any]] = lambda snapshot: {}
    """A function that returns the host's fields that are determined by this accelerator's files
    alone."""

    # What fits
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """A function that returns findings about one GPU. The last argument is True for a native
    environment and False for an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """A function that returns a GPU's capability as a sort key. If several GPUs do not work, the
    most capable one is reported."""
    states_kernels: bool = False
    """Whether tables list the kernels in the accelerator's builds. Without such tables, advice
    would be a guess."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """A function that returns findings about other things that native environments need from the
    host."""
    architecture: Callable[[Gpu], str | None] = lambda gpu: None
    """A function that returns a GPU's architecture in words, for use as a compilation target, or
    None if it is unknown."""
    code: str = ""
    """Regular expression for the beginning of the names of the accelerator's device code targets.
    Empty if no targets are recognized."""
    runs: Callable[[str, Gpu], bool] = lambda target, gpu: False
    """A function that returns whether code for a target runs on a GPU."""
    shown: Callable[[Collection[str]], list[str]] = sorted
    """A function that returns targets in words, in sorted order."""

    # Which GPUs a framework uses
    choosing: tuple[str, ...] = ()
    """Environment variables with which users choose among the vendor's GPUs. envbuilder uses the
    first of them."""
    numbering: dict[str, str] = {}
    """Environment variables that make the framework number GPUs in the order that `order`
    returns."""
    passed: tuple[str, ...] = ()
    """Other environment variables that configure the driver. A verification passes them on from its
    caller."""
    order: Callable[[Sequence[Gpu], Sequence[Gpu]], Sequence[Gpu] | None] = lambda gpus, best: ()
    """A function that returns the vendor's GPUs in the framework's order. This order is needed to
    make only the best GPUs visible to the framework. The result is empty if the framework sees no
    other GPUs, and None if the order is unknown."""
    disguise: str = ""
    """Prefixes of the environment variables that make the driver treat a GPU as another model."""
    cdi: str = ""
    """The CDI device that stands for all of the vendor's GPUs, for engines that support it."""

    # How to repair it
    install: Callable[[Gpu, Host, str], str] = lambda gpu, host, needed: "Install its driver."
    """A function that returns instructions for installing a kernel driver. The last argument is the
    oldest sufficient version."""
    fixes: Callable[[Gpu, Host], dict[str, str]] = lambda gpu, host: {}
    """A function that returns the vendor's own fixes. The keys are a GPU's obstacles and the codes
    of findings."""
    fixes_of_host: Callable[[Host], dict[str, str]] = lambda host: {}
    """A function that returns the fixes for the findings that `native` returns. The keys are the
    findings' codes."""


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level among the findings, or `note` if there are no findings."""
    return max((f.level for f in findings), key=LEVELS.index, default="note")


def named(gpu: Gpu) -> str:
    """Return a GPU's name, followed by its location on the bus if that is known."""
    if gpu.bus:
        return f"{gpu.name} at {gpu.bus}"
    return gpu.name


def blocked(level: Level, gpu: Gpu, text: str = "") -> Finding:
    """Return a finding about the obstacle that prevents a GPU from working.

    The default text consists of the GPU's name and its `detail`.
    """
    text = text or f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def unknown_kernels(gpu: Gpu) -> Finding:
    """Return a warning that the GPUs for which a build has kernels are unknown."""
    text = "it is unknown for which GPUs its wheels have kernels"
    return Finding("warning", text, "lock-unread", gpu)
