"""Plans are pure and complete; device flags follow the profile and the host's nodes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from docker.errors import APIError, DockerException
from requests import ReadTimeout

from envbuilder.build import payload as pack
from envbuilder.build import plan
from envbuilder.build.backends import devices, docker, native, venv
from envbuilder.build.backends import integrity as seal
from envbuilder.build.image import base as image_base
from envbuilder.build.image import records as images
from envbuilder.build.request import Request
from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine import podman, versions
from envbuilder.containers.engine import run as containers
from envbuilder.containers.oci import reference
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, InvalidError, ToolError, VerifyError
from envbuilder.host.interpreters import Interpreter
from envbuilder.host.model import Host
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock

FOLDERS = (resources.profiles_dir(),)
DOCKER = engine.Engine(
    client="docker",
    command=("docker",),
    build=("docker", "buildx", "build", "--output", "x"),
    tells="--metadata-file",
    versions=("docker", "buildx", "inspect", "default"),
)
PODMAN = engine.Engine(
    client="podman",
    command=("podman",),
    build=("podman", "build"),
    tells="--iidfile",
    versions=("podman", "info"),
)
ROOTLESS = msgspec.structs.replace(PODMAN, rootless=True)
PYTHON = Interpreter(
    path=Path("/usr/bin/python3.11"),
    version="3.11.9",
)


def shipped(name: str) -> tuple[profiles.Profile, lockfile.Lock]:
    return profiles.load(name, FOLDERS), lockfile.load(FOLDERS[0] / "locks" / f"{name}.json")


def venv_plan(name: str, found: Settings, interpreter: Interpreter = PYTHON) -> plan.Plan:
    profile, lock = shipped(name)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    return venv.plan(profile, lock, target, interpreter, found)


def docker_plan(
    name: str,
    found: Settings,
    base: str = "base:1",
    there: engine.Engine = DOCKER,
    **options: Any,
) -> plan.Plan:
    profile, lock = shipped(name)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    request = Request(profile=name, **options)
    return docker.plan(profile, lock, target, (base, "sha256:1"), there, request, found)


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
        profile, lock, target, ("base:1", "sha256:2"), DOCKER, Request(profile="cpu"), found
    )
    assert moved.fingerprint != image.fingerprint
    assert docker_plan("cpu", found, tag="me/x:1").fingerprint == image.fingerprint


def retooled(lock: Lock, **changes: Any) -> Lock:
    """The lock with a changed uv for every platform."""
    tools = {p: msgspec.structs.replace(f, **changes) for p, f in lock.tools.items()}
    return msgspec.structs.replace(lock, tools=tools)


def test_the_version_of_uv_decides_and_not_which_machines_uv_it_is(found: Settings) -> None:
    profile, lock = shipped("cpu")
    target = lockfile.select(lock, "linux/amd64", "3.11")

    def fingerprint(lock: Lock) -> str:
        return venv.plan(profile, lock, target, PYTHON, found).fingerprint

    assert fingerprint(retooled(lock, sha256="0" * 64)) == fingerprint(lock)
    assert fingerprint(retooled(lock, version="0.14.0")) != fingerprint(lock)


def test_an_image_is_built_from_folders_and_the_given_base(found: Settings) -> None:
    made = docker_plan("zendnn", found, base="site/python:3.11", tag="me/zen:1")
    build, asked = commands(made)
    assert build[:3] == ("docker", "buildx", "build")
    assert asked == DOCKER.versions
    assert "BASE_IMAGE=site/python:3.11" in build
    contexts = [c for c in build if c.startswith(("wheels=", "debs="))]
    assert [c.partition("=")[0] for c in contexts] == ["wheels", "debs"]
    assert "me/zen:1" in build
    assert f"io.envbuilder.fingerprint={made.fingerprint}" in build
    _, lock = shipped("zendnn")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    assert made.files == (lock.tool("linux/amd64"), *target.files)


def test_a_build_is_told_the_locks_time_and_tells_what_it_made(found: Settings) -> None:
    made = docker_plan("cpu", found)
    build, asked = (s for s in made.steps if isinstance(s, plan.Run))
    base = lockfile.select(shipped("cpu")[1], "linux/amd64", "3.11").base
    assert base is not None
    assert f"SOURCE_DATE_EPOCH={base.epoch}" in build.argv
    record = made.steps[-1]
    assert isinstance(record, plan.RecordImage)
    assert build.argv[build.argv.index("--metadata-file") + 1] == record.metadata
    assert asked.output == record.versions
    assert Path(record.folder) == found.records_dir / made.fingerprint
    assert {Path(record.metadata).parent, Path(record.versions).parent} == {Path(made.workdir)}


def test_an_image_that_is_compared_takes_no_name_from_another(found: Settings) -> None:
    usual = docker_plan("cpu", found, tag="me/x:1")
    only = docker_plan("cpu", found, tag="me/x:1", only_tag="trial:1")
    (build, _), (other, _) = commands(only), commands(usual)
    assert [build[i + 1] for i, w in enumerate(build) if w == "--tag"] == ["trial:1"]
    assert sum(w == "--tag" for w in other) == 3
    assert only.artifact.ref == "trial:1"
    assert only.fingerprint == usual.fingerprint


def built_image(found: Settings, ids: tuple[str, ...]) -> docker.DockerEnvironment:
    """The `cpu` image, of which a build recorded these ids; the engine has "sha256:<its name>"."""
    made = docker_plan("cpu", found, only_tag="trial:1")
    if ids:
        record = images.ImageRecord(
            profile="cpu",
            fingerprint=made.fingerprint,
            ref="trial:1",
            digest=f"sha256:{1:064}",
            ids=ids,
            builder="buildkit",
            made_by={"buildkit": "v0.13.2"},
        )
        images.keep(found.records_dir / made.fingerprint, record)
    profile, lock = shipped("cpu")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    there = FakeEngine({}, ("trial:1",))
    return docker.DockerEnvironment(profile, target, made, there, DOCKER, found, force=False)


HERE = "sha256:trial:1"
OTHER = f"sha256:{2:064}"


def test_an_image_is_the_one_that_was_built(found: Settings) -> None:
    environment = built_image(found, ())
    assert environment.existing() is None
    assert environment.changed() == "", "nobody knows what it was"

    environment = built_image(found, (f"sha256:{1:064}", OTHER))
    assert environment.existing() is None
    assert environment.changed().startswith(f"trial:1 was changed after the build: it is {HERE}")
    with pytest.raises(VerifyError, match="was changed after the build") as caught:
        environment.run_payload(lambda seen: (), {"data": Path("/data")}, print)
    assert "--rebuild" in caught.value.hint


def test_a_recorded_image_is_reused_by_the_digest_of_its_configuration(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = built_image(found, (OTHER,))
    monkeypatch.setattr(
        engine, "image", lambda *args: engine.Image(id=OTHER, tags=("trial:1",), labels={})
    )
    existing = environment.existing()
    assert existing is not None
    assert existing.digest == f"sha256:{1:064}"
    assert environment.changed() == ""
    assert environment.made_by() == {"buildkit": "v0.13.2"}
    monkeypatch.setattr(engine, "image", lambda *args: None)
    assert environment.existing() is None
    assert environment.changed() == ""


def test_podman_builds_the_same_from_the_same_folders(found: Settings) -> None:
    made, docker_made = docker_plan("zendnn", found, there=PODMAN), docker_plan("zendnn", found)
    (build, asked), (other, _) = commands(made), commands(docker_made)
    assert asked == PODMAN.versions
    assert build[:2] == ("podman", "build")
    assert not {"buildx", "--builder", "--provenance=false"} & set(build)
    assert [w.partition("=")[0] for w in build if w.startswith(("wheels=", "debs="))] == [
        "wheels",
        "debs",
    ]
    assert made.builder == "buildah"
    assert made.fingerprint != docker_made.fingerprint, "another builder, another image"
    assert made.files == docker_made.files
    assert len(build) == len(other) - 5  # buildx, --output x, --build-arg SOURCE_DATE_EPOCH=…


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
    assert image_base.base_ref(base, Request(), found) == f"{base.ref}@{base.digest}"
    assert image_base.base_ref(base, Request(), configured) == "mirror/python:3.11"
    assert image_base.base_ref(base, Request(base_image="mine:1"), configured) == "mine:1"


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
    assert list(devices.cli_options(devices.device_options(profile, nodes), DOCKER)) == flags


@pytest.mark.parametrize(
    ("name", "nodes", "there", "flags"),
    [
        ("cpu", {}, PODMAN, []),
        ("cuda", {}, PODMAN, ["--device", "nvidia.com/gpu=all"]),
        ("xpu", XPU_NODES, PODMAN, ["--device", "/dev/dri", "--group-add", "992"]),
        ("xpu", XPU_NODES, ROOTLESS, ["--device", "/dev/dri", "--group-add", "keep-groups"]),
    ],
)
def test_device_flags_of_podman(
    name: str, nodes: dict[str, int], there: engine.Engine, flags: list[str]
) -> None:
    """Its documentation's: no GPU of either make was at hand with podman."""
    made = devices.cli_options(devices.device_options(shipped(name)[0], nodes), there)
    wanted = ["--shm-size", "1g", "--security-opt", "label=disable", *flags]
    assert list(made[: len(wanted)]) == wanted
    assert all("readonly" in volume for volume in made[len(wanted) + 1 :: 2])


