"""The data tables in `profiles/devices/`: each row says where it was read."""

from __future__ import annotations

import csv
from functools import cache
from typing import cast

from msgspec import Struct

from envbuilder import resources
from envbuilder.host import Support


class IntelGpu(Struct, frozen=True, kw_only=True):
    """A row of `intel-gpus.csv`."""

    family: str
    support: Support
    name: str


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    path = resources.profiles_dir() / "devices" / name
    with path.open(encoding="utf-8", newline="") as stream:
        return tuple(csv.DictReader(stream))


@cache
def _intel_gpus() -> dict[str, IntelGpu]:
    return {
        row["id"]: IntelGpu(
            family=row["family"], support=cast("Support", row["torch_xpu"]), name=row["name"]
        )
        for row in _rows("intel-gpus.csv")
    }


def intel_gpu(device_id: str) -> IntelGpu | None:
    """The Intel GPU with a PCI device id (four lower-case digits), or None."""
    return _intel_gpus().get(device_id)


def nvidia_sm(name: str) -> str | None:
    """The compute capability of a named NVIDIA GPU; the longest name in the table that fits."""
    product = name.removeprefix("NVIDIA ")
    best, sm = "", None
    for row in _rows("nvidia-sm.csv"):
        stem = row["name"].rstrip("*")
        after = product[len(stem) : len(stem) + 1]
        fits = product.startswith(stem) and (row["name"].endswith("*") or not after.isalnum())
        if fits and len(stem) > len(best):
            best, sm = stem, row["sm"]
    return sm


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
    """The name of a 64-bit ARM core, or None."""
    for row in _rows("arm-cpus.csv"):
        if int(row["implementer"], 16) == implementer and int(row["part"], 16) == part:
            return row["name"]
    return None
