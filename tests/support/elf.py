"""Shared libraries of Linux as linkers write them, with nothing but what the loader reads."""

from __future__ import annotations

import struct

ADDRESS = 0x10000
"""Where the file is loaded: offsets and addresses differ."""


def library(*needed: str, strings_last: bool = False, code: int = 0) -> bytes:
    """Return a library that needs others.

    `strings_last`: they are behind the section that refers to them, as patchelf leaves them;
    `code`: bytes before all of it.
    """
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    offsets = [1]
    for name in needed:
        offsets.append(offsets[-1] + len(name) + 1)
    size = 16 * (len(needed) + 3)
    start = 64 + 2 * 56 + code
    places = (start, start + len(strings))
    if strings_last:
        places = (start + size, start)
    pairs = [*((1, offset) for offset in offsets[:-1]), (5, ADDRESS + places[0])]
    pairs += [(10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *pair) for pair in pairs)
    parts = (dynamic, strings) if strings_last else (strings, dynamic)
    whole = start + len(strings) + size
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, whole, whole, 4096)
    where = (places[1], ADDRESS + places[1], ADDRESS + places[1], size, size, 8)
    return head + load + struct.pack("<IIQQQQQQ", 2, 6, *where) + bytes(code) + b"".join(parts)
