"""The type of the rows of `host.accelerators`, which describe kinds of accelerators.

Each vendor's module in `host/gpus/` ends with its row. The types for judging a GPU are here, too:
what wheels need from a GPU, and findings about whether the GPU has it.
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
"""Package and version → size in bytes of its device code by target, as far as its wheel was
read."""


class Finding(Struct, frozen=True):
    """One statement about a host or GPU.

    The level `impossible` means that a build on this host could not succeed either.
    """

    level: Level
    text: str
    code: str = ""
    """Stable name of the subject: a GPU's obstacle, or the check's own code."""
    gpu: Gpu | None = None
    variables: dict[str, str] = {}
    """Variables that hide non-working GPUs from the framework."""


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs that wheels have kernels for; a field is empty if unknown."""

    kernels: tuple[str, ...] = ()
    """Supported targets, as the accelerator spells them: SM, gfx targets or Intel's target
    names."""
    partly: tuple[str, ...] = ()
    """Targets that only some of the libraries support."""
    ptx: bool = False
    """Whether GPUs newer than the newest kernels can compile their own kernels."""
    driver: str = ""
    """The oldest sufficient version of the vendor's driver."""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


class Place(Struct, frozen=True, kw_only=True):
    """The environment that detection runs in, which determines how to interpret traces of a GPU."""

    environ: Mapping[str, str] = {}
    wsl: bool = False
    container: bool = False


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device: how it is detected, judged and repaired. The CPU has no vendor.

    A test shows which fields a vendor needs.
    """

    name: str
    """The accelerator's name in profiles."""
    vendor: str | None = None
    """The vendor, as in `Gpu.vendor`; None for the CPU."""
    brand: str = ""
    """The vendor's own spelling of its name."""
    aliases: tuple[str, ...] = ()
    """Regular expressions for other names that users may use."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for this accelerator in addition to the profile of its name, in order of
    preference."""
    builds: str = ""
    """Prefixes of the names of frameworks' builds for this accelerator, other than its own name."""

    # Detection
    pci: int | None = None
    """The vendor's number on the PCI bus; None if its GPUs are not on a PCI bus."""
    processing: bool = False
    """Whether some of its GPUs have the PCI class of processing accelerators instead of
    displays."""
    read: Callable[[Reader], None] = lambda reader: None
    """Read the reports of its drivers. Display devices on the PCI bus have been read before."""
    decide: Callable[[Snapshot, Sequence[Device], Place], tuple[Gpu, ...]] = lambda *_: ()
    """Return its GPUs, in the framework's order if that is known."""
    of_host: Callable[[Snapshot], dict[str, Any]] = lambda snapshot: {}
    """Return fields of the host that are determined by this accelerator's files alone."""

    # What fits
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Return findings about one GPU. The last argument is True for a native environment, False for
    an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """Return a GPU's capability as a sort key. If several GPUs do not work, the most capable one is
    reported."""
    states_kernels: bool = False
    """Whether tables list the kernels of its builds. Without them, advice would be a guess."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Return findings about what else native environments need from the host."""
    architecture: Callable[[Gpu], str | None] = lambda gpu: None
    """Return a GPU's architecture in words, as the target for compiling code; None if unknown."""
    code: str = ""
    """Regular expression for the beginning of its device code's targets; empty if no target is
    recognized."""
    runs: Callable[[str, Gpu], bool] = lambda target, gpu: False
    """Return whether code for a target runs on a GPU."""
    shown: Callable[[Collection[str]], list[str]] = sorted
    """Return targets in words, sorted."""

    # Which GPUs a framework uses
    choosing: tuple[str, ...] = ()
    """Variables by which users choose among its GPUs. envbuilder uses the first variable."""
    numbering: dict[str, str] = {}
    """Variables that make the framework number GPUs in the order that `order` returns."""
    passed: tuple[str, ...] = ()
    """Other variables that configure its driver, which a verification gets from its caller."""
    order: Callable[[Sequence[Gpu], Sequence[Gpu]], Sequence[Gpu] | None] = lambda gpus, best: ()
    """Return the vendor's GPUs in the framework's order, so that only the best GPUs are shown to
    it. Empty if the framework sees no others, None if the order is unknown."""
    disguise: str = ""
    """Prefixes of variables that make its driver treat a GPU as another model."""
    cdi: str = ""
    """The CDI device for all of its GPUs, for engines that have it."""

    # How to repair it
    install: Callable[[Gpu, Host, str], str] = lambda gpu, host, needed: "Install its driver."
    """Return how to install a kernel driver. The last argument is the oldest sufficient version."""
    fixes: Callable[[Gpu, Host], dict[str, str]] = lambda gpu, host: {}
    """Return the vendor's own fixes: a GPU's obstacle or a finding's code → what to do."""
    fixes_of_host: Callable[[Host], dict[str, str]] = lambda host: {}
    """Return the fixes for findings of `native`, by code."""


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level of the findings, or `note` if there are none."""
    return max((f.level for f in findings), key=LEVELS.index, default="note")


def named(gpu: Gpu) -> str:
    """Return a GPU's name and, if known, its location on the bus."""
    if gpu.bus:
        return f"{gpu.name} at {gpu.bus}"
    return gpu.name


def blocked(level: Level, gpu: Gpu, text: str = "") -> Finding:
    """Return a finding about a GPU's obstacle; the default text is the GPU's name and `detail`."""
    text = text or f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def unknown_kernels(gpu: Gpu) -> Finding:
    """Return the finding that no table lists the kernels of a build."""
    text = "it is unknown for which GPUs its wheels have kernels"
    return Finding("warning", text, "lock-unread", gpu)