def test_the_sdk_gets_the_same_devices() -> None:
    xpu = devices.sdk_options(devices.device_options(shipped("xpu")[0], XPU_NODES), {"/d": "/data"})
    assert xpu["devices"] == ["/dev/dri:/dev/dri:rwm"]
    assert xpu["group_add"] == ["992"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in xpu["mounts"]] == [
        ("/d", "/data", True),
        ("/dev/dri/by-path", "/dev/dri/by-path", True),
    ]
    cuda = devices.sdk_options(devices.device_options(shipped("cuda")[0], {}), {})
    assert cuda["device_requests"][0]["Count"] == -1


def test_a_venv_preloads_by_full_path_and_keeps_the_callers_own() -> None:
    profile, _ = shipped("cpu")
    made = venv.environment(profile, Path("/p"), {"PATH": "/bin", "LD_PRELOAD": "mine.so"})
    assert made["LD_PRELOAD"] == "/p/lib/envbuilder/libtcmalloc_minimal.so.4:mine.so"
    assert made["PATH"] == "/p/bin:/p/lib/envbuilder/refused:/bin"
    assert int(made["OMP_NUM_THREADS"]) >= 1
    assert "OMP_NUM_THREADS" not in venv.environment(profile, Path("/p"), {"OMP_NUM_THREADS": "7"})


