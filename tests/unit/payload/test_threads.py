from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.payload.machine import threads
from envbuilder.payload.machine.threads import CpuFacts, decide, fetch
from tests.support.repositories import lay


def siblings(*groups: str) -> dict[str, str]:
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": group + "\n"
        for group in groups
        for cpu in threads.parse_cpu_list(group)
    }


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CpuFacts(8, None, None), 8),
        (CpuFacts(8, None, 4), 4),
        (CpuFacts(8, 2.0, 4), 2),
        (CpuFacts(8, 2.9, 4), 2),
        (CpuFacts(8, 0.5, 4), 1),
        (CpuFacts(1, 16.0, 4), 1),
        (CpuFacts(0, None, None), 1),
    ],
)
def test_the_smallest_limit_decides(facts: CpuFacts, expected: int) -> None:
    assert decide(facts) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("4", 4),
        (" 4 ", 4),
        ("4,2", 4),
        ("", None),
        (None, None),
        ("0", None),
        ("-2", None),
        ("many", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_omp_num_threads(value: str | None, expected: int | None) -> None:
    assert threads.chosen_by_user(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("", None),
        ("1 2 3", None),
        ("x y", None),
        ("-1 100000", None),
        ("100000 0", None),
        ("9" * 400 + " 1", None),
        ("9" * 5000 + " 1", None),
        ("1 " + "9" * 400, None),
    ],
)
def test_a_quota(text: str, expected: float | None) -> None:
    assert threads.parse_quota(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("0-", set()),
        ("a-b", set()),
        ("0-99999999999", set()),
    ],
)
def test_cpu_list(text: str, expected: set[int]) -> None:
    assert threads.parse_cpu_list(text) == expected


def test_cgroup_lines_that_limit_the_cpu() -> None:
    text = "12:pids:/a\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/b\n0::/c\ngarbage\n"
    assert threads.parse_cgroups(text) == [("cpu,cpuacct", "/docker/x"), ("", "/c")]


def version_1(mount: str) -> dict[str, str]:
    return {
        # A container without a cgroup namespace sees the host's path here.
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
        f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "250000\n",
        f"sys/fs/cgroup/{mount}/cpu.cfs_period_us": "100000\n",
    }


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        # Version 2, inside a container.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        # The tightest of all parents counts.
        (
            {
                "proc/self/cgroup": "0::/slice/job\n",
                "sys/fs/cgroup/slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
            },
            3.0,
        ),
        # A path above the namespace is looked up at its root.
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        (version_1("cpu,cpuacct"), 2.5),
        (version_1("cpu"), 2.5),
    ],
)
def test_the_quota(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    assert threads.read_quota(lay(tmp_path, files)) == quota


def test_smt_siblings_are_one_core_and_only_those_of_allowed_cpus_count(tmp_path: Path) -> None:
    lay(tmp_path, siblings("0,4", "1,5", "2,6", "3,7"))
    assert threads.read_physical(tmp_path, frozenset(range(8))) == 4
    assert threads.read_physical(tmp_path, frozenset({0, 4, 1})) == 2


def test_cores_from_cpuinfo_where_there_is_no_topology(tmp_path: Path) -> None:
    cpus = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 0)]
    text = "\n\n".join(
        f"processor\t: {cpu}\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags : fpu"
        for cpu, socket, core in cpus
    )
    lay(tmp_path, {"proc/cpuinfo": text + "\n"})
    assert threads.read_physical(tmp_path, frozenset(range(5))) == 4
    assert threads.read_physical(tmp_path, frozenset({0, 4})) == 1


def test_cores_are_unknown_not_zero_where_nothing_says(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/cpuinfo": "processor : 0\nBogoMIPS : 50\n"})
    assert fetch(tmp_path, frozenset({0, 1})) == CpuFacts(2, None, None)


def test_a_machine_without_affinity_counts_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 10)
    assert threads.allowed_cpus() == frozenset(range(10))
