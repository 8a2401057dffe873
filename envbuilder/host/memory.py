"""Detect the size of main memory, how much of it this process may use, and how fast it can be.

Data about the memory modules, and about the channels that they occupy, is in the firmware's table
(SMBIOS), which only root can read. Offsets and codes are from DMTF's DSP0134, "System Management
BIOS Reference Specification": 6.1 structures and strings, 7.1.2.2 BIOS characteristics, 7.17 memory
arrays, 7.18 memory devices. Later versions of SMBIOS added fields at the end of structures, so a
field past the end of a structure counts as unknown. SMBIOS has no field for the channel. The
channel is part of the slot names, whose format differs by vendor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.host import cpu
from envbuilder.host.model import Memory
from envbuilder.host.snapshot import Reader, Snapshot, clean, integer, lines

_SHM = "/dev/shm"  # noqa: S108 (it is only looked up)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,16})([kmgt%]?)(?:,|\Z)", re.ASCII)
_TABLE = "sys/firmware/dmi/tables/DMI"
_VIRTUAL = "This is a virtual machine, which does not show its host's memory modules."
_ROOT = "Only root may read the firmware's table of memory modules: run this as root to see all."
_HIDDEN = (
    "There is no table of memory modules here:"
    " containers, many virtual machines and some ARM boards have none."
)
_DAMAGED = "The firmware's table of memory modules is damaged."
_EMPTY = "The firmware's table lists no memory module."
_MIXED = "The machine has memory modules of several kinds."
_NAMELESS = "The firmware's names of the memory slots do not show which share a channel."
_SPEEDLESS = "The firmware does not report the memory's speed."
# The lowest transfer rate of each kind (JEDEC JESD79-3, -4, -5). Less is the clock rate, half the
# transfer rate: some firmware reports that instead.
_SLOWEST = {"DDR3": 800, "DDR4": 1600, "DDR5": 3200}
# Channels by name: "P0 CHANNEL A" (AMD), "P0_Node1_Channel0_Dimm1" (Supermicro),
# "Controller0-ChannelA-DIMM0" (Intel), "CPU0_C1D0".
_CHANNEL = re.compile(r"(?<![a-z])ch(?:an(?:nel)?)?[ _#-]*([a-z]|[0-9]{1,2})(?![a-z0-9])")
_COLUMN = re.compile(r"(?<![a-z0-9])c([0-9]{1,2})[ _-]?d[0-9]{1,2}\Z")
# Slots that carry their channel's letter: "P1-DIMMA1", "CPU1_DIMM_B0", "DDR4_A1", "A2".
_SLOT = re.compile(r"(?:^|dimm|[ _-])([a-p])[ _-]?([0-9]{1,2})\Z")
# The owners of a channel: each controller numbers its channels from 0.
_OWNER = re.compile(
    r"(?<![a-z])(p|cpu|proc(?:essor)?|socket|node|die|controller|i?mc)[ _#-]*([0-9]{1,3})(?![0-9])"
)
_MOST_SLOTS = 3  # slots per channel
_KINDS = {
    0x12: "DDR",
    0x13: "DDR2",
    0x18: "DDR3",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}
_LOGICAL = 0x1F
_PERSISTENT = frozenset({0x05, 0x06, 0x07})  # NVDIMM-F, NVDIMM-P, Optane: not main memory
_SYSTEM_MEMORY = 0x03
_SHORTEST = 0x15  # length of a memory device in version 2.1
_BIOS = 0
_ARRAY = 16
_MEMORY_DEVICE = 17
_END = 127
# For firmware that counts ECC bits as data: 8 per 64 of DDR4, 8 per 32 of DDR5.
_DATA_BITS = {72: 64, 80: 64, 40: 32}


def read(reader: Reader) -> None:
    """Read the kernel's memory total and the firmware's data about memory modules.

    The list of mounts, which is also needed, is read by `cpu.read_limits`.
    """
    reader.file("proc/meminfo")
    reader.exists("dev/shm")
    reader.blob(_TABLE)


def decide(snapshot: Snapshot) -> Memory:
    """Return the description of a Linux host's memory."""
    total_bytes = total(snapshot)
    return replace(
        modules(snapshot, virtual=cpu.virtual(snapshot)),
        total_bytes=total_bytes,
        limit_bytes=cpu.memory_limit(snapshot),
        shm_bytes=_shm_bytes(snapshot, total_bytes),
    )


def total(snapshot: Snapshot) -> int | None:
    """Return the total memory in bytes, as the kernel reports it, or None if unknown."""
    words = snapshot.fields("proc/meminfo").get("MemTotal", "").split()
    amount = integer(words[0]) if words and words[-1] == "kB" else None
    if amount is not None and amount < 2**43:
        return amount * 1024
    return None


