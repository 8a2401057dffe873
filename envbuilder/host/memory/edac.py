"""Decide what the kernel's error counters (EDAC) tell of the memory, on machines with correction.

They name the modules that are there, their kind and channel, not their speed or empty slots. The
format is that of `edac_mc_sysfs.c` and `edac_mem_types` in the kernel's drivers/edac.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host.model import Memory
from envbuilder.host.text import integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.host.snapshot import Reader, Snapshot

_FOLDER = "sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"mc[0-9]{1,4}\Z")
# AMD's driver lists ranks, of which a module has one to four.
_PART = re.compile(r"(dimm|rank)[0-9]{1,4}\Z")
_KIND = re.compile(r"(low-power-)?(?:[a-z]+-)*(ddr[2-9]?)(?:-ram)?\Z")


def read(reader: Reader) -> None:
    """What each memory controller lists."""
    for controller in _matching(_CONTROLLER, reader.folder(_FOLDER)):
        folder = f"{_FOLDER}/{controller}"
        for part in _matching(_PART, reader.folder(folder)):
            for fact in ("dimm_mem_type", "dimm_location", "size"):
                reader.file(f"{folder}/{part}/{fact}")


def decide(snapshot: Snapshot) -> Memory:
    """The kind, channels and number of modules; empty where there is nothing to read."""
    kinds: set[str | None] = set()
    channels: set[tuple[str, ...] | None] = set()
    modules: int | None = 0
    for controller in _matching(_CONTROLLER, snapshot.folders.get(_FOLDER, ())):
        folder = f"{_FOLDER}/{controller}"
        if folder not in snapshot.folders:
            return Memory()
        for part in _matching(_PART, snapshot.folders[folder]):
            size = integer(snapshot.files.get(f"{folder}/{part}/size"))
            if size == 0:
                continue
            place = _place(snapshot.files.get(f"{folder}/{part}/dimm_location"))
            kinds.add(_kind(snapshot.files.get(f"{folder}/{part}/dimm_mem_type")))
            channels.add((controller, *place) if place and size else None)
            countable = part.startswith("dimm") and size is not None
            modules = modules + 1 if modules is not None and countable else None
    if len(kinds) != 1:  # none, or those of GPUs among them
        return Memory()
    return Memory(
        kind=kinds.pop(),
        channels=None if None in channels else len(channels),
        modules=modules,
    )


def _matching(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if pattern.match(name))


def _kind(text: str | None) -> str | None:
    """DDR4 of "Registered-DDR4" and LPDDR4 of "Low-Power-DDR4-RAM"."""
    match = _KIND.match((text or "").strip().lower())
    return ("LP" if match[1] else "") + match[2].upper() if match else None


def _place(text: str | None) -> tuple[str, ...] | None:
    """The branch and channel of "branch 0 channel 1 slot 0"; None where it names no channel."""
    words = (text or "").split()
    known = dict(zip(words[::2], words[1::2], strict=False))
    if integer(known.get("channel")) is None:
        return None
    return (known.get("branch", ""), known["channel"])
