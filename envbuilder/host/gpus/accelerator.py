"""What is to be known about a kind of accelerator: the type of a row of `host.accelerators`.

Each vendor's module in `host/gpus/` ends with its row. Here are the words of their judgements, too:
what wheels need of a GPU, and findings about whether a GPU has it.
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
"""Package and version → bytes of its device code by targets, as far as its wheel was read."""


class Finding(Struct, frozen=True):
    """One sentence; `impossible` means that not even a build can succeed on this host."""

    level: Level
    text: str
    code: str = ""
    """Stable name of the subject: a GPU's obstacle, or a code that the check gives."""
    gpu: Gpu | None = None
    variables: dict[str, str] = {}
    """Variables that hide GPUs which do not work from the framework."""


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs that there are kernels for; empty if unknown."""

    kernels: tuple[str, ...] = ()
    """SM, gfx targets or Intel's names of targets, as the accelerator has it."""
    partly: tuple[str, ...] = ()
    """Those that only some of the libraries serve."""
    ptx: bool = False
    """Whether GPUs newer than the newest kernels can compile some for themselves."""
    driver: str = ""
    """The oldest version of the vendor's driver."""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


class Place(Struct, frozen=True, kw_only=True):
    """Where detection runs, which decides what the traces of a GPU mean."""

    environ: Mapping[str, str] = {}
    wsl: bool = False
    container: bool = False


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device: how it is detected, judged and repaired. The CPU has no vendor.

    A test says which of these a vendor cannot do without.
    """

    name: str
    """As profiles have it."""
    vendor: str | None = None
    """As `Gpu.vendor` has it."""
    brand: str = ""
    """The vendor as it writes itself."""
    aliases: tuple[str, ...] = ()
    """Expressions for what users may call it instead of its name."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for it in addition to the one of its name, in order of preference."""
    builds: str = ""
    """How the names of frameworks' builds for it begin, if not with its own name."""

    # Detection
    pci: int | None = None
    """The vendor's number on the PCI bus; None if its GPUs are on none."""
    processing: bool = False
    """Whether some have the PCI class of processing accelerators, not of displays."""
    read: Callable[[Reader], None] = lambda reader: None
    """Read what its drivers report; the display devices on the PCI bus were read before."""
    decide: Callable[[Snapshot, Sequence[Device], Place], tuple[Gpu, ...]] = lambda *_: ()
    """Return its GPUs, in the order in which the framework numbers them if that is known."""
    of_host: Callable[[Snapshot], dict[str, Any]] = lambda snapshot: {}
    """Return fields of the host that only its own files decide."""
    assumable: dict[str, str] = {}
    """What can be stated of a GPU that is not here: key → expression."""
    example: str = ""
    """Such a statement: "nvidia:sm=8.9"."""
    assume: Callable[[Mapping[str, str]], dict[str, Any] | None] = lambda values: None
    """Return the fields of a host with such a GPU; None if a key is missing."""

    # What fits
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Judge one GPU; the last argument is whether for a native environment or for an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """How much a GPU can do, as a sort key: of several that do not work, the best is reported."""
    states_kernels: bool = False
    """Whether tables state the kernels of its builds, without which advice would be a guess."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Check what native environments need from the host in addition."""
    architecture: Callable[[Gpu], str | None] = lambda gpu: None
    """What code is compiled for, in words; None if it is unknown."""
    code: str = ""
    """How targets of device code for it begin, as an expression; empty if none is recognized."""
    runs: Callable[[str, Gpu], bool] = lambda target, gpu: False
    """Whether code for a target runs on a GPU."""
    shown: Callable[[Collection[str]], list[str]] = sorted
    """Return targets in words, in their order."""

    # Which GPUs a framework uses
    choosing: tuple[str, ...] = ()
    """The variables by which users choose among its GPUs; envbuilder uses the first."""
    numbering: dict[str, str] = {}
    """Variables that make the framework number them in the order below."""
    passed: tuple[str, ...] = ()
    """Other variables that set its driver up, which a verification gets from its caller."""
    order: Callable[[Sequence[Gpu], Sequence[Gpu]], Sequence[Gpu] | None] = lambda gpus, best: ()
    """Return its vendor's GPUs as the framework numbers them, to show it only the best; empty if
    it sees no others, None if their order is unknown."""
    disguise: str = ""
    """How variables begin that make its driver take a GPU for another one."""
    cdi: str = ""
    """The CDI device that stands for all of its GPUs, where an engine has it."""

    # How to repair it
    install: Callable[[Gpu, Host, str], str] = lambda gpu, host, needed: "Install its driver."
    """Say how to get a kernel driver; the last argument is the oldest sufficient version."""
    fixes: Callable[[Gpu, Host], dict[str, str]] = lambda gpu, host: {}
    """Return the fixes, by a GPU's obstacle or a finding's code, that only this vendor has."""
    fixes_of_host: Callable[[Host], dict[str, str]] = lambda host: {}
    """Return the fixes of what `native` finds."""


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level, which decides."""
    return max((f.level for f in findings), key=LEVELS.index, default="note")


def named(gpu: Gpu) -> str:
    """Return a GPU's name, and where it is."""
    if gpu.bus:
        return f"{gpu.name} at {gpu.bus}"
    return gpu.name


def blocked(level: Level, gpu: Gpu, text: str = "") -> Finding:
    """Return a finding about what keeps a GPU from working, by default in detection's words."""
    text = text or f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def unknown_kernels(gpu: Gpu) -> Finding:
    """Return the finding that no table states the kernels of a build."""
    text = "which GPUs its wheels carry kernels for is not known"
    return Finding("warning", text, "lock-unread", gpu)