def _shm_bytes(snapshot: Snapshot, total: int | None) -> int | None:
    """Return the size of /dev/shm in bytes.

    Return 0 if /dev/shm does not exist, and None if its size is unknown.
    """
    mounts = snapshot.files.get("proc/self/mountinfo")
    if mounts is None:
        return None
    options: list[str] | None = None
    for line in lines(mounts):
        mount_point, _, kind = line.partition(" - ")
        if mount_point.split(" ")[4:5] == [_SHM]:
            options = kind.split(" ")  # the last mount hides the others
    if options is None:
        # Without a mount of its own, the folder is as large as the file system that contains it.
        if snapshot.has("dev/shm") is False and mounts.endswith("\n"):
            return 0
        return None
    if options[0] != "tmpfs" or len(options) < 3:
        return None
    return _tmpfs(options[2], total)


def _tmpfs(options: str, total: int | None) -> int | None:
    """Return the size in bytes of a tmpfs with the given mount options, or None if it is unknown.

    `total` is the size of main memory. Without the option `size`, the size of a tmpfs is half of
    main memory (see Documentation/filesystems/tmpfs.rst in the kernel).
    """
    _, has_size, rest = f",{options.lower()}".partition(",size=")
    if not has_size:
        return total and total // 2
    match = _SIZE.match(rest)
    if match is None:
        return None
    number = int(match[1])
    if number == 0:
        return total  # limited only by the memory itself
    if match[2] != "%":
        size = number * _UNITS[match[2]]
    elif total is None or number > 1000:
        return None
    else:
        size = total * number // 100
    if size > 2**53:
        return None
    return size


def modules(snapshot: Snapshot, *, virtual: bool) -> Memory:
    """Describe the machine's memory modules, as listed in the firmware's table.

    `virtual` says whether the CPU reports that it belongs to a virtual machine. If the modules are
    unknown, the result contains only the reason why they are.
    """
    table = parse(snapshot.blobs.get(_TABLE, b""))
    if virtual or (table and table.virtual):
        return Memory(detail=_VIRTUAL)
    if table:
        return _from_firmware(table.devices)
    if _TABLE in snapshot.blobs:
        return Memory(detail=_DAMAGED)
    reason = snapshot.unreadable.get(_TABLE)
    if reason is None:
        return Memory(detail=_HIDDEN)
    if reason in {"Permission denied", "Operation not permitted"}:
        return Memory(detail=_ROOT)
    return Memory(detail=f"/{_TABLE} could not be read ({reason}).")


def _from_firmware(devices: Sequence[Slot]) -> Memory:
    filled = [device for device in devices if device.populated]
    if not filled:
        return Memory(slots=len(devices) or None, detail=_EMPTY)
    kinds = {device.kind for device in filled}
    kind = None
    if len(kinds) == 1:
        kind = filled[0].kind
    # Soldered chips share no channel: each is a channel of its own width.
    names: Sequence[Hashable] = range(len(devices))
    if kind is None or not kind.startswith(("LPDDR", "HBM")):
        names = channels_of(devices)
    used = [name for name, device in zip(names, devices, strict=True) if device.populated]
    certain = all(device.populated is not None for device in devices)
    is_known = certain and None not in used
    speed: int | None = min(device.speed or 0 for device in filled)
    if (speed or 0) < _SLOWEST.get(kind or "", 1):
        speed = None
    detail = ""
    if len(kinds) > 1:
        detail = _MIXED
    elif not is_known:
        detail = _NAMELESS
    elif speed is None:
        detail = _SPEEDLESS
    return Memory(
        kind=kind,
        speed=speed,
        channels=len(set(used)) if is_known else None,
        channels_available=len(set(names)) if is_known and None not in names else None,
        modules=len(filled) if certain else None,
        slots=len(devices),
        bandwidth=None if detail else _bandwidth(used, filled, speed),
        detail=detail,
    )


def _bandwidth(used: Sequence[Hashable], filled: Sequence[Slot], speed: int | None) -> int | None:
    """Return the total bandwidth of all channels in bytes per second, or None if it is unknown.

    `used` contains the channel of each module in `filled`. A channel is as wide as any one of its
    modules. All channels run at `speed`, which is the speed of the slowest module.
    """
    pairs = {(name, device.width) for name, device in zip(used, filled, strict=True)}
    widths = [width for _, width in pairs if width is not None]
    if speed is None or len(widths) < len(pairs) or len(pairs) > len(set(used)):
        return None
    total = sum(widths) // 8 * speed * 1_000_000
    if total <= 2**53:
        return total
    return None


def channels_of(devices: Sequence[Slot]) -> Sequence[Hashable]:
    """Return a comparable key for each device's channel.

    Devices on the same channel have equal keys. A key is None if the device's name does not reveal
    its channel.
    """
    names = [(device.bank.lower(), device.locator.lower()) for device in devices]
    keys = [_named(bank, locator) for bank, locator in names]
    slots = [match for _, locator in names if (match := _SLOT.search(locator))]
    if None in keys and len(slots) == len(names):
        keys = _lettered(slots)
    full = Counter(name for name in keys if name is not None)
    # Duplicate names, or more slots than a channel can have: the names mean something else.
    if len(set(names)) < len(names) or max(full.values(), default=0) > _MOST_SLOTS:
        return [None] * len(devices)
    return keys


