"""The description of a kind of accelerator: the type of a row of `host.accelerators`.

Each vendor's module in `host/gpus/` ends with its row. The types of their judgements are here, too:
what wheels need from a GPU, and findings about whether it has that.
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
"""Package and version → bytes of its device code by target, as far as its wheel was read."""


class Finding(Struct, frozen=True):
    """One sentence; `impossible` means that a build on this host could not succeed either."""

    level: Level
    text: str
    code: str = ""
    """Stable name of the subject: a GPU's obstacle, or the check's own code."""
    gpu: Gpu | None = None
    variables: dict[str, str] = {}
    """Variables that hide non-working GPUs from the framework."""


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs with kernels; empty if unknown."""

    kernels: tuple[str, ...] = ()
    """SM, gfx targets or Intel's target names, as the accelerator writes them."""
    partly: tuple[str, ...] = ()
    """Those that only some of the libraries support."""
    ptx: bool = False
    """Whether GPUs newer than the newest kernels can compile their own."""
    driver: str = ""
    """The oldest version of the vendor's driver."""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


class Place(Struct, frozen=True, kw_only=True):
    """Where detection runs, which decides how to interpret traces of a GPU."""

    environ: Mapping[str, str] = {}
    wsl: bool = False
    container: bool = False


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device: how it is detected, judged and repaired. The CPU has no vendor.

    A test shows which fields a vendor needs.
    """

    name: str
    """As in profiles."""
    vendor: str | None = None
    """As in `Gpu.vendor`."""
    brand: str = ""
    """The vendor's own spelling."""
    aliases: tuple[str, ...] = ()
    """Expressions for other names that users may use."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for it in addition to the one of its name, in order of preference."""
    builds: str = ""
    """Prefixes of the names of frameworks' builds for it, other than its own name."""

    # Detection
    pci: int | None = None
    """The vendor's number on the PCI bus; None if its GPUs are not on one."""
    processing: bool = False
    """Whether some have the PCI class of processing accelerators instead of displays."""
    read: Callable[[Reader], None] = lambda reader: None
    """Read its drivers' reports; display devices on the PCI bus were read before."""
    decide: Callable[[Snapshot, Sequence[Device], Place], tuple[Gpu, ...]] = lambda *_: ()
    """Return its GPUs, in the framework's order if that is known."""
    of_host: Callable[[Snapshot], dict[str, Any]] = lambda snapshot: {}
    """Return fields of the host that only its own files decide."""
    assumable: dict[str, str] = {}
    """What can be stated about an assumed GPU: key → expression."""
    example: str = ""
    """An example of that: "nvidia:sm=8.9"."""
    assume: Callable[[Mapping[str, str]], dict[str, Any] | None] = lambda values: None
    """Return the fields of a host with such a GPU; None if a key is missing."""

    # What fits
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Judge one GPU; the last argument: for a native environment, not for an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """A GPU's capability as a sort key: of several that do not work, the best one is reported."""
    states_kernels: bool = False
    """Whether tables list the kernels of its builds; without them, advice would be a guess."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Check what else native environments need from the host."""
    architecture: Callable[[Gpu], str | None] = lambda gpu: None
    """A GPU's architecture in words, for which code is compiled; None if unknown."""
    code: str = ""
    """Expression for the beginning of its device code's targets; empty if none is recognized."""
    runs: Callable[[str, Gpu], bool] = lambda target, gpu: False
    """Whether code for a target runs on a GPU."""
    shown: Callable[[Collection[str]], list[str]] = sorted
    """Format targets in words, in their order."""

    # Which GPUs a framework uses
    choosing: tuple[str, ...] = ()
    """Variables by which users choose among its GPUs; envbuilder uses the first."""
    numbering: dict[str, str] = {}
    """Variables that make the framework number GPUs in the order below."""
    passed: tuple[str, ...] = ()
    """Other variables that configure its driver, which a verification gets from its caller."""
    order: Callable[[Sequence[Gpu], Sequence[Gpu]], Sequence[Gpu] | None] = lambda gpus, best: ()
    """Return its vendor's GPUs in the framework's order, to show it only the best; empty if the
    framework sees no others, None if the order is unknown."""
    disguise: str = ""
    """Prefixes of variables that make its driver treat a GPU as another one."""
    cdi: str = ""
    """The CDI device for all of its GPUs, if an engine has it."""

    # How to repair it
    install: Callable[[Gpu, Host, str], str] = lambda gpu, host, needed: "Install its driver."
    """Return how to get a kernel driver; the last argument is the oldest sufficient version."""
    fixes: Callable[[Gpu, Host], dict[str, str]] = lambda gpu, host: {}
    """Return the vendor's own fixes, by a GPU's obstacle or a finding's code."""
    fixes_of_host: Callable[[Host], dict[str, str]] = lambda host: {}
    """Return the fixes for findings of `native`."""


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level, which decides."""
    return max((f.level for f in findings), key=LEVELS.index, default="note")


def named(gpu: Gpu) -> str:
    """Return a GPU's name and location."""
    if gpu.bus:
        return f"{gpu.name} at {gpu.bus}"
    return gpu.name


def blocked(level: Level, gpu: Gpu, text: str = "") -> Finding:
    """Return a finding about what keeps a GPU from working, by default in detection's words."""
    text = text or f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def unknown_kernels(gpu: Gpu) -> Finding:
    """Return the finding that no table lists the kernels of a build."""
    text = "which GPUs its wheels carry kernels for is not known"
    return Finding("warning", text, "lock-unread", gpu)
