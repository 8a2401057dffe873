"""Limits that leave the machine usable without ending honest work."""

from __future__ import annotations

import csv

import pytest

from envbuilder.containers.engine.container import (
    Container,
    Devices,
    Limits,
    Port,
    Volume,
    bound,
    limits,
    run_flags,
)

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "cpus", "expected"),
    [
        (256 * MIB, 1, Limits(memory=128 * MIB, processes=4096)),
        (1 * GIB, 1, Limits(memory=768 * MIB, processes=4096)),
        (64 * GIB, 32, Limits(memory=60 * GIB, processes=4096)),
        (2048 * GIB, 256, Limits(memory=2044 * GIB, processes=32768)),
        (0, 8, Limits(memory=0, processes=4096)),
        (8 * GIB, 0, Limits(memory=7680 * MIB, processes=0)),
    ],
)
def test_limits_leave_the_machine_a_reserve(memory: int, cpus: int, expected: Limits) -> None:
    assert limits(memory, cpus) == expected


CONFINED = (
    "--read-only",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--ipc",
    "private",
    "--ulimit",
    "core=0:0",
)
LIMITS = Limits(memory=6 << 30, processes=4096)


def flags(container: Container, *, keep_groups: bool = False) -> tuple[str, ...]:
    return run_flags(
        container,
        user=("--user", container.user),
        home_options="mode=0700",
        gpus=(),
        keep_groups=keep_groups,
    )


def test_a_container_has_no_rights_and_no_network() -> None:
    bare = Container(image="x", user="1000:1000", limits=Limits())
    assert flags(bare) == ("--network", "none", *CONFINED, "--user", "1000:1000")


def test_a_verifications_container() -> None:
    made = Container(
        image="x",
        user="1000:1000",
        limits=LIMITS,
        entrypoint=("python", "-I"),
        platform="linux/arm64",
        variables={"A": "1"},
        home="/home/env",
        mounts={"/d": "/data"},
    )
    assert flags(made) == (
        "--platform",
        "linux/arm64",
        "--network",
        "none",
        *CONFINED,
        "--memory",
        "6442450944",
        "--memory-swap",
        "-1",
        "--pids-limit",
        "4096",
        "--security-opt",
        "label=disable",
        "--user",
        "1000:1000",
        "--tmpfs",
        "/tmp:exec",
        "--tmpfs",
        "/home/env:mode=0700",
        "--workdir",
        "/home/env",
        "--mount",
        "type=bind,source=/d,target=/data,readonly",
        "--env=A=1",
        "--entrypoint",
        "python",
    )
    assert made.words == ("x", "-I")


def test_a_users_command_may_write_its_project_and_scratch_files() -> None:
    devices = Devices(
        nodes=("/dev/dri",), groups=(992, 44), volumes=("/dev/dri/by-path",), shm_size="1g"
    )
    made = Container(
        image="x",
        user="7:8",
        limits=LIMITS,
        network=True,
        project=("/p", "/work"),
        groups=(500, 44),
        devices=devices,
    )
    assert flags(made) == (
        *CONFINED,
        "--memory",
        "6442450944",
        "--memory-swap",
        "-1",
        "--pids-limit",
        "4096",
        "--security-opt",
        "label=disable",
        "--user",
        "7:8",
        "--mount",
        "type=bind,source=/p,target=/work",
        "--volume",
        "/tmp",
        "--workdir",
        "/work",
        "--mount",
        "type=bind,source=/dev/dri/by-path,target=/dev/dri/by-path,readonly",
        "--shm-size",
        "1g",
        "--device",
        "/dev/dri",
        "--group-add",
        "500",
        "--group-add",
        "44",
        "--group-add",
        "992",
    )
    kept = flags(made, keep_groups=True)
    assert kept[-2:] == ("--group-add", "keep-groups")
    assert kept.count("--group-add") == 1


def test_a_users_ports_volumes_and_variables() -> None:
    given = Container(
        image="x",
        user="7:8",
        limits=Limits(),
        network=True,
        variables={"A": "1"},
        passed=("TOKEN",),
        ports=(Port(outside=8080, inside=80), Port(host="::1", outside=1, inside=2)),
        volumes=(
            Volume(source="/d,e", target="/data", writable=False),
            Volume(source="models", target="/models"),
        ),
    )
    assert flags(given) == (
        *CONFINED,
        "--security-opt",
        "label=disable",
        "--user",
        "7:8",
        "--mount",
        'type=bind,"source=/d,e",target=/data,readonly',
        "--mount",
        "type=volume,source=models,target=/models",
        "--publish=127.0.0.1:8080:80",
        "--publish=[::1]:1:2",
        "--env=A=1",
        "--env=TOKEN",
    )


@pytest.mark.parametrize(
    "folder", ["/a b", "/a:b", "/a,b", '/a"b', '/a,"b",readonly=', "/a\nb", "/ä'$"]
)
def test_a_folder_of_any_name_is_one_field_of_the_mount(folder: str) -> None:
    """Both clients read the value as a line of CSV."""
    (fields,) = csv.reader([bound(folder, "/work", writable=True)], strict=True)
    assert fields == ["type=bind", f"source={folder}", "target=/work"]
