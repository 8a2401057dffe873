"""Sockets, cores, caches, quotas: each on a tree of files that is written here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.host import cpu, model as host, probe
from envbuilder.host.snapshot import Reader
from envbuilder.payload.machine import threads
from tests.support.repositories import lay

CPUS = "sys/devices/system/cpu"
MIB = 1 << 20


def found(root: Path, files: Mapping[str, str]) -> host.Cpu:
    return probe.host(lay(root, {"proc/version": "Linux version 6.8.0 ()\n", **files})).cpu


def block(number: int, core: int, socket: int = 0, **more: str) -> str:
    fields = {
        "processor": str(number),
        "vendor_id": "AuthenticAMD",
        "cpu family": "25",
        "model": "1",
        "physical id": str(socket),
        "siblings": "2",
        "core id": str(core),
        "flags": "fpu lm avx avx2",
        **more,
    }
    return "".join(f"{key}\t: {value}\n" for key, value in fields.items())


def arm(number: int, part: str, maker: str = "0x41") -> str:
    return (
        f"processor\t: {number}\nFeatures\t: fp asimd\nCPU implementer\t: {maker}\n"
        f"CPU architecture: 8\nCPU part\t: {part}\n"
    )


def cache(number: int, shared: str, size: str = "32768K", level: str = "3") -> dict[str, str]:
    folder = f"{CPUS}/cpu{number}/cache/index3"
    return {
        f"{folder}/shared_cpu_list": shared + "\n",
        f"{folder}/size": size + "\n",
        f"{folder}/level": level + "\n",
    }


def epyc() -> dict[str, str]:
    """Two sockets with 64 cores and 8 caches each, SMT on: 256 CPUs."""
    files = {
        f"{CPUS}/online": "0-255\n",
        "sys/devices/system/node/has_cpu": "0-1\n",
        "proc/self/status": "Cpus_allowed_list:\t0-255\n",
    }
    blocks = []
    for number in range(256):
        core = number % 128
        flags = "fpu lm avx avx2 " + " ".join(f"flag{n}" for n in range(150))
        blocks.append(block(number, core % 64, core // 64, flags=flags))
        first = core // 8 * 8
        files |= cache(number, f"{first}-{first + 7},{first + 128}-{first + 135}")
    files["proc/cpuinfo"] = "\n".join(blocks) + "\n"
    return files


def test_a_server_with_two_sockets(tmp_path: Path) -> None:
    here = found(tmp_path, epyc())
    assert (here.logical, here.physical, here.sockets, here.threads_per_core) == (256, 128, 2, 2)
    assert (here.numa_nodes, here.l3_bytes) == (2, 16 * 32 * MIB)
    assert (here.affinity, here.threads, here.generation) == (256, 128, "Zen 3")


def test_few_files_are_read_of_many_cpus(tmp_path: Path) -> None:
    reader = Reader(lay(tmp_path, epyc()))
    cpu.read(reader)
    assert len([path for path in reader.files if "/cache/" in path]) == 3 * 16
    for path in reader.unreadable | reader.files:
        assert "/topology/" not in path


@pytest.mark.parametrize(
    ("cores", "counts"),
    [([0, 1, 2, 3], (4, 4, 1, 1)), ([0, 0, 1, 1, 8, 9], (6, 4, 2, 1))],
    ids=["SMT is off", "big cores with it and small ones without"],
)
def test_cores_and_threads(cores: list[int], counts: tuple[int, ...], tmp_path: Path) -> None:
    text = "\n".join(block(number, core) for number, core in enumerate(cores))
    here = found(tmp_path, {"proc/cpuinfo": text})
    assert (here.logical, here.physical, here.threads_per_core, here.sockets) == counts


def test_topology_files_where_cpuinfo_says_nothing(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "\n".join(arm(n, "0xd0c") for n in range(4))}
    for number in range(4):
        folder = f"{CPUS}/cpu{number}/topology"
        files[f"{folder}/thread_siblings_list"] = f"{number // 2 * 2}-{number // 2 * 2 + 1}\n"
        files[f"{folder}/physical_package_id"] = f"{number // 2 * 36}\n"
    here = found(tmp_path, files)
    assert (here.physical, here.sockets, here.threads_per_core) == (2, 2, 2)
    assert (here.vendor, here.generation) == ("ARM", "Neoverse-N1")


@pytest.mark.parametrize("fact", ["thread_siblings_list", "physical_package_id"])
def test_one_unreadable_topology_makes_the_sum_unknown(fact: str, tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "\n".join(arm(n, "0xd0c") for n in range(2))}
    for number in range(2):
        files[f"{CPUS}/cpu{number}/topology/thread_siblings_list"] = f"{number}\n"
        files[f"{CPUS}/cpu{number}/topology/physical_package_id"] = "0\n"
    del files[f"{CPUS}/cpu1/topology/{fact}"]
    here = found(tmp_path, files)
    if fact == "thread_siblings_list":
        assert (here.physical, here.threads_per_core, here.sockets) == (None, None, 1)
    else:
        assert (here.physical, here.threads_per_core, here.sockets) == (2, 1, None)


def test_big_and_small_arm_cores(tmp_path: Path) -> None:
    text = "\n".join(arm(n, "0xd87" if n < 2 else "0xd85") for n in range(4))
    assert found(tmp_path, {"proc/cpuinfo": text}).generation == "Cortex-A725 + Cortex-X925"


@pytest.mark.parametrize(
    ("vendor", "flags", "generation"),
    [
        ("AuthenticAMD", "avx512f avx_vnni", "Zen 5 or newer"),
        ("AuthenticAMD", "avx512f", "Zen 4 or newer"),
        ("GenuineIntel", "avx512f avx_vnni amx_tile", "Sapphire Rapids or newer"),
        ("GenuineIntel", "avx512f avx_vnni", None),
    ],
)
def test_flags_tell_the_age_of_unknown_models(
    vendor: str, flags: str, generation: str | None, tmp_path: Path
) -> None:
    text = block(0, 0, vendor_id=vendor, model="999", flags=flags)
    assert found(tmp_path, {"proc/cpuinfo": text}).generation == generation


def l3(root: Path, files: dict[str, str], cpus: int = 4) -> int | None:
    return found(
        root, {"proc/cpuinfo": "\n".join(block(n, n) for n in range(cpus)), **files}
    ).l3_bytes


def test_caches_are_counted_once(tmp_path: Path) -> None:
    assert l3(tmp_path, cache(0, "0-1", "16384K") | cache(2, "2-3", "96M")) == 112 * MIB


@pytest.mark.parametrize(
    "damage",
    [
        {"index3/size": ""},
        {"index3/size": "9" * 40 + "K"},
        {"index3/level": "2"},
        {"index3/shared_cpu_list": "0-1"},
        {"index3/shared_cpu_list": "x"},
    ],
)
def test_one_unreadable_cache_makes_the_sum_unknown(damage: dict[str, str], tmp_path: Path) -> None:
    files = cache(0, "0-1") | cache(2, "2-3")
    files |= {f"{CPUS}/cpu2/cache/{name}": text for name, text in damage.items()}
    assert l3(tmp_path, files) is None


def test_cores_without_a_third_level_add_nothing(tmp_path: Path) -> None:
    low_power = {f"{CPUS}/cpu{number}/cache/index2/level": "2\n" for number in (2, 3)}
    assert l3(tmp_path / "known", cache(0, "0-1") | low_power) == 32 * MIB
    assert l3(tmp_path / "unknown", cache(0, "0-1")) is None
    assert l3(tmp_path / "none", low_power | {f"{CPUS}/cpu0/cache/index2/level": "2\n"}, 1) is None


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"has_cpu": "0,2\n", "node1/cpulist": ""}, 2),
        ({"node0/cpulist": "0\n", "node12/cpulist": "1\n", "possible": "0-7\n"}, 2),
        ({}, None),
    ],
)
def test_nodes_with_cpus(files: dict[str, str], nodes: int | None, tmp_path: Path) -> None:
    named = {f"sys/devices/system/node/{name}": text for name, text in files.items()}
    assert found(tmp_path, named).numa_nodes == nodes


def test_cpus_that_could_be_plugged_in_are_not_there(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": block(0, 0) + "\n" + block(1, 1),
        f"{CPUS}/online": "0-1\n",
        "proc/self/status": "Cpus_allowed_list:\t0-127\n",
    }
    here = found(tmp_path, files)
    assert (here.logical, here.affinity, here.threads) == (2, 2, 2)


def test_an_affinity_that_was_set_is_kept(tmp_path: Path) -> None:
    files = epyc() | {"proc/self/status": "Cpus_allowed_list:\t0,128,4\n"}
    here = found(tmp_path, files)
    assert (here.logical, here.physical, here.affinity, here.threads) == (256, 128, 3, 2)


def test_a_description_that_is_cut_off_does_not_count_cpus(tmp_path: Path) -> None:
    text = "\n".join(block(n, n) for n in range(4))
    cut = text[: text.index("processor\t: 3") + 20]
    here = found(tmp_path / "blind", {"proc/cpuinfo": cut})
    assert (here.logical, here.physical, here.sockets) == (None, None, None)
    here = found(tmp_path / "seeing", {"proc/cpuinfo": cut, f"{CPUS}/online": "0-3\n"})
    assert (here.logical, here.physical, here.sockets) == (4, None, None)


MOUNT = "35 24 0:30 {top} {point} rw,nosuid - {kind} {kind} {options}\n"


def mounted(
    top: str, point: str = "/sys/fs/cgroup", kind: str = "cgroup2", options: str = "rw"
) -> str:
    return MOUNT.format(top=top, point=point, kind=kind, options=options)


def limits(root: Path, files: Mapping[str, str]) -> tuple[float | None, int | None]:
    reader = Reader(lay(root, files))
    cpu.read_limits(reader)
    taken = reader.snapshot("linux")
    quota = cpu.quota(taken)
    assert threads.read_quota(root) == quota  # an image's entrypoint finds the same
    return quota, cpu.memory_limit(taken)


SLICE = "sys/fs/cgroup/user.slice"


@pytest.mark.parametrize(
    ("files", "quota", "memory"),
    [
        # The tightest slice counts.
        (
            {
                "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n",
                "proc/self/mountinfo": mounted("/"),
                f"{SLICE}/user-1000.slice/session-2.scope/cpu.max": "max 100000\n",
                f"{SLICE}/user-1000.slice/session-2.scope/memory.max": "max\n",
                f"{SLICE}/user-1000.slice/cpu.max": "250000 100000\n",
                f"{SLICE}/user-1000.slice/memory.max": "8589934592\n",
                f"{SLICE}/cpu.max": "400000 100000\n",
                f"{SLICE}/memory.max": "17179869184\n",
            },
            2.5,
            8 << 30,
        ),
        # A container with its own namespace.
        (
            {
                "proc/self/cgroup": "0::/\n",
                "proc/self/mountinfo": mounted("/"),
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/memory.max": "1073741824\n",
            },
            0.5,
            1 << 30,
        ),
        # A group inside a container without a namespace: the path is the host's, the mount shows
        # the container's part of it (Docker, version 1).
        (
            {
                "proc/self/cgroup": (
                    "5:memory:/docker/abc/job\n4:cpu,cpuacct:/docker/abc/job\n0::/\n"
                ),
                "proc/self/mountinfo": mounted(
                    "/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"
                )
                + mounted("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "rw,memory"),
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
            },
            1.5,
            2 << 30,
        ),
        # Version 1 without limits.
        (
            {
                "proc/self/cgroup": "5:memory:/\n4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854710272\n",  # 64 KiB
            },
            None,
            None,
        ),
        # Systemd's hybrid layout: version 2 is beside the others.
        (
            {
                "proc/self/cgroup": "4:cpu:/\n0::/app\n",
                "proc/self/mountinfo": mounted("/", "/sys/fs/cgroup/cpu", "cgroup", "rw,cpu")
                + mounted("/", "/sys/fs/cgroup/unified"),
                "sys/fs/cgroup/unified/app/memory.max": "4096\n",
            },
            None,
            4096,
        ),
    ],
)
def test_the_limits_of_control_groups(
    files: dict[str, str], quota: float | None, memory: int | None, tmp_path: Path
) -> None:
    assert limits(tmp_path, files) == (quota, memory)


@pytest.mark.parametrize(
    "group", ["0::/../../x\n", "0::/a/../../b\n", "4:cpu,../../../..:/x\n", "0::/\0\n", "::::\n"]
)
def test_paths_that_lead_nowhere(group: str, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "root").mkdir()
    files = {"proc/self/cgroup": group, "sys/fs/cgroup/cpu.max": "300000 100000\n"}
    quota, memory = limits(tmp_path / "root", files)
    assert quota in {3.0, None}
    assert memory is None


def test_limits_that_are_there_but_closed_are_noted(tmp_path: Path) -> None:
    root = lay(tmp_path, {"proc/self/cgroup": "0::/\n"})
    (root / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    notes = probe.host(root).notes
    assert any(note.startswith("/sys/fs/cgroup/cpu.max could not be read") for note in notes)


lists = st.one_of(
    st.text(max_size=30),
    st.text("0123456789,-²x\n\0", max_size=30),
    st.sampled_from(["9" * 400, "9" * 5000, f"0-{10**12}", "max 1", f"{'9' * 400} 1", "1_0 1"]),
)


@given(lists, lists)
def test_nothing_that_threads_parses_raises(first: str, second: str) -> None:
    threads.parse_quota(f"{first} {second}")
    threads.chosen_by_user(first)
    assert len(threads.parse_cpu_list(first)) <= threads.MOST_CPUS
    threads.parse_cpuinfo_cores(f"processor : {first}\ncore id : 1\n", frozenset({0, 1}))
    mounts = mounted(first, second) + mounted("/", "/sys/fs/cgroup", "cgroup", second)
    for folder, version in threads.cgroup_folders(f"0::{first}\n1:cpu:{second}", mounts):
        assert folder.startswith("sys/fs/cgroup")
        assert ".." not in folder.split("/")
        assert version in {1, 2}
