"""Plans are pure and complete; device flags follow the profile and the host's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder import engine, lockfile, plan, process, profiles, resources
from envbuilder.backends import docker, venv
from envbuilder.errors import InvalidError, ToolError
from envbuilder.host import Host
from envbuilder.options import Request
from envbuilder.pythons import Interpreter

if TYPE_CHECKING:
    from envbuilder.settings import Settings

FOLDERS = (resources.profiles_dir(),)
STORE = engine.Engine(builder="default", output="type=docker")
PYTHON = Interpreter(
    path=Path("/usr/bin/python3.11"),
    version="3.11.9",
    implementation="cpython",
    machine="x86_64",
    base_prefix=Path("/usr"),
    has_venv=True,
)


def shipped(name: str) -> tuple[profiles.Profile, lockfile.Lock]:
    return profiles.load(name, FOLDERS), lockfile.load(FOLDERS[0] / "locks" / f"{name}.json")


def venv_plan(name: str, found: Settings, interpreter: Interpreter = PYTHON) -> plan.Plan:
    profile, lock = shipped(name)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    return venv.plan(profile, lock, target, interpreter, found)


def docker_plan(name: str, found: Settings, base: str = "base:1", **options: Any) -> plan.Plan:
    profile, lock = shipped(name)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    request = Request(profile=name, **options)
    return docker.plan(profile, lock, target, (base, "sha256:1"), STORE, request, found)


def commands(made: plan.Plan) -> list[tuple[str, ...]]:
    return [s.argv for s in made.steps if isinstance(s, plan.Run)]


@pytest.mark.parametrize("make", [venv_plan, docker_plan])
def test_a_plan_is_the_same_every_time_and_touches_nothing(make: Any, found: Settings) -> None:
    first, second = make("cpu", found), make("cpu", found)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert not found.cache_dir.exists()
    assert not found.data_dir.exists()


def test_a_venv_is_installed_from_the_store_without_network(found: Settings) -> None:
    made = venv_plan("cpu", found)
    install = next(c for c in commands(made) if "install" in c)
    assert {"--offline", "--no-index", "--require-hashes", "--no-deps"} <= set(install)
    linked = next(s for s in made.steps if isinstance(s, plan.LinkFiles))
    assert {f.kind for f in linked.files} == {"wheel"}
    assert isinstance(made.steps[-1], plan.Move)
    assert made.steps[-1].target == made.artifact.ref
    assert made.artifact.ref.startswith(str(found.envs_dir))


def test_a_venv_needs_only_its_own_files(found: Settings) -> None:
    """The compiler's packages are the image's; a native environment takes the host's."""
    files = venv_plan("zendnn", found).files
    assert sum(f.kind == "deb" for f in files) <= 2
    assert {f.name for f in files if f.kind == "tool"} == {"uv"}


def test_everything_that_decides_changes_the_fingerprint(found: Settings) -> None:
    base = venv_plan("cpu", found)
    other = msgspec.structs.replace(PYTHON, version="3.11.10")
    assert venv_plan("cpu", found, other).fingerprint != base.fingerprint
    assert venv_plan("zendnn", found).fingerprint != base.fingerprint
    image = docker_plan("cpu", found)
    assert image.fingerprint != base.fingerprint
    profile, lock = shipped("cpu")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    moved = docker.plan(
        profile, lock, target, ("base:1", "sha256:2"), STORE, Request(profile="cpu"), found
    )
    assert moved.fingerprint != image.fingerprint
    assert docker_plan("cpu", found, tag="me/x:1").fingerprint == image.fingerprint


def test_an_image_is_built_from_folders_and_the_given_base(found: Settings) -> None:
    made = docker_plan("zendnn", found, base="site/python:3.11", tag="me/zen:1")
    (build,) = commands(made)
    assert build[:3] == ("docker", "buildx", "build")
    assert "BASE_IMAGE=site/python:3.11" in build
    contexts = [c for c in build if c.startswith(("wheels=", "debs="))]
    assert [c.partition("=")[0] for c in contexts] == ["wheels", "debs"]
    assert "me/zen:1" in build
    assert f"io.envbuilder.fingerprint={made.fingerprint}" in build
    assert made.files == lockfile.select(shipped("zendnn")[1], "linux/amd64", "3.11").files


def test_no_word_of_a_plan_goes_through_a_shell(found: Settings) -> None:
    for made in (venv_plan("zendnn", found), docker_plan("zendnn", found)):
        for argv in commands(made):
            assert argv[0] not in {"sh", "bash"}
            assert all(isinstance(word, str) for word in argv)


