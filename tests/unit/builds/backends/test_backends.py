"""Plans are pure and complete; device flags follow the profile and the host's nodes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.builds import payload as pack, plan, records
from envbuilder.builds.backends import container, devices, docker, integrity, venv
from envbuilder.builds.image import base as image_base
from envbuilder.builds.request import Request
from envbuilder.containers.engine.container import Devices
from envbuilder.containers.engine.interface import BuildCommand, Image
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.containers.oci import reference
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, InvalidError, ToolError, VerifyError
from envbuilder.core.settings import Settings
from envbuilder.host.interpreters import Interpreter
from envbuilder.host.model import Host
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.lock import Lock
from tests.support import project_layers
from tests.support.engines import BUILDAH, BUILDKIT, FakeEngine
from tests.support.pipeline import a_build
from tests.support.repositories import lay
from tests.support.shipped import shipped_lock, shipped_profile
from tests.unit.builds.backends import test_conda, test_docker
from tests.unit.builds.backends.test_conda import commands
from tests.unit.builds.test_records import RECORD, TWO as OTHER

BASE = image_base.Base(ref="base:1", identity="sha256:1")
PYTHON = Interpreter(
    path=Path("/usr/bin/python3.11"),
    version="3.11.9",
)


def shipped(name: str) -> tuple[profiles.Profile, lockfile.Lock]:
    return shipped_profile(name), shipped_lock(name)


CPU, LOCK = shipped("cpu")
TARGET = lockfile.select(LOCK, "linux/amd64", "3.11")


def venv_plan(name: str, found: Settings, interpreter: Interpreter = PYTHON) -> plan.Plan:
    asked = a_build(found, name)
    return venv.plan(asked, lockfile.select(asked.lock, "linux/amd64", "3.11"), interpreter)


def docker_plan(
    name: str,
    found: Settings,
    base: str = "base:1",
    build: BuildCommand = BUILDKIT,
    **options: Any,
) -> plan.Plan:
    asked = a_build(found, name, request=Request(profile=name, **options))
    target = lockfile.select(asked.lock, "linux/amd64", "3.11")
    return docker.plan(asked, target, replace(BASE, ref=base), build)


def test_a_dockerfile_takes_the_projects_files_last(found: Settings, tmp_path: Path) -> None:
    command = ("python", "it's.py", '"a"')
    project = project_layers.lay(
        tmp_path, {"a.py": b"1"}, command=command, ports=(80, 8000), python_path=("src",)
    )
    arguments = (a_build(found, CPU, LOCK), TARGET, BASE, BUILDKIT)
    bare, made = (docker.plan(*arguments, project=p) for p in (None, project))
    assert bare.fingerprint == docker_plan("cpu", found).fingerprint != made.fingerprint
    for image, newest in ((bare, "latest"), (made, "project")):
        build = next(c for c in commands(image) if "--tag" in c)
        assert f"envbuilder/cpu:{newest}" in build
        assert sum(word.startswith("envbuilder/cpu:") for word in build) == 2
    assert plan.project_of(made) == project
    (copied,) = [s for s in made.steps if isinstance(s, plan.CopyProject)]
    assert copied.folder == f"{made.workdir}/context/project/files"
    (text,) = [s.text for s in made.steps if isinstance(s, plan.Write) and "/Dockerfile" in s.path]
    _, _, end = text.partition("/opt/envbuilder /opt/envbuilder/payload.pyz")
    assert "source=project/files" in end
    assert 'PYTHONPATH="/work/src"' in end
    lines = end.splitlines()
    assert "EXPOSE 80 8000" in lines
    assert json.loads(lines[-1].removeprefix("CMD ")) == [*command]


def probe(environment: Any) -> None:
    """Start the payload in it."""
    environment.run_payload(lambda seen: ("probe",), {"data": Path("/data")}, lambda line: None)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(make, "cpu") for make in (venv_plan, docker_plan)),
        test_docker.planned,
        lambda found: test_conda.planned(found, test_conda.LIBRARY),
    ],
    ids=["venv", "docker", "layers", "conda"],
)
def test_a_plan_is_the_same_every_time_and_touches_nothing(make: Any, found: Settings) -> None:
    first = make(found)
    second = make(found)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert not found.cache_dir.exists()
    assert not found.data_dir.exists()


def test_a_venv_is_installed_from_the_store_without_network(found: Settings) -> None:
    made = venv_plan("cpu", found)
    install = next(c for c in commands(made) if "install" in c)
    assert {"--offline", "--no-index", "--require-hashes", "--no-deps"} <= set(install)
    unpacked = next(s for s in made.steps if isinstance(s, plan.UnpackWheels))
    assert {f.kind for f in unpacked.files} == {"wheel"}
    assert unpacked.unpacked == str(found.unpacked_dir)
    assert isinstance(made.steps[-2], plan.Seal)
    assert made.steps[-2].base_python == "/usr/bin/python3.11"
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
    other = replace(PYTHON, version="3.11.10")
    assert venv_plan("cpu", found, other).fingerprint != base.fingerprint
    assert venv_plan("zendnn", found).fingerprint != base.fingerprint
    image = docker_plan("cpu", found)
    assert image.fingerprint != base.fingerprint
    moved = docker.plan(
        a_build(found, CPU, LOCK), TARGET, replace(BASE, identity="sha256:2"), BUILDKIT
    )
    assert moved.fingerprint != image.fingerprint
    assert docker_plan("cpu", found, tag="me/x:1").fingerprint == image.fingerprint


def retooled(lock: Lock, **changes: Any) -> Lock:
    """The lock with a changed uv for every platform."""
    tools = {p: replace(f, **changes) for p, f in lock.tools.items()}
    return replace(lock, tools=tools)


@pytest.mark.parametrize(
    "make",
    [
        lambda found, lock: venv.plan(a_build(found, CPU, lock), TARGET, PYTHON),
        lambda found, lock: test_conda.planned(found, wheels=lock),
    ],
    ids=["venv", "conda"],
)
def test_the_version_of_uv_decides_and_not_which_machines_uv_it_is(
    make: Any, found: Settings
) -> None:
    usual = make(found, LOCK).fingerprint
    assert make(found, retooled(LOCK, sha256="0" * 64)).fingerprint == usual
    assert make(found, retooled(LOCK, version="0.14.0")).fingerprint != usual


def test_an_image_is_built_from_folders_and_the_given_base(found: Settings) -> None:
    made = docker_plan("zendnn", found, base="site/python:3.11", tag="me/zen:1")
    build, asked = commands(made)
    assert build[:3] == ("docker", "buildx", "build")
    assert asked == BUILDKIT.version_argv
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
    base = TARGET.base
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


def built_image(
    found: Settings, ids: tuple[str, ...]
) -> tuple[container.DockerEnvironment, FakeEngine]:
    """The `cpu` image, of which a build recorded these ids; the engine has "sha256:<its name>"."""
    made = docker_plan("cpu", found, only_tag="trial:1")
    if ids:
        record = replace(RECORD, fingerprint=made.fingerprint, ref="trial:1", ids=ids)
        records.keep(found.records_dir / made.fingerprint, record)
    engine = FakeEngine("trial:1")
    return container.DockerEnvironment(a_build(found, CPU), TARGET, made, engine), engine


HERE = "sha256:trial:1"


def test_an_image_is_the_one_that_was_built(found: Settings) -> None:
    environment, _ = built_image(found, ())
    assert environment.existing() is None
    assert environment.changed() == "", "nobody knows what it was"

    environment, _ = built_image(found, RECORD.ids)
    assert environment.existing() is None
    assert environment.changed().endswith(f", found {HERE}")
    with pytest.raises(VerifyError, match="was changed after the build") as caught:
        probe(environment)
    assert "--rebuild" in caught.value.hint


def test_a_recorded_image_is_reused_by_the_digest_of_its_configuration(found: Settings) -> None:
    environment, engine = built_image(found, (OTHER,))
    engine.images["trial:1"] = Image(id=OTHER, tags=("trial:1",), labels={})
    existing = environment.existing()
    assert existing.digest == RECORD.digest
    assert environment.changed() == ""
    assert environment.made_by() == {"buildkit": "v0.13.2"}
    engine.images.clear()
    assert environment.existing() is None
    assert environment.changed() == ""


def test_an_image_that_exists_gets_the_names_that_it_lacks(found: Settings) -> None:
    folder = found.records_dir
    engine = FakeEngine("envbuilder/cpu:latest")

    def environment(**options: Any) -> container.DockerEnvironment:
        made = docker_plan("cpu", found, **options)
        return container.DockerEnvironment(a_build(found, CPU), TARGET, made, engine)

    usual = environment()
    fingerprint = usual.plan.fingerprint
    record = replace(RECORD, fingerprint=fingerprint, ref="x:1", names=("x:1",))
    records.keep(folder / fingerprint, record)
    engine.images["localhost/x:1"] = Image(id=OTHER, tags=(), labels={})
    for product, names in ((usual, 3), (environment(tag="me/x"), 1), (environment(), 0)):
        engine.done.clear()
        assert product.existing() is not None, "it is there, under another name"
        product.restore_names()
        assert [line.split()[0] for line in engine.done] == ["tag"] * names
    first = usual.plan.artifact.ref
    claim = records.claim(fingerprint, found)
    assert {n for n, i in engine.images.items() if i.id == OTHER} == {
        "localhost/x:1",
        first,
        "envbuilder/cpu:latest",
        "me/x",
        claim,
    }
    (kept,) = records.read(folder / fingerprint)
    assert {*kept.names} == {"x:1", first, "envbuilder/cpu:latest", "me/x", claim}, "for `clean`"


def test_names_that_an_image_has_already_are_recorded(found: Settings) -> None:
    """The record was written anew, so `clean` would take the claim for another installation's."""
    made = docker_plan("cpu", found)
    engine = FakeEngine()
    product = container.DockerEnvironment(a_build(found, CPU), TARGET, made, engine)
    folder = found.records_dir / made.fingerprint
    ref = made.artifact.ref
    claim = records.claim(made.fingerprint, found)
    names = (*container.names_of(made), claim)
    records.keep(folder, replace(RECORD, fingerprint=made.fingerprint, ref=ref, names=(ref,)))
    engine.images = {name: Image(id=OTHER, tags=names, labels={}) for name in names}
    assert product.existing() is not None
    product.restore_names()
    assert engine.done == []
    (record,) = records.read(folder)
    assert {*record.names} == {*names}