def test_an_environment_is_compared_once_however_often_its_payload_starts(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, lock = shipped("cpu")
    made = venv_plan("cpu", found)
    target = lockfile.select(lock, "linux/amd64", "3.11")
    environment: venv.VenvEnvironment | None = venv.VenvEnvironment(profile, target, made)
    assert environment is not None
    (environment.prefix / resources.OWN).mkdir(parents=True)
    (environment.prefix / resources.OWN / "payload.pyz").write_bytes(pack.payload_pyz())
    seal.close(environment.prefix, {})
    compared: list[Path] = []
    monkeypatch.setattr(seal, "require_unchanged", lambda prefix, *rest: compared.append(prefix))
    started: list[str] = []
    monkeypatch.setattr(process, "run", lambda argv, **options: started.append(argv[3]))
    for _ in range(3):
        environment.run_payload(lambda seen: ("probe",), {"data": Path("/data")}, lambda line: None)
    assert compared == [environment.prefix]
    (option,) = set(started)
    folder = Path(option.removeprefix("pycache_prefix=")).parent
    assert [path.name for path in folder.rglob("*")] == ["work"], "its own folder, and no bytecode"
    environment = None
    assert not folder.exists()


def test_zendnn_without_a_compiler_is_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match=r"C\+\+ compiler") as caught:
        native.check_tools(shipped("zendnn")[0])
    assert "--backend docker" in caught.value.hint
    native.check_tools(shipped("cpu")[0])


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
    assert versions.parsed(text) == numbers


class FakeEngine:
    def __init__(self, version: dict[str, Any], images: tuple[str, ...] = ()) -> None:
        self._version, self.images = version, self
        self._images = set(images)

    def version(self) -> dict[str, Any]:
        return self._version

    def get(self, ref: str) -> Any:
        from docker.errors import ImageNotFound

        if ref not in self._images:
            raise ImageNotFound(ref)
        return SimpleNamespace(id=f"sha256:{ref}", tags=[ref], labels={})


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    """Programs on PATH: the start of a command line → exit code, stdout, stderr."""
    known: dict[str, tuple[int, str, str]] = {}

    def which(program: str) -> str | None:
        on_path = any(line.split()[0] == program for line in known)
        return f"/usr/bin/{program}" if on_path else None

    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        line = " ".join(argv)
        code, out, err = next(known[k] for k in known if line.startswith(k))
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout=out, stderr=err, seconds=0
        )

    monkeypatch.setattr(process, "which", which)
    monkeypatch.setattr(process, "run", run)
    return known


def podman_info(version: str, *, rootless: bool = False) -> str:
    host = {"security": {"rootless": rootless}}
    return msgspec.json.encode({"host": host, "version": {"Version": version}}).decode()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, Any]], None]:
    """An engine at DOCKER_HOST that answers with this version."""
    import docker as sdk

    def answer(version: dict[str, Any]) -> None:
        (tmp_path / "docker.sock").touch()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        monkeypatch.setattr(sdk, "DockerClient", lambda **options: FakeEngine(version))

    return answer


