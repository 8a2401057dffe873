"""Decide which slots share a memory channel, from the firmware's names for them.

SMBIOS has no field for the channel: it is part of the slot names, which differ by vendor.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from envbuilder.host.memory.smbios import Device

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
_MOST = 3  # slots per channel


def channels(devices: Sequence[Device]) -> Sequence[Hashable]:
    """Return the channel of each device, as a comparable key; None if its name does not show it."""
    names = [(device.bank.lower(), device.locator.lower()) for device in devices]
    keys = [_named(bank, locator) for bank, locator in names]
    slots = [match for _, locator in names if (match := _SLOT.search(locator))]
    if None in keys and len(slots) == len(names):
        keys = _lettered(slots)
    full = Counter(name for name in keys if name is not None)
    # Duplicate names, or more slots than a channel can have: the names mean something else.
    if len(set(names)) < len(names) or max(full.values(), default=0) > _MOST:
        return [None] * len(devices)
    return keys


def _named(bank: str, locator: str) -> Hashable:
    """Return the channel that the names state, with all its owners; None if they state none."""
    for text in (bank, locator):
        match = _CHANNEL.search(text) or _COLUMN.search(text)
        if match:
            return (*_OWNER.findall(bank), *_OWNER.findall(locator), match[1])
    return None


def _lettered(slots: Sequence[re.Match[str]]) -> list[Hashable]:
    """Return channels by the letters of slots such as DIMM_A1, if letters can mean channels.

    On Dell servers they mean processors: one letter has many slots (PowerEdge M420 Owner's
    Manual, "Memory Socket Locations": channel 1 of processor 1 has the sockets A1 and A4).
    """
    owners = [tuple(_OWNER.findall(slot.string)) for slot in slots]
    most = _MOST if all(owners) else 2
    if len({slot[1] for slot in slots}) < 2 or max(int(slot[2]) for slot in slots) > most:
        return [None] * len(slots)
    return [(owner, slot[1]) for owner, slot in zip(owners, slots, strict=True)]