def test_podman_builds_the_same_from_the_same_folders(found: Settings) -> None:
    made = docker_plan("zendnn", found, build=BUILDAH)
    docker_made = docker_plan("zendnn", found)
    (build, asked), (other, _) = commands(made), commands(docker_made)
    assert asked == BUILDAH.version_argv
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


def test_the_base_image_comes_from_the_request_then_the_configuration(found: Settings) -> None:
    base = TARGET.base
    configured = replace(
        found,
        configuration=replace(found.configuration, base_images={base.ref: "mirror/python:3.11"}),
    )
    assert image_base.base_ref(base, Request(), found) == f"{base.ref}@{base.digest}"
    assert image_base.base_ref(base, Request(), configured) == "mirror/python:3.11"
    assert image_base.base_ref(base, Request(base_image="mine:1"), configured) == "mine:1"


XPU_NODES = {"/dev/dri": 0, "/dev/dri/by-path": 0, "/dev/dri/renderD128": 992}


@pytest.mark.parametrize(
    ("name", "nodes", "needed"),
    [
        ("cpu", {}, Devices(shm_size="1g")),
        ("cuda", {}, Devices(gpus="all", shm_size="1g")),
        (
            "xpu",
            XPU_NODES,
            Devices(
                nodes=("/dev/dri",),
                groups=(992,),
                volumes=("/dev/dri/by-path",),
                shm_size="1g",
            ),
        ),
        ("xpu", {}, Devices(shm_size="1g")),
    ],
)
def test_devices_are_those_that_the_host_has(
    name: str, nodes: dict[str, int], needed: Devices
) -> None:
    assert devices.devices(shipped(name)[0], nodes) == needed


