"""Decide which memory modules there are, how many channels they fill, and their bandwidth.

The source is the firmware's table (SMBIOS), readable only by root. Its parser is imported only
if there is a table to read: usually there is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.host.model import Memory

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from envbuilder.host.memory.smbios import Device
    from envbuilder.host.snapshot import Reader, Snapshot

_TABLE = "sys/firmware/dmi/tables/DMI"
_VIRTUAL = "This is a virtual machine, which does not show its host's memory modules."
_ROOT = "Only root may read the firmware's table of memory modules: run this as root to see all."
_HIDDEN = (
    "There is no table of memory modules here:"
    " containers, many virtual machines and some ARM boards have none."
)
_DAMAGED = "The firmware's table of memory modules is damaged."
_EMPTY = "The firmware's table lists no memory module."
_MIXED = "There are modules of several kinds."
_NAMELESS = "The firmware's names of the memory slots do not show which share a channel."
_SPEEDLESS = "The firmware does not report the memory's speed."
# The lowest transfer rate of each kind (JEDEC JESD79-3, -4, -5). Less is the clock rate, half the
# transfer rate: some firmware reports that instead.
_SLOWEST = {"DDR3": 800, "DDR4": 1600, "DDR5": 3200}


def read(reader: Reader) -> None:
    """Read the firmware's table, if it is accessible."""
    reader.blob(_TABLE)


def decide(snapshot: Snapshot, *, virtual: bool) -> Memory:
    """Return the modules, without their total size. `virtual`: what the CPU reports."""
    blob = snapshot.blobs.get(_TABLE)
    if blob is not None:
        from envbuilder.host.memory import smbios

        table = smbios.parse(blob)
        virtual = virtual or (table is not None and table.virtual)
        if table is not None and not virtual:
            return _from_firmware(table.devices)
    if virtual:
        return Memory(detail=_VIRTUAL)
    if blob is not None:
        return Memory(detail=_DAMAGED)
    why = snapshot.unreadable.get(_TABLE)
    detail = _HIDDEN if why is None else f"/{_TABLE} could not be read ({why})."
    if why in {"Permission denied", "Operation not permitted"}:
        detail = _ROOT
    return Memory(detail=detail)


def _from_firmware(devices: Sequence[Device]) -> Memory:
    from envbuilder.host.memory.channels import channels

    filled = [device for device in devices if device.populated]
    if not filled:
        return Memory(slots=len(devices) or None, detail=_EMPTY)
    kinds = {device.kind for device in filled}
    kind = kinds.pop() if len(kinds) == 1 else None
    # Soldered chips share no channel: each is a channel of its own width.
    soldered = kind is not None and kind.startswith(("LPDDR", "HBM"))
    names = list(range(len(devices))) if soldered else channels(devices)
    used = [name for name, device in zip(names, devices, strict=True) if device.populated]
    certain = all(device.populated is not None for device in devices)
    named = certain and None not in used
    speeds = [_plausible(device.speed, kind) for device in filled]
    speed = min((s for s in speeds if s is not None), default=None) if all(speeds) else None
    reasons = ((kinds, _MIXED), (not named, _NAMELESS), (speed is None, _SPEEDLESS))
    details = [text for applies, text in reasons if applies]
    return Memory(
        kind=kind,
        speed=speed,
        channels=len(set(used)) if named else None,
        channels_available=len(set(names)) if named and None not in names else None,
        modules=len(filled) if certain else None,
        slots=len(devices),
        bandwidth=None if details else _bandwidth(used, filled, speed),
        detail=details[0] if details else "",
    )


def _plausible(speed: int | None, kind: str | None) -> int | None:
    return speed if speed is not None and speed >= _SLOWEST.get(kind or "", 1) else None


def _bandwidth(used: Sequence[Hashable], filled: Sequence[Device], speed: int | None) -> int | None:
    """Return bytes per second of all channels, each as wide as one of its modules.

    All run at the speed of the slowest module.
    """
    pairs = {(name, device.width) for name, device in zip(used, filled, strict=True)}
    widths = [width for _, width in pairs if width is not None]
    if speed is None or len(widths) < len(pairs) or len(pairs) > len(set(used)):
        return None
    total = sum(widths) // 8 * speed * 1_000_000
    return total if total <= 2**53 else None