PODMAN_ANSWERS = {"Version": "5.4.2", "Components": [{"Name": "Podman Engine"}]}


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ({"Version": "20.10.24"}, "Docker 20.10.24 is too old: 23 or newer"),
        ({"Version": "26.1.5"}, ""),
    ],
)
def test_an_old_engine_is_4(version: dict[str, Any], said: str, answering: Any) -> None:
    answering(version)
    if not said:
        assert engine.connect() is not None
        return
    with pytest.raises(ToolError, match=said):
        engine.connect()


def test_podman_at_docker_host_is_spoken_to_by_its_own_client(
    programs: dict[str, tuple[int, str, str]], answering: Any
) -> None:
    answering(PODMAN_ANSWERS)
    url = os.environ["DOCKER_HOST"]
    with pytest.raises(ToolError, match="its client is not on PATH"):
        engine.connect()
    programs["docker"] = (0, "", "")
    programs["podman --version"] = (0, "podman version 5.4.2\n", "")
    programs[f"podman --url {url} info"] = (0, podman_info("5.4.2", rootless=True), "")
    found = engine.describe(engine.connect())
    assert found.client == "podman"
    assert found.rootless
    assert found.build[:4] == ("podman", "--url", url, "build")
    engine.require_client(found)


@pytest.mark.parametrize(
    ("status", "keeps"),
    [([["driver-type", "io.containerd.snapshotter.v1"]], True), ([["Backing", "ext"]], False)],
)
def test_dockers_containerd_store_keeps_layers_as_they_came(
    monkeypatch: pytest.MonkeyPatch, status: list[list[str]], keeps: bool
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    found = engine.describe(SimpleNamespace(info=lambda: {"DriverStatus": status}))
    assert found.keeps_blobs is keeps
    assert ("compression=zstd" in " ".join(found.build)) is keeps


@pytest.mark.parametrize(
    ("client", "server", "said"),
    [
        ("4.3.1", "5.4.2", "the podman client 4.3.1 is too old: 4.8 or newer"),
        ("5.4.2", "4.7.2", "podman 4.7.2 is too old: 4.8 or newer"),
        ("4.8.0", "4.8.0", ""),
        ("5.0.0-rc1", "5.0.0-dev", ""),
        ("dev", "", "the podman client dev is too old"),
    ],
)
def test_an_old_podman_is_4(
    client: str,
    server: str,
    said: str,
    programs: dict[str, tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No docker, no socket, but podman: it is used, if it is new enough."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(engine, "_SOCKET", str(tmp_path / "docker.sock"))
    assert not engine.configured()
    programs["podman --version"] = (0, f"podman version {client}\n", "")
    programs["podman info"] = (0, podman_info(server), "")
    assert engine.configured()
    if said:
        with pytest.raises(ToolError, match=said):
            engine.connect()
    else:
        assert engine.describe(engine.connect()).command == ("podman",)


def test_podman_is_used_where_dockers_socket_may_not_be_opened(
    programs: dict[str, tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both are installed, and this user is in no group `docker`."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    socket = tmp_path / "docker.sock"
    socket.touch()
    monkeypatch.setattr(engine, "_SOCKET", str(socket))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(socket))
    programs["docker version"] = (0, "", "")
    programs["podman --version"] = (0, "podman version 5.4.2\n", "")
    programs["podman info"] = (0, podman_info("5.4.2", rootless=True), "")
    assert engine.describe(engine.connect()).rootless

    def refuse(**options: Any) -> None:
        raise DockerException("Permission denied")

    # One that somebody named is not passed over.
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    monkeypatch.setattr("docker.DockerClient", refuse)
    with pytest.raises(ToolError, match="no container engine answers"):
        engine.connect()


def test_a_podman_that_does_not_answer_is_4(
    programs: dict[str, tuple[int, str, str]], answering: Any
) -> None:
    answering(PODMAN_ANSWERS)
    programs["podman --version"] = (0, "podman version 5.4.2\n", "")
    programs["podman --url"] = (125, "OS: linux/amd64\n", "Error: unable to connect\n")
    with pytest.raises(ToolError, match="does not answer: Error: unable to connect"):
        engine.connect()


def test_the_docker_context_is_the_clients_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere-to-be-found")
    with pytest.raises(ToolError, match="no docker context 'nowhere-to-be-found'"):
        engine.connect()
    monkeypatch.delenv("DOCKER_CONTEXT")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(engine, "_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "docker.sock").touch()
    url = f"unix://{tmp_path}/docker.sock"
    assert engine._place() == engine._Place(url=url, flags=("--host", url), named=False)


@pytest.mark.parametrize(
    ("ref", "full"),
    [
        ("python:3.11", "docker.io/library/python:3.11"),
        ("me/python@sha256:1", "docker.io/me/python@sha256:1"),
        ("localhost/me:1", "localhost/me:1"),
        ("site:5000/python:3", "site:5000/python:3"),
        ("mirror.example/a/b", "mirror.example/a/b"),
    ],
)
def test_podman_gets_names_as_docker_reads_them(ref: str, full: str) -> None:
    assert reference.qualified(ref) == full


def test_a_base_is_what_it_is_before_and_after_the_pull(
    programs: dict[str, tuple[int, str, str]],
) -> None:
    there = FakeEngine({}, ("here:1",))
    assert image_base.identified(there, DOCKER, "here:1", "linux/amd64") == (
        "here:1",
        "sha256:here:1",
    )
    pinned = "python:3@sha256:1"
    assert image_base.identified(there, DOCKER, pinned, "linux/amd64") == (pinned, pinned)
    programs["docker pull --quiet --platform linux/amd64 far:1"] = (1, "", "Error: denied\n")
    with pytest.raises(BuildError, match="far:1: cannot be pulled: Error: denied") as caught:
        image_base.identified(there, DOCKER, "far:1", "linux/amd64")
    assert "--base-image REF" in caught.value.hint

    programs.clear()
    programs["docker pull"] = (0, "", "")
    there._images.add("far:1")
    assert image_base.identified(there, DOCKER, "far:1", "linux/amd64") == ("far:1", "sha256:far:1")


def test_a_digest_is_the_same_base_wherever_podman_gets_it(
    programs: dict[str, tuple[int, str, str]],
) -> None:
    client = podman.Podman(command=("podman",), rootless=False)
    programs["podman image inspect"] = (125, "[]", "Error: python: image not known\n")
    pinned = "python:3@sha256:1"
    missing = image_base.identified(client, PODMAN, pinned, "linux/amd64")
    assert missing == (f"docker.io/library/{pinned}", pinned)
    programs["podman image inspect"] = (0, '[{"Id": "12", "RepoTags": null}]', "")
    assert image_base.identified(client, PODMAN, pinned, "linux/amd64") == (pinned, pinned)
    assert image_base.identified(client, PODMAN, "b:1", "linux/amd64") == ("b:1", "sha256:12")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", ToolError),
        ("Error: stat /dev/dri: no such file or directory", ToolError),
        ("Error: x: image not known", VerifyError),
    ],
)
def test_what_podman_cannot_start_is_told(text: str, kind: type[Exception]) -> None:
    assert isinstance(podman.not_started(text), kind)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (APIError("conflict", explanation="it is used by a container"), "used by a container"),
        (ReadTimeout("Read timed out."), "Read timed out"),
    ],
)
def test_an_image_that_cannot_be_removed_is_1(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(ref: str, *, noprune: bool) -> None:
        assert noprune, "Docker's walk over parents may never end"
        raise error

    there = SimpleNamespace(images=SimpleNamespace(remove=remove), api=SimpleNamespace())
    monkeypatch.setattr(engine, "connect", lambda: there)
    with pytest.raises(BuildError, match=f"x:1: cannot be removed: .*{said}"):
        engine.remove_images(["x:1"])


@pytest.mark.parametrize("there", [True, False])
def test_a_tag_is_removed_if_the_engine_has_it(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(engine, "image", lambda client, ref: ref if there else None)
    monkeypatch.setattr(engine, "remove_images", removed.extend)
    engine.forget("x:1")
    assert removed == (["x:1"] if there else [])


def test_a_socket_that_is_not_there_is_4_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(ToolError, match="no such file or directory") as raised:
        engine.connect()
    assert raised.value.__cause__ is None, "the SDK was asked"


def test_lines_come_whole_whatever_the_pieces() -> None:
    seen: list[str] = []
    lines = containers._Lines(seen.append)
    for piece in (b"on", b"e\ntw", b"o\n", b"", b"\xffthree"):
        lines.feed(piece)
    lines.end()
    assert seen == ["one", "two", "\ufffdthree"]


def test_a_long_line_costs_time_and_memory_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEPT_BYTES", 1000)
    seen: list[str] = []
    lines = containers._Lines(seen.append)
    for _ in range(50_000):
        lines.feed(b"x" * 1000)
    lines.feed(b"\nend")
    lines.end()
    # In pieces that are no longer than a line may be, give or take what came at once.
    assert max(map(len, seen)) < process.LONGEST_LINE + 1000
    assert sum(map(len, seen)) == 50_000_003
    assert seen[-1] == "end"
    assert len(lines.text) <= 2000
    assert lines.text.endswith("\nend")
