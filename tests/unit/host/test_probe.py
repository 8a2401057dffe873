from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core import process
from envbuilder.core.errors import InvalidError
from envbuilder.host import model as host, probe, snapshot, tables
from envbuilder.host.model import Host
from tests.support import host_trees

PCI = "sys/bus/pci/devices"
GIB = 2**30


@pytest.mark.parametrize("name", host_trees.NAMES)
def test_recorded_hosts(name: str, tmp_path: Path) -> None:
    assert host_trees.probed(tmp_path, name) == host_trees.recorded(name)


@pytest.mark.parametrize("name", host_trees.NAMES)
def test_what_detect_writes_can_be_read_back(name: str, tmp_path: Path) -> None:
    found = host_trees.recorded(name)
    (tmp_path / "host.json").write_bytes(msgspec.json.encode(found))
    assert host.read(tmp_path / "host.json") == found
    (tmp_path / "detect.json").write_bytes(msgspec.json.encode({"schema": 1, "host": found}))
    assert host.read(tmp_path / "detect.json") == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"os": "linux", "gpuz": []}', "gpuz: unknown key"),
        ('{"os": "beos"}', "os"),
        ("[]", "expected host data"),
        ("{", "JSON"),
    ],
)
def test_a_damaged_host_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(content)
    with pytest.raises(InvalidError, match=message):
        host.read(tmp_path / "host.json")


def test_this_machine_can_be_probed_without_a_process() -> None:
    # The fixture `no_outside` refuses processes.
    found = probe.host()
    assert found.os in {"linux", "macos", "other"}
    assert msgspec.json.decode(msgspec.json.encode(found), type=Host) == found


def test_an_empty_tree_says_that_nothing_could_be_read(tmp_path: Path) -> None:
    found = probe.host(tmp_path)
    assert found.os == "other"
    assert "no proc/" in found.notes[0]


@pytest.mark.parametrize("cut", range(0, 3000, 131))
def test_a_cut_off_cpuinfo_never_denies_flags(cut: int, tmp_path: Path) -> None:
    root = host_trees.plant(tmp_path, host_trees.load("epyc-vm"))
    text_ = (root / "proc/cpuinfo").read_text()
    (root / "proc/cpuinfo").write_text(text_[: cut % len(text_)])
    flags = probe.host(root).cpu.flags
    assert flags is None or "avx512_bf16" in flags


def test_all_drivers_of_a_windows_are_seen(tmp_path: Path) -> None:
    """AMD's packages are called u0…: at the end of more than a thousand."""
    root = host_trees.plant(tmp_path, host_trees.load("wsl2-amd"))
    for number in range(2000):
        (root / f"usr/lib/wsl/drivers/machine.inf_amd64_{number:04}").mkdir()
    assert [gpu.vendor for gpu in probe.host(root).gpus] == ["amd"]


def test_a_pipe_or_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    root = host_trees.plant(tmp_path, host_trees.load("zen3"))
    (root / "proc/cpuinfo").unlink()
    os.mkfifo(root / "proc/cpuinfo")
    (root / "proc/meminfo").unlink()
    (root / "proc/meminfo").mkdir()
    found = probe.host(root)
    assert found.cpu.flags is None
    assert found.memory.total_bytes is None
    assert any("/proc/cpuinfo could not be read (not a file)" in note for note in found.notes)


def test_a_quota_limits_threads(tmp_path: Path) -> None:
    found = host_trees.probed(tmp_path, "zen3").cpu
    assert (found.quota, found.affinity, found.physical, found.threads) == (1.5, 2, 2, 1)


def test_hidden_gpus_are_not_usable(tmp_path: Path) -> None:
    root = host_trees.plant(tmp_path, host_trees.load("rtx4090"))
    found = probe.host(root, {"CUDA_VISIBLE_DEVICES": ""})
    assert found.gpus[0].state == "present"
    assert "CUDA_VISIBLE_DEVICES" in found.gpus[0].detail
    some = probe.host(root, {"CUDA_VISIBLE_DEVICES": "0"})
    assert some.gpus[0].state == "usable"
    assert "CUDA_VISIBLE_DEVICES=0" in some.notes[0]


def test_a_failing_nvml_is_unknown_not_absent(tmp_path: Path) -> None:
    data = host_trees.load("rtx4090")
    data["files"]["nvml.json"] = '{"error": "Driver/library version mismatch"}'
    gpu = probe.host(host_trees.plant(tmp_path, data)).gpus[0]
    assert (gpu.state, gpu.sm) == ("unknown", "8.9")
    assert "version mismatch" in gpu.detail


