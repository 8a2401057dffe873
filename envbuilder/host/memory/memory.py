"""Decide how much main memory there is, how much this process may use, and how fast it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from envbuilder.host.cpu import cgroups, cpu
from envbuilder.host.memory import modules
from envbuilder.host.text import fields, integer, lines

if TYPE_CHECKING:
    from envbuilder.host.model import Memory
    from envbuilder.host.snapshot import Reader, Snapshot

_SHARED = "/dev/shm"  # noqa: S108 (it is only looked up)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def read(reader: Reader) -> None:
    """Read the kernel's total, and the data on modules; `cgroups.read` reads the mounts."""
    reader.file("proc/meminfo")
    reader.exists("dev/shm")
    modules.read(reader)


def decide(snapshot: Snapshot) -> Memory:
    """Return the memory of a Linux host."""
    total_bytes = total(snapshot)
    return msgspec.structs.replace(
        modules.decide(snapshot, virtual=cpu.virtual(snapshot)),
        total_bytes=total_bytes,
        limit_bytes=cgroups.memory(snapshot),
        shm_bytes=_shared(snapshot, total_bytes),
    )


def total(snapshot: Snapshot) -> int | None:
    """Return the kernel's total, in bytes."""
    words = fields(snapshot.files.get("proc/meminfo")).get("MemTotal", "").split()
    amount = integer(words[0]) if words and words[-1] == "kB" else None
    return amount * 1024 if amount is not None and amount < 2**43 else None


def _shared(snapshot: Snapshot, total: int | None) -> int | None:
    """Return the size of /dev/shm; 0 if there is none, None if that is unknown."""
    mounts = snapshot.files.get("proc/self/mountinfo")
    if mounts is None:
        return None
    options: list[str] | None = None
    for line in lines(mounts):
        place, _, kind = line.partition(" - ")
        if place.split(" ")[4:5] == [_SHARED]:
            options = kind.split(" ")  # the last mount hides the others
    if options is None:
        # Without a mount of its own, the folder is as large as the file system that contains it.
        return 0 if snapshot.has("dev/shm") is False and mounts.endswith("\n") else None
    if options[0] != "tmpfs" or len(options) < 3:
        return None
    return _tmpfs(options[2], total)


def _tmpfs(options: str, total: int | None) -> int | None:
    """Return the size of a tmpfs (the kernel's Documentation/filesystems/tmpfs.rst)."""
    option = next((o for o in options.split(",") if o.startswith("size=")), None)
    if option is None:
        return total // 2 if total is not None else None
    size, last = option.removeprefix("size=").lower(), option[-1:].lower()
    unit = last if last == "%" or last in _UNITS else ""
    number = integer(size.removesuffix(unit))
    if number == 0:
        return total  # limited only by the memory itself
    if number is None or (unit == "%" and (total is None or number > 1000)):
        return None
    found = (total or 0) * number // 100 if unit == "%" else number * _UNITS.get(unit, 1)
    return found if found <= 2**53 else None
