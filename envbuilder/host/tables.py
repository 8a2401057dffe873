"""Look up devices in the data tables in `profiles/devices/`, where each row gives its source.

Each table is read when it is first used. In long tables, only the line of the requested device is
parsed. `tools/refresh_devices.py` updates the tables that are derived from an upstream file.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, cast

from msgspec import Struct

from envbuilder.core import resources
from envbuilder.host.model import Support
from envbuilder.host.snapshot import version

MemoryKind = Literal["dedicated", "shared"]
JETSON_TORCH = (
    "use NVIDIA's build of torch for Jetson (Jetson AI Lab's index), and check it with"
    " `envbuilder verify --python PYTHON`"
)
"""Advice for a GPU that is listed in `tegra-chips.csv` and for which PyTorch's wheels have no
kernels."""


class IntelGpu(Struct, frozen=True, kw_only=True):
    """A row of `intel-gpus.csv`."""

    family: str
    support: Support
    memory: MemoryKind
    name: str
    """Name of the product; empty if only the family is known."""


class AmdGpu(Struct, frozen=True, kw_only=True):
    """A row of `amd-gpus.csv`, together with the chip's target from `amd-chips.csv`."""

    name: str
    """Name of the product, or of the chip if the product is unknown."""
    gfx: str | None
    """The chip's target in ROCm's compiler, such as "gfx1100"; None if no source states it."""


class NvidiaGpu(Struct, frozen=True, kw_only=True):
    """A row of `nvidia-gpus.csv`, together with the chip's data from `nvidia-chips.csv`."""

    name: str
    """Name of the product, such as "Tesla P40"; empty if only the chip is known."""
    chip: str
    sm: str | None
    """CUDA compute capability; None if no source states it for the chip."""


class TegraChip(Struct, frozen=True, kw_only=True):
    """A row of `tegra-chips.csv`: a chip with both a CPU and a GPU, as on Jetson boards."""

    name: str
    sm: str
    common_driver: bool
    """Whether NVIDIA's common driver supports the chip, rather than only a driver for Tegra."""


class MemoryFacts(Struct, frozen=True, kw_only=True):
    """The specified memory size and bandwidth of a discrete GPU.

    A value is None if cards with the same PCI device id have different values.
    """

    memory_bytes: int | None
    bandwidth: int | None
    """Theoretical bandwidth in bytes per second."""


@cache
def _text(name: str) -> str:
    return (resources.profiles_dir() / "devices" / name).read_text(encoding="utf-8")


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    import csv  # every command imports this module, few read a table

    return tuple(csv.DictReader(_text(name).splitlines()))


def _row(name: str, key: str) -> dict[str, str] | None:
    """Return the row whose first column is `key`, or None if there is no such row.

    Only that row's line is parsed, because some tables are long.
    """
    import csv

    text = _text(name)
    start = text.find(f"\n{key},") + 1
    if not start:
        return None
    line = text[start:].partition("\n")[0]
    columns, values = csv.reader((text.partition("\n")[0], line))
    # A key that contains a comma or a newline can match more than the first column.
    if values[0] == key:
        return dict(zip(columns, values, strict=True))
    return None


def intel_gpu(device_id: str) -> IntelGpu | None:
    """Return the Intel GPU with this PCI device id, or None if it is not in the table.

    The id is given as four lower-case hexadecimal digits.
    """
    row = _row("intel-gpus.csv", device_id)
    if row is None:
        return None
    return IntelGpu(
        family=row["family"],
        support=cast("Support", row["torch_xpu"]),
        memory=cast("MemoryKind", row["memory"]),
        name=row["name"],
    )


def intel_targets(family: str) -> set[str]:
    """Return PyTorch's kernel target names for a family of Intel GPUs.

    Return an empty set if they are unknown.
    """
    row = _row("intel-targets.csv", family)
    if row:
        return {*row["targets"].split()}
    return set()


def amd_gpu(device_id: str) -> AmdGpu | None:
    """Return the AMD GPU with this PCI device id, or None if it is not in the table.

    The id is given as four lower-case hexadecimal digits.
    """
    row = _row("amd-gpus.csv", device_id)
    if row is None:
        return None
    chip = _longest("amd-chips.csv", row["chip"])
    return AmdGpu(name=row["name"] or row["chip"], gfx=chip["gfx"] if chip else None)


def _longest(name: str, chip: str) -> dict[str, str] | None:
    """Return the row with the longest prefix of a chip's name, or None if no prefix matches.

    For example, "GP100" takes precedence over "GP10".
    """
    rows = [row for row in _rows(name) if chip.startswith(row["chip"])]
    return max(rows, key=lambda row: len(row["chip"]), default=None)


def intel_memory(device_id: str) -> MemoryFacts | None:
    """Return the memory of the discrete Intel GPU with this PCI device id.

    Return None if the table does not contain the GPU.
    """
    row = _row("intel-memory.csv", device_id)
    if row is None:
        return None
    return MemoryFacts(
        memory_bytes=int(row["gib"]) * 2**30 if row["gib"] else None,
        bandwidth=_bytes_per_second(row["gb_s"]) if row["gb_s"] else None,
    )


def _bytes_per_second(gb_s: str) -> int:
    return round(float(gb_s) * 10**9)


