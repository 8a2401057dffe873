"""The data tables in `profiles/devices/`: each row says where it was read.

Each table is read when something of it is first asked for. Of the long ones only the line of one
device is parsed. `tools/refresh_devices.py` brings those up to date that have an upstream file.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from envbuilder.core import resources
from envbuilder.host.model import Support

if TYPE_CHECKING:
    from collections.abc import Iterable

MemoryKind = Literal["dedicated", "shared"]


class IntelGpu(Struct, frozen=True, kw_only=True):
    """A row of `intel-gpus.csv`."""

    family: str
    support: Support
    memory: MemoryKind
    name: str
    """Empty where only the family is known."""


class NvidiaGpu(Struct, frozen=True, kw_only=True):
    """A row of `nvidia-gpus.csv`, with what `nvidia-chips.csv` says of its chip."""

    name: str
    """The product, such as "Tesla P40"; empty where only the chip is known."""
    chip: str
    sm: str | None
    """CUDA compute capability; None for a chip of which no source tells it."""


class MemoryFacts(Struct, frozen=True, kw_only=True):
    """The memory of a discrete GPU by its specification; None where cards of one id differ."""

    memory_bytes: int | None
    bandwidth: int | None
    """Theoretical bytes per second."""


class Kernels(Struct, frozen=True, kw_only=True):
    """What the CUDA wheels of torch carry."""

    sm: tuple[str, ...]
    """Compute capabilities with compiled kernels, ascending."""
    ptx: bool
    """Whether PTX of the last is in, which newer GPUs compile when it is first used."""


@cache
def _text(name: str) -> str:
    return (resources.profiles_dir() / "devices" / name).read_text(encoding="utf-8")


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader(_text(name).splitlines()))


def _row(name: str, key: str) -> dict[str, str] | None:
    """The row whose first column is `key`. Parses only that line: some tables are long."""
    text = _text(name)
    start = text.find(f"\n{key},") + 1
    if not start:
        return None
    line = text[start:].partition("\n")[0]
    columns, values = csv.reader((text.partition("\n")[0], line))
    # A key with a comma or a line end in it can match what is no first column.
    return dict(zip(columns, values, strict=True)) if values[0] == key else None


def intel_gpu(device_id: str) -> IntelGpu | None:
    """The Intel GPU with a PCI device id (four lower-case digits), or None."""
    row = _row("intel-gpus.csv", device_id)
    if row is None:
        return None
    return IntelGpu(
        family=row["family"],
        support=cast("Support", row["torch_xpu"]),
        memory=cast("MemoryKind", row["memory"]),
        name=row["name"],
    )


def intel_memory(device_id: str) -> MemoryFacts | None:
    """The memory of the discrete Intel GPU with a PCI device id; None where no source tells it."""
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
    """The NVIDIA GPU with a PCI device id (four lower-case digits), or None; Fermi and later."""
    row = _row("nvidia-gpus.csv", device_id)
    if row is None:
        return None
    best, sm = "", None
    for chip in _rows("nvidia-chips.csv"):
        # GP100 is not what the rest of GP10 is: the longest name that fits counts.
        if row["chip"].startswith(chip["chip"]) and len(chip["chip"]) > len(best):
            best, sm = chip["chip"], chip["sm"]
    return NvidiaGpu(name=row["name"], chip=row["chip"], sm=sm)


def nvidia_sm(name: str) -> str | None:
    """The compute capability of a named NVIDIA GPU; the longest name in the table that fits.

    A few names were given to several chips: `nvidia_gpu` knows them apart by their id.
    """
    product = name.removeprefix("NVIDIA ")
    best, sm = "", None
    for row in _rows("nvidia-sm.csv"):
        stem = row["name"].rstrip("*")
        after = product[len(stem) : len(stem) + 1]
        fits = product.startswith(stem) and (row["name"].endswith("*") or not after.isalnum())
        if fits and len(stem) > len(best):
            best, sm = stem, row["sm"]
    return sm


def torch_kernels(variant: str, torch: str, arch: str) -> Kernels | None:
    """The kernels in the wheels of an index such as "cu130"; None where no source tells it.

    Of torch's version, such as "2.14.1", major and minor count; `arch` is x86_64 or aarch64.
    """
    version = _minor(torch)
    if version is None:
        return None
    for row in _rows("torch-cuda.csv"):
        lowest, highest = _minor(row["torch_min"]), _minor(row["torch_max"])
        same = (row["index"], row["arch"]) == (variant, arch)
        if same and lowest and highest and lowest <= version <= highest:
            return Kernels(sm=tuple(row["sm_list"].split()), ptx=row["ptx"] == "yes")
    return None


def _minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", version)
    return (int(match[1]), int(match[2])) if match else None


def cuda_driver(major: int) -> str | None:
    """The oldest Linux driver that runs a CUDA runtime of this major version, such as "580"."""
    row = _row("cuda-drivers.csv", str(major))
    return row["linux_driver"] if row else None


def distribution_glibc(release: str | None) -> str | None:
    """The glibc of a distribution's release, by its PRETTY_NAME; None where no source tells it."""
    for row in _rows("distribution-glibc.csv"):
        named, found, rest = (release or "").partition(row["release"])
        if found and not named and not rest[:1].isdigit():
            return row["glibc"]
    return None


def with_implied_flags(flags: Iterable[str]) -> frozenset[str]:
    """The flags of an x86 CPU, with those that every CPU with one of them has."""
    found = frozenset(flags)
    while more := {row["has"] for row in _rows("x86-flags.csv") if row["flag"] in found} - found:
        found |= more
    return found


def apple_bandwidth(brand: str) -> int | None:
    """Theoretical bytes per second of an Apple chip's memory, by `machdep.cpu.brand_string`.

    The lower number where chips of one name differ, such as those of the M3 Max.
    """
    row = _row("apple-chips.csv", brand)
    return _bytes_per_second(row["gb_s"]) if row else None


def x86_generation(vendor: str | None, family: int | None, model: int | None) -> str | None:
    """The microarchitecture of an x86 CPU, or None."""
    if family is None or model is None:
        return None
    for row in _rows("x86-cpus.csv"):
        same = row["vendor"] == vendor and int(row["family"]) == family
        if same and int(row["first_model"]) <= model <= int(row["last_model"]):
            return row["generation"]
    return None


def arm_core(implementer: int | None, part: int | None) -> str | None:
    """The name of an ARM core, or None."""
    if implementer is None or not part:
        return None  # a virtual machine on Apple silicon has part 0, whatever the chip
    wanted = (f"0x{implementer:02x}", f"0x{part:03x}")
    for row in _rows("arm-cpus.csv"):
        if (row["implementer"], row["part"]) == wanted:
            return row["name"]
    return None