@pytest.mark.parametrize(
    ("force", "knows", "described", "gpus", "cdi"),
    [
        (False, False, (), "all", ()),
        (True, True, (), "all", ()),
        (True, False, (), "", ()),
        (False, True, ("nvidia.com/gpu=all",), "all", ()),
        (False, False, ("nvidia.com/gpu=all",), "", ("nvidia.com/gpu=all",)),
        (True, False, ("nvidia.com/gpu=all",), "", ("nvidia.com/gpu=all",)),
        (False, False, ("nvidia.com/gpu=0",), "all", ()),
    ],
)
def test_nvidias_gpus_come_by_the_runtime_or_cdi_and_force_leaves_out_what_neither_has(
    force: bool,
    knows: bool,
    described: tuple[str, ...],
    gpus: str,
    cdi: tuple[str, ...],
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine("trial:1")
    monkeypatch.setattr(engine, "knows_gpus", lambda: knows)
    engine.described = frozenset(described)
    made = docker_plan("cuda", found, only_tag="trial:1")
    build = a_build(found, "cuda", request=Request(force=force))
    environment = container.DockerEnvironment(build, TARGET, made, engine)
    probe(environment)
    (started,) = engine.containers
    assert (started.devices.gpus, started.devices.cdi) == (gpus, cdi)
    assert (started.image, started.user) == ("sha256:trial:1", "1000:1000")
    assert started.limits == engine.limits
    assert (started.network, started.project) == (False, None)
    assert started.mounts == {"/data": "/data"}
    assert started.arguments[-1] == "probe"
    assert started.is_held
    assert started.entrypoint[-3:] == ("/opt/envbuilder/payload.pyz", "exec", "--")
    assert started.entrypoint[3].startswith('"""Run a command while stdin stays open'), "its guard"


@pytest.mark.parametrize("threads", ["1", ""])
def test_a_container_has_the_callers_number_of_threads(
    threads: str, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    engine = FakeEngine("trial:1")
    made = docker_plan("cpu", found, only_tag="trial:1")
    probe(container.DockerEnvironment(a_build(found, CPU), TARGET, made, engine))
    (started,) = engine.containers
    assert started.variables.get("OMP_NUM_THREADS", "") == threads


def test_an_environment_is_compared_once_however_often_its_payload_starts(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = venv_plan("cpu", found)
    build = a_build(found, CPU)
    environment: venv.NativeEnvironment | None = venv.NativeEnvironment(build, TARGET, made)
    lay(environment.prefix / resources.OWN, {"payload.pyz": pack.payload_pyz()})
    integrity.close(environment.prefix, {})
    compared: list[Path] = []
    compare = integrity.require_unchanged

    def require_unchanged(prefix: Path, *rest: Any) -> Any:
        compared.append(prefix)
        return compare(prefix, *rest)

    monkeypatch.setattr(integrity, "require_unchanged", require_unchanged)
    started: list[str] = []
    monkeypatch.setattr(process, "run", lambda argv, **options: started.append(argv[3]))
    for _ in range(3):
        probe(environment)
    assert compared == [environment.prefix]
    added = environment.prefix / "sitecustomize.py"
    monkeypatch.setattr(process, "run", lambda argv, **options: added.write_text(""))
    with pytest.raises(VerifyError, match=r"while it was used: sitecustomize\.py \(added\)"):
        probe(environment)
    (option,) = set(started)
    folder = Path(option.removeprefix("pycache_prefix=")).parent
    assert [path.name for path in folder.rglob("*")] == ["work"], "its own folder, and no bytecode"
    environment = None
    assert not folder.exists()


def test_zendnn_without_a_compiler_is_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match=r"C\+\+ compiler") as caught:
        venv.check_tools(shipped("zendnn")[0])
    assert "--backend docker" in caught.value.hint
    venv.check_tools(CPU)


def test_a_python_that_the_lock_does_not_have_is_2(found: Settings) -> None:
    host = Host(os="linux", machine="x86_64", platform="linux/amd64")
    with pytest.raises(InvalidError, match=r"Python 3\.9"):
        venv.prepare(a_build(found, CPU, LOCK, host=host, request=Request(python="3.9")))


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


def test_a_base_is_what_it_is_before_and_after_the_pull() -> None:
    engine = FakeEngine("here:1")
    here = image_base.identified(engine, "here:1", "linux/amd64")
    assert here == ("here:1", "sha256:here:1")
    pinned = "python:3@sha256:1"
    assert image_base.identified(engine, pinned, "linux/amd64") == (pinned, pinned)
    assert engine.done == []
    far = image_base.identified(engine, "far:1", "linux/amd64")
    assert far == ("far:1", "sha256:far:1")
    assert engine.done == ["pull far:1 for linux/amd64"]


def test_a_digest_is_the_same_base_wherever_podman_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = PodmanEngine(["podman"], rootless=False)
    images = dict[str, Image]()
    monkeypatch.setattr(engine, "image", images.get)
    pinned = "python:3@sha256:1"
    missing = image_base.identified(engine, pinned, "linux/amd64")
    assert missing == (f"docker.io/library/{pinned}", pinned)
    images[pinned] = images["b:1"] = Image(id="sha256:12", tags=(), labels={})
    assert image_base.identified(engine, pinned, "linux/amd64") == (pinned, pinned)
    assert image_base.identified(engine, "b:1", "linux/amd64") == ("b:1", "sha256:12")


def test_an_image_that_is_gone_after_its_pull_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(engine, "pull", lambda ref, platform: None)
    with pytest.raises(BuildError, match="far:1: pulled, but the engine does not have the image"):
        image_base.identified(engine, "far:1", "linux/amd64")
