"""The doctor: what reduces performance, each rule at its limit and past it, and surroundings."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from envbuilder import cli
from envbuilder.doctor import diagnosis, surroundings
from envbuilder.doctor.problem import Problem
from envbuilder.doctor.surroundings import Around, Case
from envbuilder.host import probe
from envbuilder.host.model import Containers, Engine, Host, Memory
from envbuilder.packages.store import Disk
from tests.support.broken_hosts import (
    ADA,
    ARC,
    BY_NAME,
    DOCKER,
    LINUX,
    SEEN,
    changed,
    codes,
    only,
    with_gpu,
)

BUILDS = {"python", "compiler", "folder", "shared-store", "disk", "engine", "gpu-runtime", "cdi"}
"""Codes of problems that keep builds from working."""


def test_a_check_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def haunted(case: Case) -> list[Problem]:
        text = f"{case.host.os_version} is haunted"
        return [Problem(severity="blocks", code="ghost", text=text, fix="Call somebody.")]

    monkeypatch.setattr(diagnosis, "CHECKS", [*diagnosis.CHECKS, haunted])
    monkeypatch.setattr(probe, "host", lambda *_: changed(LINUX, os_version="Debian"))
    monkeypatch.setattr(surroundings, "look", lambda *_: SEEN)
    result = CliRunner().invoke(cli.cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 3
    assert result.stdout.startswith("blocking: Debian is haunted\n    Call somebody.\n")


# What reduces performance: each rule just at its limit and just past it.


def slowing(here: Host, seen: Around = SEEN) -> list[Problem]:
    found = diagnosis.diagnose(Case(host=here, around=seen))
    return [p for p in found if p.severity == "slows"]


def slow(here: Host, variables: dict[str, str] | None = None) -> list[str]:
    return codes(slowing(here, changed(SEEN, variables=variables or {})))


@pytest.mark.parametrize(
    ("quota", "threads", "told"),
    [
        (15.9, None, True),
        (16.0, None, False),
        (2.5, "2", False),
        (2.5, "3", True),
        (2.5, "many", True),
        (None, None, False),
    ],
)
def test_quota_without_a_thread_limit(quota: float | None, threads: str | None, told: bool) -> None:
    here = changed(LINUX, cpu=changed(LINUX.cpu, quota=quota))
    variables = {} if threads is None else {"OMP_NUM_THREADS": threads}
    assert slow(here, variables) == ["quota"] * told
    unknown = changed(here, cpu=changed(here.cpu, affinity=None))
    assert slow(unknown, variables) == []


@pytest.mark.parametrize(
    ("size", "told"),
    [(64 << 20, True), ((64 << 20) + 1, False), (0, True), (None, False)],
)
def test_small_shared_memory(size: int | None, told: bool) -> None:
    assert slow(changed(LINUX, memory=Memory(shm_bytes=size))) == ["shared-memory"] * told


def test_shared_memory_is_mended_from_where_that_is_possible() -> None:
    here = changed(LINUX, memory=Memory(shm_bytes=64 << 20))
    (found,) = slowing(here)
    assert "`sudo mount -o remount,size=1g /dev/shm`" in found.fix
    (found,) = slowing(changed(here, container=True))
    assert "--shm-size" in found.fix
    assert "mount" not in found.fix


# Around the host.


def around_problems(seen: Around, here: Host = LINUX, asked: str | None = None) -> list[Problem]:
    wanted = BY_NAME[asked] if asked else None
    found = diagnosis.diagnose(Case(host=here, around=seen, requested=wanted))
    return [p for p in found if p.code in BUILDS]


def test_no_interpreter_blocks_only_where_no_image_could_be_built() -> None:
    seen = changed(
        SEEN, python="no Python 3.11", python_fix="Install it.", backends=("docker", "venv")
    )
    assert only(around_problems(seen), "python").severity == "limits"
    without = changed(LINUX, containers=Containers())
    assert only(around_problems(seen, without), "python").severity == "blocks"
    native = changed(seen, backends=("venv",))
    assert only(around_problems(native), "python").severity == "blocks"
    unable = changed(seen, engine="docker is too old")
    assert only(around_problems(unable), "python").severity == "blocks"


@pytest.mark.parametrize(
    ("free", "needed", "told"),
    [
        (999, 1000, True),
        (1000, 1000, False),
        (10**9, 10**6, False),
        ((2 << 30) - 1, 0, True),
        (2 << 30, 0, False),
    ],
)
def test_room_on_disks(free: int, needed: int, told: bool) -> None:
    seen = changed(SEEN, rooms=(Disk(folder="/data", free=free, needed=needed),))
    assert codes(around_problems(seen)) == ["disk"] * told


@pytest.mark.parametrize(
    ("changes", "severity", "code", "text", "fix"),
    [
        (
            {"closed": ("/var/cache/envbuilder",)},
            "blocks",
            "folder",
            "/var/cache/envbuilder cannot be written to",
            "_CACHE_DIR",
        ),
        (
            {"shared_store": "/srv/store is not the wheel"},
            "limits",
            "shared-store",
            "/srv/store is not the wheel",
            "ENVBUILDER_SHARED_STORE=",
        ),
        (
            {"engine": "buildx is missing", "engine_fix": "Install docker-buildx."},
            "limits",
            "engine",
            "buildx is missing",
            "Install docker-buildx.",
        ),
    ],
)
def test_what_was_seen_around_is_named(
    changes: dict[str, Any], severity: str, code: str, text: str, fix: str
) -> None:
    (found,) = around_problems(changed(SEEN, **changes))
    assert (found.severity, found.code, found.text) == (severity, code, text)
    assert fix in found.fix


def test_a_compiler_is_missed_only_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiles = changed(BY_NAME["zendnn"], system_packages=("g++",))
    monkeypatch.setitem(BY_NAME, "zendnn", compiles)
    assert codes(around_problems(SEEN, asked="zendnn")) == ["compiler"]
    assert around_problems(SEEN, asked="cpu") == []
    assert around_problems(Around(), asked="zendnn") == []  # nobody looked
    has = changed(SEEN, has={"clang++"}.__contains__)
    assert around_problems(has, asked="zendnn") == []


def engine(state: Any, detail: str, socket: str = "/run/docker.sock") -> Engine:
    return Engine(name="unknown", socket=socket, state=state, detail=detail)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (engine("present", "This user may not open it: join the group."), "usermod -aG docker"),
        (
            engine("present", "Nothing listens on it: the engine is not running."),
            "systemctl start docker",
        ),
        (engine("unknown", "No usable answer: timed out."), "`docker version`"),
        (
            engine("present", "This user may not open it.", "/run/podman/podman.sock"),
            "systemctl --user start podman.socket",
        ),
    ],
)
def test_an_engine_that_does_not_answer(found: Engine, said: str) -> None:
    here = changed(LINUX, containers=Containers(engines=(found,)))
    problem = only(around_problems(SEEN, here), "engine")
    assert said in problem.fix
    assert "--backend venv" in problem.fix
    beside = changed(here, containers=Containers(engines=(*DOCKER.engines, found)))
    assert around_problems(SEEN, beside) == []


def test_containers_that_cannot_reach_the_gpu() -> None:
    assert around_problems(SEEN, with_gpu(ADA)) == []
    here = with_gpu(ADA, containers=changed(DOCKER, runtimes=()))
    assert codes(around_problems(SEEN, here)) == ["gpu-runtime"]
    assert around_problems(SEEN, changed(here, wsl=True)) == []
    by_cdi = changed(SEEN, devices=frozenset({"nvidia.com/gpu=0"}))
    assert around_problems(by_cdi, here) == []
    assert around_problems(Around(), here) == []
    assert around_problems(SEEN, changed(here, gpus=(ARC,))) == []


def test_podman_needs_a_specification_and_what_makes_it() -> None:
    podman = Engine(name="podman", socket="/run/podman.sock", version="5", state="usable")
    here = with_gpu(ADA, containers=Containers(engines=(podman,)))
    command = "Run `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`."
    assert only(around_problems(SEEN, here), "cdi").fix == command
    bare = only(around_problems(changed(SEEN, has=set().__contains__), here), "cdi")
    assert bare.fix == f"Install nvidia-container-toolkit (NVIDIA's repository). {command}"


def test_who_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    own = pwd.getpwuid(0)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: own)
    monkeypatch.setattr(
        pwd, "getpwnam", lambda name: pwd.struct_passwd((name, "", 1000, 1000, "", "", ""))
    )
    monkeypatch.setenv("SUDO_USER", "ada")
    assert surroundings._user(root=True) == "ada"
    # `sudo -u other`: who runs this is not who called sudo.
    assert surroundings._user(root=False) == own.pw_name