def test_a_gpu_that_the_driver_does_not_give_us_is_present(tmp_path: Path) -> None:
    data = host_trees.load("rtx4090")
    for name, value in (("class", "0x030000\n"), ("vendor", "0x10de\n"), ("device", "0x2684\n")):
        data["files"][f"{PCI}/0000:41:00.0/{name}"] = value
    data["links"][f"{PCI}/0000:41:00.0/driver"] = "../../drivers/nvidia"
    gpus = probe.host(host_trees.plant(tmp_path, data)).gpus
    assert [gpu.state for gpu in gpus] == ["usable", "present"]


def test_arm_boards_without_pci_have_no_unknown_gpu(tmp_path: Path) -> None:
    data = host_trees.load("graviton3")
    data["files"] = {p: v for p, v in data["files"].items() if not p.startswith(PCI)}
    data["files"]["sys/bus/platform/uevent"] = ""
    assert probe.host(host_trees.plant(tmp_path, data)).gpus == ()


def mac(**known: object) -> Host:
    text = "".join(f"{key.replace('__', '.')}: {value}\n" for key, value in known.items())
    files = {"sysctl.txt": text}
    taken = snapshot.Snapshot(live=True, system="macos", files=files)
    return probe.decide(taken, {})


M3_MAX: dict[str, object] = {
    "hw__optional__arm64": 1,
    "hw__memsize": 64 * GIB,
    "machdep__cpu__brand_string": "Apple M3 Max",
}


@pytest.mark.parametrize(
    ("gib", "limit", "usable"),
    [
        (16, 0, 16 * GIB * 2 // 3),
        (36, 0, 27 * GIB),
        (128, 0, 96 * GIB),
        (64, 57344, 56 * GIB),
        (64, 999999, 64 * GIB),
        (64, "many", 48 * GIB),
    ],
)
def test_what_metal_gives_out(gib: int, limit: object, usable: int) -> None:
    found = mac(**M3_MAX | {"hw__memsize": gib * GIB, "iogpu__wired_limit_mb": limit})
    gpu = found.gpus[0]
    assert (gpu.memory_kind, gpu.memory_bytes) == ("shared", gib * GIB)
    assert gpu.usable_bytes == usable
    assert gpu.bandwidth is None
    assert found.memory.bandwidth == 300 * 10**9


def test_a_mac_that_says_little() -> None:
    virtual = mac(**M3_MAX, sysctl__proc_translated=0, kern__hv_vmm_present=1)
    assert (virtual.gpus[0].state, virtual.gpus[0].usable_bytes) == ("unknown", None)
    assert virtual.memory.bandwidth is None
    unknown = mac(hw__optional__arm64=1, hw__memsize="lots", machdep__cpu__brand_string="Apple M99")
    assert (unknown.gpus[0].memory_bytes, unknown.gpus[0].usable_bytes) == (None, None)
    assert unknown.memory.bandwidth is None
    assert mac(**M3_MAX | {"hw__optional__arm64": 0}).gpus == ()
    silent = mac()
    assert (silent.machine, silent.platform, silent.rosetta) == ("unknown", None, None)
    assert "this Mac is unknown" in silent.notes[0]


def test_sysctl_is_the_only_process_and_only_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(argv: list[str], **_: object) -> process.Completed:
        asked.append(argv)
        out = "hw.optional.arm64: 1\nsysctl.proc_translated: 0\nkern.osproductversion: 15.1\n"
        return process.Completed(argv=tuple(argv), returncode=0, stdout=out, stderr="", seconds=0)

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr("sys.platform", "darwin")
    found = probe.host()
    assert (found.os, found.os_version, found.platform) == ("macos", "15.1", "macos/arm64")
    assert len(asked) == 1


def test_every_row_of_every_table_says_where_it_was_read() -> None:
    for name in ("arm-cpus.csv", "intel-gpus.csv", "nvidia-sm.csv", "x86-cpus.csv"):
        rows = tables._rows(name)
        assert rows
        for row in rows:
            assert row["source"]
            assert None not in row.values()
        assert all(None not in row for row in rows)


@pytest.mark.parametrize(
    ("value", "count"),
    [("0-1\n", 2), ("0,2-3", 3), ("", None), ("3-1", None), ("0-99999999", None), ("²", None)],
)
def test_cpu_lists(value: str, count: int | None) -> None:
    found = snapshot.cpu_list(value)
    assert (len(found) if found is not None else None) == count


@given(st.text(max_size=40))
def test_text_is_safe_with_anything(value: str) -> None:
    snapshot.integer(value)
    snapshot.integer(value, 16)
    snapshot.version(value)
    snapshot.fields(value)
    cleaned = snapshot.clean(value)
    assert cleaned is None or cleaned.isprintable()


def test_no_process_is_started_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError(f"a process was started: {arguments}")

    for module, name in (
        *((subprocess, name) for name in ("Popen", "run", "check_output")),
        *((os, name) for name in ("fork", "posix_spawn", "posix_spawnp", "system", "execve")),
    ):
        monkeypatch.setattr(module, name, refuse)
    assert probe.host().os == "linux"
