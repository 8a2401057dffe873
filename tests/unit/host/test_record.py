"""A recording names nobody, and says what the machine says."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.host import memory, probe, record
from envbuilder.host.record import Scrubber
from envbuilder.host.snapshot import Snapshot
from tests.support import host_trees

IDENTITY = "01234567-89ab-cdef-0123-456789abcdef"
DMI = "sys/firmware/dmi/tables/DMI"


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber(("somebodys-box.example.org", "somebodys-box", "alice"), "/home/alice")


@pytest.mark.parametrize(
    ("text", "public"),
    [
        (
            "Linux version 6.12 (alice@somebodys-box) (gcc 14) #1 SMP",
            "Linux version 6.12 (build@host) (gcc 14) #1 SMP",
        ),
        (
            "video:x:44:alice\nrender:x:992:alice,else\ndocker:x:1:\n",
            "video:x:44:\nrender:x:992:\ndocker:x:1:\n",
        ),
        (f"/docker/{'0f' * 32}/x", "/docker/000000000001/x"),
        (f"name: GPU-{IDENTITY}", "name: GPU-00000000-0000-0000-0000-000000000001"),
        (
            f"/kubepods-pod{IDENTITY.replace('-', '_')}.slice",
            "/kubepods-pod00000000-0000-0000-0000-000000000001.slice",
        ),
        ("ether 52:54:00:AB:cd:ef mtu", "ether 00:00:00:00:00:00 mtu"),
        ('{"home/alice/.docker/run/docker.sock":1}', '{"home/user/.docker/run/docker.sock":1}'),
        ("0::/lxc/somebodys-box/x", "0::/lxc/name/x"),
        ("machine-alice.scope", "machine-name.scope"),
        # What looks like it and is not.
        ("0000:18:00.0 malice 10de:2330 avx512_bf16", "0000:18:00.0 malice 10de:2330 avx512_bf16"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_what_identifies_is_replaced(scrubber: Scrubber, text: str, public: str) -> None:
    assert scrubber.public(text) == public


def test_two_gpus_stay_two(scrubber: Scrubber) -> None:
    other = IDENTITY.replace("0", "f")
    text = scrubber.public(f"GPU-{IDENTITY} GPU-{other} GPU-{IDENTITY}")
    first, second, again = text.split()
    assert first == again != second


@given(st.from_regex(record._UUID, fullmatch=True), st.text(alphabet="ghij :/\n", max_size=9))
def test_no_uuid_stays_wherever_it_stands(identity: str, around: str) -> None:
    found = Scrubber().public(f"{around}{identity}{around}")
    assert identity not in found or set(identity) <= set("0-_1")


def test_only_the_lines_that_detection_reads_are_kept() -> None:
    status = record.reduced("proc/self/status", "Name:\tsomebody\nCpus_allowed_list:\t0-1\n")
    assert status == "Cpus_allowed_list:\t0-1\n"
    identity = f"GPU UUID: \t GPU-{IDENTITY}\n"
    gpu = f"Model: \t NVIDIA H100\n{identity}Bus Location: \t 0000:18:00.0\nDevice Minor: \t 0\n"
    information = record.reduced("proc/driver/nvidia/gpus/0000:18:00.0/information", gpu)
    assert information == gpu.replace(identity, "")
    cpuinfo = record.reduced("proc/cpuinfo", "processor\t: 0\nSerial\t\t: 00000000deadbeef\n")
    assert cpuinfo == "processor\t: 0\n"


def structure(kind: int, data: bytes, *strings: bytes) -> bytes:
    return bytes([kind, len(data) + 4, 0, 0]) + data + b"\0".join(strings or (b"",)) + b"\0\0"


def test_the_firmware_s_table_keeps_no_uuid_and_no_serial_number() -> None:
    table = base64.b64decode(host_trees.load("rtx4090-throttled")["binary"][DMI])
    identity = bytes(range(1, 17))
    # A system (type 1): maker, product, version, serial number, UUID, how it was woken.
    system_table = structure(1, bytes([1, 2, 3, 4]) + identity + b"\6", b"Maker", b"SN-1234")
    public = record.nameless(system_table + table)
    assert identity not in public
    assert b"SN-1234" not in public
    assert memory.parse(public) == memory.parse(table)


def test_strings_of_the_firmware_are_gone_but_for_the_names_of_slots() -> None:
    table = base64.b64decode(host_trees.load("rtx4090-throttled")["binary"][DMI])
    named = table.replace(b"x\0\0", b"somebody's\0machine\0\0")
    assert b"somebody" in named
    public = record.nameless(named)
    assert not re.search(rb"somebody|machine", public)
    assert memory.parse(public) == memory.parse(table)


def taken(**changes: Any) -> Snapshot:
    return Snapshot(live=True, system="linux", machine="x86_64", **changes)


def test_a_plugin_in_the_user_s_home_is_found_in_the_recording(
    scrubber: Scrubber, tmp_path: Path
) -> None:
    answer = json.dumps({"run/docker.sock": {"Version": "28.1"}})
    read = taken(
        files={
            "engines.json": answer,
            "home/alice/.docker/cli-plugins/docker-buildx": "",
            "proc/version": "Linux version 6.12 (alice@somebodys-box)",
        },
        folders={"dev": ()},
    )
    data = record.recording(read, scrubber)
    assert "alice" not in json.dumps(data)
    found = probe.host(record.plant(tmp_path, data))
    assert found.containers.engines == probe.decide(read, {}).containers.engines
    assert found.containers.buildx is True


@pytest.mark.parametrize("name", ["h100-eight-nvlink", "docker-v2-quota", "rtx4090-throttled"])
def test_a_recorded_host_recorded_again_is_the_same_host(name: str, tmp_path: Path) -> None:
    """Read a tree, scrub it, plant it elsewhere: the decisions are those of the first."""
    first = host_trees.plant(tmp_path / "first", host_trees.load(name))
    data = record.recording(probe.fetch(first), Scrubber())
    second = record.plant(tmp_path / "second", data)
    assert probe.host(second) == probe.host(first)


def test_what_is_there_and_holds_something_is_a_folder(tmp_path: Path) -> None:
    read = taken(files={"run/docker": "", "run/docker/file": "text"}, nodes={"dev/nvidia0": True})
    root = record.plant(tmp_path, record.recording(read, Scrubber()))
    assert (root / "run/docker/file").read_text() == "text"


def test_a_link_out_of_the_tree_makes_no_folder(tmp_path: Path) -> None:
    data = {"links": {"sys/a": str(tmp_path / "outside")}, "folders": []}
    record.plant(tmp_path / "root", data)
    assert not (tmp_path / "outside").exists()
