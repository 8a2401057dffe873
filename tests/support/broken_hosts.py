"""Hosts with something wrong, as data, for the tests of the doctor."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import msgspec

from envbuilder.doctor import diagnosis as doctor
from envbuilder.doctor.problem import Problem
from envbuilder.doctor.surroundings import Around, Case
from envbuilder.host import model as host
from envbuilder.host.model import Containers, Cpu, Engine, Gpu, Host, Memory
from envbuilder.profiles import profile as reading
from tests.support.host_trees import PROFILES

GIB = 2**30
OBSTACLES = typing.get_args(host.Obstacle)
BY_NAME = {p.name: p for p in PROFILES}
DOCKER = Containers(
    engines=(Engine(name="docker", socket="/run/docker.sock", version="28", state="usable"),),
    runtimes=("nvidia-container-runtime",),
)
LINUX = Host(
    os="linux",
    os_version="Ubuntu 24.04.3 LTS",
    kernel="6.14.0",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.39",
    cpu=Cpu(flags=("avx2",), affinity=16, physical=8, logical=16, threads=8),
    memory=Memory(total_bytes=64 * GIB, shm_bytes=32 * GIB),
    containers=DOCKER,
    level_zero=True,
)
ADA = Gpu(
    vendor="nvidia",
    name="NVIDIA GeForce RTX 4090",
    state="usable",
    bus="0000:01:00.0",
    kernel_driver="nvidia",
    driver_version="580.95.05",
    sm="8.9",
    memory_kind="dedicated",
    memory_bytes=24 * GIB,
)
ARC = Gpu(
    vendor="intel",
    name="Intel Arc B580 (E20B)",
    state="usable",
    bus="0000:02:00.0",
    device_id="e20b",
    family="Arc B (BMG)",
    support="validated",
    kernel_driver="xe",
    render_node="/dev/dri/renderD128",
    render_node_readable=True,
    render_node_group="render",
)
RAPHAEL = Gpu(
    vendor="amd",
    name="AMD Raphael",
    state="usable",
    bus="0000:13:00.0",
    device_id="164e",
    family="gfx1036",
    kernel_driver="amdgpu",
    render_node="/dev/dri/renderD129",
    render_node_readable=True,
)
CLOSED = msgspec.structs.replace(
    ARC,
    state="present",
    obstacle="node-closed",
    detail="/dev/dri/renderD128 is not readable.",
    render_node_readable=False,
)
SEEN = Around(looked=True, user="ada", has={"nvidia-ctk"}.__contains__)


def changed(value: Any, **changes: object) -> Any:
    return msgspec.structs.replace(value, **changes)


def with_gpu(*gpus: Gpu, **changes: object) -> Host:
    return typing.cast("Host", changed(LINUX, gpus=gpus, **changes))


def broken(gpu: Gpu, obstacle: str, **changes: object) -> Gpu:
    return typing.cast(
        "Gpu", changed(gpu, state="present", obstacle=obstacle, detail="It is so.", **changes)
    )


def diagnose(
    here: Host,
    seen: Around = SEEN,
    asked: str | None = None,
    candidates: Sequence[reading.Profile] = PROFILES,
) -> tuple[Problem, ...]:
    wanted = next((p for p in candidates if p.name == asked), None)
    found = doctor.diagnose(Case(host=here, around=seen, candidates=candidates, requested=wanted))
    return tuple(p for p in found if p.code != "lock")


def codes(found: Sequence[Problem]) -> list[str]:
    return [p.code for p in found]


def only(found: Sequence[Problem], code: str) -> Problem:
    assert codes(found).count(code) == 1, codes(found)
    return next(p for p in found if p.code == code)
