"""Parse what the firmware's table (SMBIOS) states about memory.

Offsets and codes are those of DMTF's DSP0134, "System Management BIOS Reference Specification":
6.1 structures and strings, 7.1.2.2 BIOS characteristics, 7.17 memory arrays, 7.18 memory devices.
Fields past the end of a structure were added by later versions; they read as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_BIOS, _ARRAY, _DEVICE, _END = 0, 16, 17, 127
# For firmware that counts ECC bits as data: 8 per 64 of DDR4, 8 per 32 of DDR5.
_DATA_BITS = {72: 64, 80: 64, 40: 32}


class Device(Struct, frozen=True, kw_only=True):
    """One slot for a memory module, or one soldered chip."""

    populated: bool | None = None
    """Whether it holds main memory; None if the firmware does not know."""
    kind: str | None = None
    width: int | None = None
    """Data bits, without ECC bits."""
    speed: int | None = None
    """Transfers per second, in millions (MT/s), as configured."""
    locator: str = ""
    bank: str = ""


class Table(Struct, frozen=True, kw_only=True):
    """The memory information of the firmware's table."""

    devices: tuple[Device, ...]
    virtual: bool
    """Whether the table states that it describes a virtual machine."""


class _Structure(Struct, frozen=True):
    kind: int
    data: bytes
    strings: tuple[bytes, ...]

    def number(self, offset: int, size: int) -> int:
        """Return an unsigned number; 0 if the structure ends before it."""
        if offset + size > len(self.data):
            return 0
        return int.from_bytes(self.data[offset : offset + size], "little")

    def text(self, offset: int) -> str:
        """Return the string whose number, counted from 1, is at `offset`; empty for 0."""
        index = self.number(offset, 1)
        if not 0 < index <= len(self.strings):
            return ""
        return clean(self.strings[index - 1].decode("ascii", "replace")) or ""


def parse(table: bytes) -> Table | None:
    """Return the devices in `/sys/firmware/dmi/tables/DMI`; None if it is damaged or cut off.

    Devices of arrays other than main memory (flash, video memory) are left out.
    """
    everything = list(structures(table))
    if not everything or everything[-1].kind != _END:
        return None
    foreign = {
        each.number(0x02, 2)
        for each in everything
        if each.kind == _ARRAY and each.number(0x05, 1) != _SYSTEM_MEMORY
    }
    return Table(
        devices=tuple(
            _device(each)
            for each in everything
            if each.kind == _DEVICE and each.number(0x04, 2) not in foreign
        ),
        # Bit 4 of the second extension byte: "SMBIOS table describes a virtual machine".
        virtual=any(s.kind == _BIOS and s.number(0x13, 1) & 0x10 for s in everything),
    )


def structures(table: bytes) -> Iterator[_Structure]:
    """Yield structures up to and including the end marker; fewer if the table is cut off."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        # The strings end with an empty one; without strings there are also two zeros.
        end = table.find(b"\0\0", at + length)
        if length < 4 or (end < 0 and kind != _END):
            return
        data = table[at : at + length]
        yield _Structure(kind, data, tuple(table[at + length : end].split(b"\0")))
        if kind == _END:
            return
        at = end + 2


def _device(structure: _Structure) -> Device:
    size, code = structure.number(0x0C, 2), structure.number(0x12, 1)
    if len(structure.data) < _SHORTEST:
        size = 0xFFFF
    if code == _LOGICAL or structure.number(0x28, 1) in _PERSISTENT:
        size = 0
    width = structure.number(0x0A, 2)
    width = _DATA_BITS.get(width, width)
    return Device(
        # 0x7FFF means that the size is in another field; here only its presence matters.
        populated=None if size == 0xFFFF else size > 0,
        kind=_KINDS.get(code),
        width=width if width in {8, 16, 32, 64, 128, 256, 512, 1024} else None,
        speed=_speed(structure),
        locator=structure.text(0x10),
        bank=structure.text(0x11),
    )


def _speed(structure: _Structure) -> int | None:
    speed = structure.number(0x20, 2)
    if speed == 0xFFFF:
        speed = structure.number(0x58, 4)
    return speed if 0 < speed < 1 << 20 else None
