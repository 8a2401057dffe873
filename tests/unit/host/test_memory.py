"""Memory: amounts, limits, and modules from tables of the firmware that are built here.

The modules of `REAL` are those of `dmidecode --type 17` on real machines, as published at the
address beside each.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.host import memory, model as host, probe
from envbuilder.host.snapshot import Snapshot
from tests.support.repositories import lay

TABLE = "sys/firmware/dmi/tables/DMI"
ARRAY = 0x1000
GB = 10**9
KINDS = {"DDR3": 0x18, "DDR4": 0x1A, "DDR5": 0x22, "LPDDR5": 0x23, "RAM": 0x07, "NV": 0x1F}


def structure(kind: int, body: bytes, *strings: str, handle: int = 0) -> bytes:
    head = struct.pack("<BBH", kind, len(body) + 4, handle)
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return head + body + texts + b"\0"


def array(handle: int = ARRAY, use: int = 3) -> bytes:
    return structure(16, struct.pack("<BBBIHH", 3, use, 3, 0, 0xFFFE, 8), handle=handle)


def module(
    bank: str = "",
    locator: str = "",
    kind: str = "DDR5",
    *,
    megabytes: int = 16384,
    speed: int = 4800,
    width: int = 64,
    length: int = 0x5C,
    owner: int = ARRAY,
    technology: int = 3,
) -> bytes:
    """A memory device (type 17) as long as SMBIOS 3.3 makes it, or cut to `length`."""
    size, extended = (megabytes, 0) if megabytes < 0x7FFF else (0x7FFF, megabytes)
    short, long = (speed, 0) if speed < 0xFFFF else (0xFFFF, speed)
    body = struct.pack("<HHHHH", owner, 0xFFFE, width, width, size)
    body += struct.pack("<BBBBBHH", 9, 0, 1, 2, KINDS.get(kind, 2), 0, 9999)
    body += struct.pack("<BBBBB", 0, 0, 0, 0, 0) + struct.pack("<I", extended)
    body += struct.pack("<HHHH", short, 0, 0, 0) + bytes([technology]) + bytes(0x54 - 0x29)
    body += struct.pack("<II", 0, long)
    assert len(body) == 0x5C - 4
    return structure(17, body[: length - 4], *(text or "Not Specified" for text in (locator, bank)))


def empty(bank: str = "", locator: str = "") -> bytes:
    return module(bank, locator, "?", megabytes=0, speed=0, width=0)


END = structure(127, b"")


def table(*parts: bytes, virtual: bool = False) -> bytes:
    bios = structure(0, bytes(14) + bytes([0, 0x10 if virtual else 0]) + bytes(4), "vendor")
    return bios + array() + b"".join(parts) + END


def found(root: Path, files: Mapping[str, str | bytes]) -> host.Memory:
    return probe.host(lay(root, {"proc/meminfo": "MemTotal: 33554432 kB\n", **files})).memory


def of(*parts: bytes) -> host.Memory:
    taken = Snapshot(live=False, system="linux", blobs={TABLE: table(*parts)})
    return memory.modules(taken, virtual=False)


def slots(
    names: Sequence[tuple[str, str]], filled: Sequence[int], kind: str, **facts: Any
) -> list[bytes]:
    return [
        module(bank, locator, kind, **facts) if number in filled else empty(bank, locator)
        for number, (bank, locator) in enumerate(names)
    ]


AGESA = [(f"P0 CHANNEL {c}", f"DIMM {n}") for c in "AB" for n in (0, 1)]
EPYC = [
    (f"P0_Node0_Channel{n}_Dimm{d}", f"DIMM{'ABCDEFGH'[n]}{d + 1}")
    for n in range(8)
    for d in (0, 1)
]
XEON = [
    (f"P{p}_Node{c // 3}_Channel{c % 3}_Dimm{d}", f"P{p + 1}-DIMM{'ABCDEF'[c]}{d + 1}")
    for p in (0, 1)
    for c in range(6)
    for d in ((0, 1) if c % 3 == 0 else (0,))
]
HP = [("", f"PROC  {p} DIMM {n} ") for p in (1, 2) for n in range(1, 13)]
REAL: dict[str, tuple[list[bytes], tuple[int | None, ...], str, int | None]] = {
    # Ryzen 9 7950X, two modules (github.com/cyring/CoreFreq/issues/378)
    "desktop": (
        slots(AGESA, [1, 3], "DDR5", speed=6000),
        (2, 2, 2, 4),
        "",
        96 * GB,
    ),
    # Intel desktop: the letter is the channel's (github.com/ckb-next/ckb-next/issues/1220)
    "intel desktop": (
        slots(
            [(f"BANK {n}", f"Controller{n // 2}-DIMM{'AB'[n // 2]}{n % 2 + 1}") for n in range(4)],
            [1, 3],
            "DDR5",
            megabytes=32768,
            speed=5200,
        ),
        (2, 2, 2, 4),
        "",
        83_200_000_000,
    ),
    # EPYC 7xx2 with half of its slots filled (github.com/mchehab/rasdaemon/issues/64)
    "epyc": (
        slots(EPYC, range(1, 16, 2), "DDR4", megabytes=32768, speed=3200, length=84),
        (8, 8, 8, 16),
        "",
        204_800_000_000,
    ),
    # Two Xeons: each controller counts its channels again, and the modules run below what they
    # could (github.com/kvcache-ai/ktransformers/issues/1073)
    "xeon": (
        slots(XEON, range(16), "DDR4", megabytes=32768, speed=2133, length=40),
        (12, 12, 16, 16),
        "",
        12 * 8 * 2_133_000_000,
    ),
    # Ryzen AI Max+ 395: eight chips of 32 bits (github.com/cyring/CoreFreq/issues/561)
    "strix halo": (
        [
            module(f"P0 CHANNEL {c}", "DIMM 0", "LPDDR5", speed=8000, width=32, length=100)
            for c in "ABCDEFGH"
        ],
        (8, 8, 8, 8),
        "",
        256 * GB,
    ),
    # Dual Xeon E5-2680 v2 by HP: numbers only (github.com/cyring/CoreFreq/issues/142)
    "hp": (
        slots(HP, range(0, 24, 2), "DDR3", megabytes=8192, speed=1333, length=40),
        (None, None, 12, 24),
        "do not show",
        None,
    ),
    # PowerEdge M420: the letter is the processor's (Owner's Manual, "Memory Socket Locations")
    "dell": (
        slots([("", f"{p}{n}") for p in "AB" for n in range(1, 7)], range(12), "DDR3", speed=1600),
        (None, None, 12, 12),
        "do not show",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_modules_of_real_machines(name: str) -> None:
    parts, counts, detail, bandwidth = REAL[name]
    here = of(*parts)
    assert (here.channels, here.channels_available, here.modules, here.slots) == counts
    assert here.bandwidth == bandwidth
    assert detail in here.detail
    assert bool(here.detail) == bool(detail)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ([("", f"CPU{p}_C{c}D{d}") for p in (0, 1) for c in range(6) for d in (0, 1)], 12),
        ([(f"BANK {n}", f"Controller{n}-ChannelA-DIMM0") for n in (0, 1)], 2),
        ([("", "DIMM_A1"), ("", "DIMM_A2")], None),  # a server's processor as likely as a channel
        ([("BANK 0", "Chassis slot"), ("BANK 1", "Chassis slot")], None),
        ([("", "ChannelA-DIMM0"), ("", "ChannelA-DIMM0")], None),  # of two sockets, unsaid
        ([("Channel A", f"DIMM {n}") for n in range(4)], None),  # too many for one channel
    ],
)
def test_names_of_slots(names: list[tuple[str, str]], count: int | None) -> None:
    here = of(*slots(names, range(len(names)), "DDR4", speed=3200))
    assert here.channels == count
    assert here.bandwidth == (count and count * 25_600_000_000)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"speed": 2400}, "the memory's speed"),  # the clock, stated in place of the transfers
        ({"length": 0x1B}, "the memory's speed"),  # SMBIOS 2.3 has no such field
        ({"kind": "DDR4", "speed": 2400}, "several kinds"),
    ],
)
def test_one_module_that_is_not_known_well(change: dict[str, Any], fact: str) -> None:
    good = ("P0 CHANNEL A", "DIMM 0")
    odd = ("P0 CHANNEL B", "DIMM 0")
    here = of(module(*good), module(*odd, **change))
    assert (here.channels, here.modules, here.bandwidth) == (2, 2, None)
    assert fact in here.detail


A = module("Channel A", "0")
B = module("Channel B", "0")
MAIN_AND_OTHER = (
    module("P0 CHANNEL A", "DIMM 0"),
    array(0x2000, use=5) + module("", "BIOS", "?", megabytes=32, owner=0x2000),
    module("P0 CHANNEL A", "DIMM 1", "NV", speed=2666),
    module("P0 CHANNEL B", "DIMM 1", "DDR4", technology=7),
)


@pytest.mark.parametrize(
    ("parts", "facts"),
    [
        (
            [module("P0 CHANNEL A", "DIMM 0"), empty("", "spare")],
            {"channels": 1, "channels_available": None},
        ),
        ([A, module("Channel B", "DIMM 0", width=63)], {"channels": 2, "bandwidth": None}),
        (
            [A, module("Channel A", "1", width=32)],
            {"channels": 1, "speed": 4800, "bandwidth": None},
        ),
        # Bits of correction carry no data.
        ([module("Channel A", width=72)], {"bandwidth": 8 * 4_800_000_000}),
        # The slower one decides.
        (
            [module("Channel A", "0", speed=5600), B],
            {"speed": 4800, "bandwidth": 2 * 8 * 4_800_000_000},
        ),
        ([module("Channel A", megabytes=131072)], {"modules": 1}),  # too many for the old field
        ([A, module("Channel B", "0", length=0x14)], {"modules": None, "slots": 2}),
        ([A, B[:0x0C] + b"\xff\xff" + B[0x0E:]], {"modules": None, "channels": None, "slots": 2}),
        (
            [module(str(n), kind="LPDDR5", width=1024, speed=1_000_000) for n in range(2000)],
            {"channels": 2000, "bandwidth": None},
        ),
        ([module("Channel A", speed=70_000)], {"speed": 70_000}),  # it has its own field
        (MAIN_AND_OTHER, {"modules": 1, "slots": 3, "channels": 1, "channels_available": 2}),
    ],
)
def test_what_modules_add_up_to(parts: Sequence[bytes], facts: dict[str, Any]) -> None:
    here = of(*parts)
    assert {name: getattr(here, name) for name in facts} == facts


def test_a_table_without_modules() -> None:
    assert of().detail == of(empty("Channel A")).detail
    assert "lists no memory module" in of().detail
    assert of().modules is None


def test_a_virtual_machine(tmp_path: Path) -> None:
    """QEMU: one module without a speed; the processor says what it is, or the firmware."""
    qemu = module("", "DIMM 0", "RAM", speed=0, width=0)
    cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor lm\n"
    first = found(tmp_path / "cpu", {TABLE: table(qemu), "proc/cpuinfo": cpuinfo})
    second = found(tmp_path / "firmware", {TABLE: table(qemu, virtual=True)})
    real = found(tmp_path / "real", {TABLE: table(qemu)})
    assert first == second
    assert "virtual machine" in first.detail
    assert (first.modules, first.slots) == (None, None)
    assert (real.modules, real.kind) == (1, None)


def test_a_damaged_table(tmp_path: Path) -> None:
    whole = table(*REAL["desktop"][0])
    here = found(tmp_path, {TABLE: whole[:-30]})
    assert here.detail.endswith("is damaged.")
    assert (here.modules, here.channels, here.total_bytes) == (None, None, 32 << 30)
    assert memory.parse(b"") is None
    assert memory.parse(bytes(100)) is None
    assert memory.parse(whole + b"rest") == memory.parse(whole)


def test_without_a_table(tmp_path: Path) -> None:
    """A folder stands in for a file that only root may read."""
    hidden = found(tmp_path / "container", {"sys/kernel/x": ""})
    assert "no table of memory modules here" in hidden.detail
    (tmp_path / "odd" / TABLE).mkdir(parents=True)
    assert "(not a file)" in found(tmp_path / "odd", {}).detail
    denied = Snapshot(live=True, system="linux", unreadable={TABLE: "Permission denied"})
    assert "run this as root" in memory.modules(denied, virtual=False).detail
    assert "virtual machine" in memory.modules(denied, virtual=True).detail


MOUNT = "25 24 0:23 / {} rw,nosuid - {} shm {}\n"


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        ("/dev/shm tmpfs rw,size=2g,inode64", 2 << 30),
        ("/dev/shm tmpfs rw,nr_inodes=5,size=25%", 8 << 30),
        ("/dev/shm tmpfs rw,inode64", 16 << 30),
        ("/dev/shm tmpfs rw,size=0k", 32 << 30),
        ("/dev/shm tmpfs rw,size=many", None),
        ("/dev/shm tmpfs rw,size=9999999999999999t", None),
        ("/dev/shm ext4 rw,size=1k", None),
        ("/dev/shm tmpfs rw,size=1k; /dev/shm tmpfs rw,size=2k", 2048),
        ("/run tmpfs rw", 0),
    ],
)
def test_shared_memory(mounts: str, size: int | None, tmp_path: Path) -> None:
    lines = "".join(MOUNT.format(*mount.split()) for mount in mounts.split("; "))
    assert found(tmp_path, {"proc/self/mountinfo": lines, "dev/null": ""}).shm_bytes == size


def test_shared_memory_that_is_not_known_is_not_absent(tmp_path: Path) -> None:
    other = MOUNT.format("/run", "tmpfs", "rw")
    folder = found(tmp_path / "a", {"proc/self/mountinfo": other, "dev/shm/x": ""})
    assert folder.shm_bytes is None  # as large as whatever it is in
    assert found(tmp_path / "b", {"dev/null": ""}).shm_bytes is None  # no mounts
    assert found(tmp_path / "c", {"proc/self/mountinfo": other}).shm_bytes is None  # no dev


def test_limits_are_part_of_memory(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4294967296\n"}
    here = found(tmp_path, files)
    assert (here.total_bytes, here.limit_bytes) == (32 << 30, 4 << 30)


names = st.text("PC0 ChannelADIMM_-x1²", max_size=14)
parts = st.builds(
    module,
    names,
    names,
    st.sampled_from(list(KINDS)),
    megabytes=st.integers(0, 2**31 - 1),
    speed=st.integers(0, 2**32 - 1),
    width=st.integers(0, 0xFFFF),
    length=st.integers(4, 0x5C),
    owner=st.sampled_from([ARRAY, 0x2000]),
    technology=st.integers(0, 255),
)


@given(st.lists(parts, max_size=6), st.integers(0, 400), st.binary(max_size=4))
def test_no_table_makes_the_parser_raise(some: list[bytes], cut: int, noise: bytes) -> None:
    whole = table(*some)
    for blob in (whole, whole[: len(whole) - cut], whole[:cut] + noise + whole[cut:], noise):
        taken = Snapshot(live=False, system="linux", blobs={TABLE: blob})
        here = memory.modules(taken, virtual=False)
        assert here.bandwidth is None or 0 < here.bandwidth <= 2**53
        assert (here.modules or 0) <= (here.slots or 0)
        assert (here.channels or 0) <= (here.channels_available or 2**53)