def nvidia_gpu(device_id: str) -> NvidiaGpu | None:
    """Return the NVIDIA GPU with this PCI device id, or None if it is not in the table.

    The id is given as four lower-case hexadecimal digits. The table covers the Fermi generation and
    all later ones.
    """
    row = _row("nvidia-gpus.csv", device_id)
    if row is None:
        return None
    chip = _longest("nvidia-chips.csv", row["chip"])
    return NvidiaGpu(name=row["name"], chip=row["chip"], sm=chip["sm"] if chip else None)


def nvidia_sm(name: str) -> str | None:
    """Return the compute capability of the NVIDIA GPU with this name, or None if it is not listed.

    If several names in the table match, the longest one is used. A few GPU names stand for several
    chips; `nvidia_gpu` distinguishes these by their PCI device id.
    """
    product = name.removeprefix("NVIDIA ")
    best = ""
    sm = None
    for row in _rows("nvidia-sm.csv"):
        stem = row["name"].rstrip("*")
        after = product[len(stem) : len(stem) + 1]
        fits = product.startswith(stem) and (row["name"].endswith("*") or not after.isalnum())
        if fits and len(stem) > len(best):
            best = stem
            sm = row["sm"]
    return sm


def tegra_chip(compatible: str) -> TegraChip | None:
    """Return the Tegra chip for a device tree's `compatible` name, such as "nvidia,tegra234".

    Return None if the table does not contain the chip.
    """
    vendor, _, name = compatible.partition(",")
    row = _row("tegra-chips.csv", name) if vendor == "nvidia" else None
    if row:
        return _tegra(row)
    return None


def tegra_of_sm(sm: str) -> TegraChip | None:
    """Return the Tegra chip with this compute capability, or None if there is none.

    No other GPU has the compute capability of a Tegra chip.
    """
    for row in _rows("tegra-chips.csv"):
        if row["sm"] == sm:
            return _tegra(row)
    return None


def _tegra(row: dict[str, str]) -> TegraChip:
    return TegraChip(name=row["name"], sm=row["sm"], common_driver=row["common_driver"] == "yes")


def amd_index(gfx: str) -> str | None:
    """Return the state of the wheels for a GPU in AMD's own package index.

    The state is `release` if the index has tested wheels, `build` if its wheels are untested, and
    None if it has no wheels for the GPU.
    """
    row = _row("amd-index.csv", gfx)
    if row:
        return row["state"]
    return None


def cuda_driver(major: int, *, wsl: bool = False) -> str | None:
    """Return the oldest driver that supports a CUDA major version, such as "580.65.06".

    Return None if the table does not contain the major version. Under WSL, the driver is the
    Windows driver, which has different version numbers.
    """
    row = _row("cuda-drivers.csv", str(major))
    if not row:
        return None
    return row["windows_driver" if wsl else "linux_driver"]


def cudnn_sm(release: str) -> str:
    """Return the lowest compute capability that a cuDNN release supports, or "0.0" if unknown.

    A release number that cannot be parsed is treated as newer than all others.
    """
    number = version(release) or (1000,)
    rows = [row for row in _rows("cudnn.csv") if (version(row["cudnn"]) or ()) <= number]
    if rows:
        return rows[-1]["sm"]
    return "0.0"


def distribution_glibc(release: str | None) -> str | None:
    """Return the glibc version of a distribution release, or None if it is not in the table.

    `release` is the distribution's PRETTY_NAME.
    """
    for row in _rows("distribution-glibc.csv"):
        before, found, rest = (release or "").partition(row["release"])
        if found and not before and not rest[:1].isdigit():
            return row["glibc"]
    return None


def with_implied_flags(flags: Iterable[str]) -> frozenset[str]:
    """Return the flags of an x86 CPU, together with all flags that these flags imply."""
    result = frozenset(flags)
    while more := {row["has"] for row in _rows("x86-flags.csv") if row["flag"] in result} - result:
        result |= more
    return result


def apple_bandwidth(brand: str) -> int | None:
    """Return the theoretical memory bandwidth of an Apple chip in bytes per second.

    `brand` is the value of `machdep.cpu.brand_string`. If chips with the same name differ, as for
    the M3 Max, the lower number is returned. Return None if the chip is not in the table.
    """
    row = _row("apple-chips.csv", brand)
    if row:
        return _bytes_per_second(row["gb_s"])
    return None


def x86_generation(vendor: str | None, family: int | None, model: int | None) -> str | None:
    """Return the microarchitecture of an x86 CPU, or None if it is not in the table."""
    if family is None or model is None:
        return None
    for row in _rows("x86-cpus.csv"):
        same = row["vendor"] == vendor and int(row["family"]) == family
        if same and int(row["first_model"]) <= model <= int(row["last_model"]):
            return row["generation"]
    return None


def arm_core(implementer: int | None, part: int | None) -> str | None:
    """Return the name of an ARM core, or None if it is not in the table."""
    if implementer is None or not part:
        return None  # a virtual machine on Apple silicon has part 0, whatever the chip
    wanted = (f"0x{implementer:02x}", f"0x{part:03x}")
    for row in _rows("arm-cpus.csv"):
        if (row["implementer"], row["part"]) == wanted:
            return row["name"]
    return None