def test_the_base_image_comes_from_the_request_then_the_configuration(found: Settings) -> None:
    base = lockfile.select(shipped("cpu")[1], "linux/amd64", "3.11").base
    assert base is not None
    configured = msgspec.structs.replace(
        found,
        configuration=msgspec.structs.replace(
            found.configuration, base_images={base.ref: "mirror/python:3.11"}
        ),
    )
    assert docker.base_ref(base, Request(), found) == f"{base.ref}@{base.digest}"
    assert docker.base_ref(base, Request(), configured) == "mirror/python:3.11"
    assert docker.base_ref(base, Request(base_image="mine:1"), configured) == "mine:1"


XPU_NODES = {"/dev/dri": 0, "/dev/dri/by-path": 0, "/dev/dri/renderD128": 992}


@pytest.mark.parametrize(
    ("name", "nodes", "flags"),
    [
        ("cpu", {}, ["--shm-size", "1g"]),
        ("cuda", {}, ["--shm-size", "1g", "--gpus", "all"]),
        (
            "xpu",
            XPU_NODES,
            [
                *("--shm-size", "1g", "--device", "/dev/dri", "--group-add", "992"),
                *("--mount", "type=bind,source=/dev/dri/by-path,target=/dev/dri/by-path,readonly"),
            ],
        ),
        ("xpu", {}, ["--shm-size", "1g"]),
    ],
)
def test_device_flags(name: str, nodes: dict[str, int], flags: list[str]) -> None:
    profile, _ = shipped(name)
    assert list(docker.cli_options(docker.device_options(profile, nodes))) == flags


def test_the_sdk_gets_the_same_devices() -> None:
    xpu = docker.sdk_options(docker.device_options(shipped("xpu")[0], XPU_NODES), {"/d": "/data"})
    assert xpu["devices"] == ["/dev/dri:/dev/dri:rwm"]
    assert xpu["group_add"] == ["992"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in xpu["mounts"]] == [
        ("/d", "/data", True),
        ("/dev/dri/by-path", "/dev/dri/by-path", True),
    ]
    cuda = docker.sdk_options(docker.device_options(shipped("cuda")[0], {}), {})
    assert cuda["device_requests"][0]["Count"] == -1


def test_a_venv_preloads_by_full_path_and_keeps_the_callers_own() -> None:
    profile, _ = shipped("cpu")
    made = venv.environment(profile, Path("/p"), {"PATH": "/bin", "LD_PRELOAD": "mine.so"})
    assert made["LD_PRELOAD"] == "/p/lib/envbuilder/libtcmalloc_minimal.so.4:mine.so"
    assert made["PATH"] == "/p/bin:/bin"
    assert int(made["OMP_NUM_THREADS"]) >= 1
    assert "OMP_NUM_THREADS" not in venv.environment(profile, Path("/p"), {"OMP_NUM_THREADS": "7"})


def test_zendnn_without_a_compiler_is_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match=r"C\+\+ compiler") as caught:
        venv.check_tools(shipped("zendnn")[0])
    assert "--backend docker" in caught.value.hint
    venv.check_tools(shipped("cpu")[0])


def test_a_python_that_the_lock_does_not_have_is_2(found: Settings) -> None:
    profile, lock = shipped("cpu")
    host = Host(os="linux", machine="x86_64", platform="linux/amd64")
    with pytest.raises(InvalidError, match=r"Python 3\.9"):
        venv.prepare(profile, lock, host, Request(python="3.9"), found)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("26.1.5+dfsg1", (26, 1)), ("20.10.24", (20, 10)), ("v0.13", (0, 0)), ("", (0, 0))],
)
def test_engine_versions(text: str, numbers: tuple[int, int]) -> None:
    assert engine._parsed(text) == numbers


class FakeEngine:
    def __init__(self, version: dict[str, Any]) -> None:
        self._version = version

    def version(self) -> dict[str, Any]:
        return self._version


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ({"Version": "20.10.24"}, "Docker 20.10.24 is too old: 23 or newer"),
        ({"Version": "26.1.5"}, ""),
        ({"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}, ""),
    ],
)
def test_an_old_engine_is_4(
    version: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import docker as sdk

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    monkeypatch.setattr(sdk, "DockerClient", lambda **options: FakeEngine(version))
    if not said:
        assert engine.connect() is not None
        return
    with pytest.raises(ToolError, match=said):
        engine.connect()


def test_lines_come_whole_whatever_the_pieces() -> None:
    seen: list[str] = []
    lines = engine._Lines(seen.append)
    for piece in (b"on", b"e\ntw", b"o\n", b"", b"\xffthree"):
        lines.feed(piece)
    lines.end()
    assert seen == ["one", "two", "\ufffdthree"]