def _named(bank: str, locator: str) -> Hashable:
    """Return the channel given in a device's bank or locator name, or None if there is none.

    The result includes the owner of the channel, such as the processor, if the names give one.
    """
    for text in (bank, locator):
        match = _CHANNEL.search(text) or _COLUMN.search(text)
        if match:
            return (*_OWNER.findall(bank), *_OWNER.findall(locator), match[1])
    return None


def _lettered(slots: Sequence[re.Match[str]]) -> list[Hashable]:
    """Return the channels denoted by the letters in slot names such as DIMM_A1.

    All channels are None if the letters cannot denote channels. For example, on Dell servers,
    letters denote processors, and many slots share a letter (PowerEdge M420 Owner's Manual, "Memory
    Socket Locations": channel 1 of processor 1 has the sockets A1 and A4).
    """
    owners = [tuple(_OWNER.findall(slot.string)) for slot in slots]
    most = _MOST_SLOTS if all(owners) else 2
    if len({slot[1] for slot in slots}) < 2 or max(int(slot[2]) for slot in slots) > most:
        return [None] * len(slots)
    return [(owner, slot[1]) for owner, slot in zip(owners, slots, strict=True)]


class Slot(Struct, frozen=True, kw_only=True):
    """A slot for a memory module, or a memory chip that is soldered to the board."""

    populated: bool | None = None
    """Whether the slot contains main memory; None if the firmware does not state it."""
    kind: str | None = None
    width: int | None = None
    """Width in data bits, not counting ECC bits."""
    speed: int | None = None
    """Configured speed in millions of transfers per second (MT/s)."""
    locator: str = ""
    bank: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """The memory devices listed in the firmware's table."""

    devices: tuple[Slot, ...]
    virtual: bool
    """Whether the table states that it describes a virtual machine."""


class _Structure(Struct, frozen=True):
    kind: int
    data: bytes
    strings: tuple[bytes, ...]

    def number(self, offset: int, size: int) -> int:
        """Return the unsigned little-endian number of `size` bytes at `offset`.

        Return 0 if the structure ends before the last of these bytes.
        """
        if offset + size > len(self.data):
            return 0
        return int.from_bytes(self.data[offset : offset + size], "little")

    def text(self, offset: int) -> str:
        """Return the string whose number is stored at `offset`.

        Strings are numbered from 1. Return an empty string if the number is 0 or if the structure
        has no string with this number.
        """
        index = self.number(offset, 1)
        if not 0 < index <= len(self.strings):
            return ""
        return clean(self.strings[index - 1].decode("ascii", "replace")) or ""


def parse(table: bytes) -> Table | None:
    """Parse `/sys/firmware/dmi/tables/DMI`; return None if the table is damaged or cut off.

    Devices that are not part of main memory (flash, video memory) are left out.
    """
    everything = list(structures(table))
    if not everything or everything[-1].kind != _END:
        return None
    foreign = {
        structure.number(0x02, 2)
        for structure in everything
        if structure.kind == _ARRAY and structure.number(0x05, 1) != _SYSTEM_MEMORY
    }
    return Table(
        devices=tuple(
            _slot(structure)
            for structure in everything
            if structure.kind == _MEMORY_DEVICE and structure.number(0x04, 2) not in foreign
        ),
        # Bit 4 of the second extension byte: "SMBIOS table describes a virtual machine".
        virtual=any(s.kind == _BIOS and s.number(0x13, 1) & 0x10 for s in everything),
    )


def structures(table: bytes) -> Iterator[_Structure]:
    """Yield the table's structures, up to and including the end marker.

    If the table is cut off, only the complete structures are yielded.
    """
    at = 0
    while at + 4 <= len(table):
        kind = table[at]
        length = table[at + 1]
        # The strings end with an empty one; without strings there are also two zeros.
        end = table.find(b"\0\0", at + length)
        if length < 4 or (end < 0 and kind != _END):
            return
        data = table[at : at + length]
        yield _Structure(kind, data, tuple(table[at + length : end].split(b"\0")))
        if kind == _END:
            return
        at = end + 2


def _slot(structure: _Structure) -> Slot:
    size = structure.number(0x0C, 2)
    code = structure.number(0x12, 1)
    if len(structure.data) < _SHORTEST:
        size = 0xFFFF
    if code == _LOGICAL or structure.number(0x28, 1) in _PERSISTENT:
        size = 0
    width = structure.number(0x0A, 2)
    width = _DATA_BITS.get(width, width)
    return Slot(
        # 0x7FFF means that the size is in another field; here only its presence matters.
        populated=None if size == 0xFFFF else size > 0,
        kind=_KINDS.get(code),
        width=width if width in {8, 16, 32, 64, 128, 256, 512, 1024} else None,
        speed=_transfers(structure),
        locator=structure.text(0x10),
        bank=structure.text(0x11),
    )


def _transfers(structure: _Structure) -> int | None:
    speed = structure.number(0x20, 2)
    if speed == 0xFFFF:
        speed = structure.number(0x58, 4)
    if 0 < speed < 1 << 20:
        return speed
    return None
