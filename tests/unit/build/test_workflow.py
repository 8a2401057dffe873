"""The order of checks, the choice of profile and backend, and when something is built at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.build import execute, plan, workflow
from envbuilder.build.attestation import documents
from envbuilder.build.backends import docker, integrity
from envbuilder.build.backends.venv import VenvEnvironment
from envbuilder.build.request import Request
from envbuilder.containers.engine import connection
from envbuilder.core import process, resources, types
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, EnvbuilderError, HostError, InvalidError, ToolError
from envbuilder.core.settings import Configuration, Signatures
from envbuilder.host import interpreters, probe
from envbuilder.host import model as host
from envbuilder.packages import fetch
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from envbuilder.profiles import signed_lock
from envbuilder.signatures import beside
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import UnsignedError
from tests.support import signing
from tests.support.engines import FakeEngine
from tests.support.workflow import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core.settings import Settings

SHIPPED = (resources.profiles_dir(),)
PLAIN = host.Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.39",
    cpu=host.Cpu(flags=("avx2",), threads=2),
)
ZEN5 = msgspec.structs.replace(
    PLAIN, cpu=host.Cpu(flags=tuple(sorted(host.TRACKED_FLAGS)), threads=2)
)
RISCV = host.Host(os="linux", machine="riscv64")
PYTHON = interpreters.Interpreter(
    path=Path("/usr/bin/python3.11"),
    version="3.11.9",
)


class Said:
    """Progress that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        plain = PlainProgress(self.lines.append)
        self.note, self.task = plain.note, plain.task

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[host.Host], None]:
    """A plain host with a Python and a compiler, without an engine; `machine(other)` changes it."""

    def become(other: host.Host) -> None:
        monkeypatch.setattr(probe, "host", lambda *args, **options: other)

    become(PLAIN)
    monkeypatch.setattr(interpreters, "find", lambda *args, **options: PYTHON)
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(connection, "configured", lambda: False)
    return become


@pytest.fixture(autouse=True)
def doings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fetched and executed; nothing really is."""
    done: list[str] = []
    monkeypatch.setattr(fetch, "fetch", lambda *args: done.append("fetch"))
    monkeypatch.setattr(execute, "execute", lambda *args: done.append("execute") or 1.23456)
    return done


@pytest.fixture
def missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter, no compiler, no engine that answers."""

    def fail(*args: Any, **options: Any) -> Any:
        raise ToolError("nothing is installed")

    monkeypatch.setattr(interpreters, "find", fail)
    monkeypatch.setattr(process, "which", lambda program: None)
    monkeypatch.setattr(connection, "connect", fail)


@pytest.fixture
def missing_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download fails."""

    def fail(*args: Any) -> Any:
        raise BuildError("cannot be fetched")

    monkeypatch.setattr(fetch, "fetch", fail)


def add(found: Settings, text: str, lock: str | None = "fresh", name: str = "mine") -> None:
    """A profile of the user's, with a lock made from that of `cpu`: fresh, stale, unlocked."""
    folder = found.config_dir / "profiles"
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(f"description: Mine\n{text}")
    if lock is None:
        return
    profile = profiles.load(name, (folder, *SHIPPED))
    made = msgspec.structs.replace(
        lockfile.load(SHIPPED[0] / "locks" / "cpu.json"),
        profile=name,
        inputs="0" * 64 if lock == "stale" else lockfile.inputs_digest(profile),
        **({"state": "unlocked", "reason": "nobody did", "targets": ()} if lock == "none" else {}),
    )
    if lock == "3.12 only":
        targets = tuple(t for t in made.targets if t.python == "3.12")
        made = msgspec.structs.replace(made, targets=targets)
    (folder / "locks" / f"{name}.json").write_text(lockfile.dump(made))


def go(found: Settings, running: bool = True, said: Said | None = None, **asked: Any) -> Any:
    """Prepare and build, as the commands do."""
    request, progress = Request(**asked), said or Said()
    environment = prepare(request, found, progress, running=running).product
    return workflow.build(environment, request, found, progress)


def fails(found: Settings, kind: type[EnvbuilderError], running: bool = True, **asked: Any) -> str:
    with pytest.raises(EnvbuilderError) as caught:
        go(found, running, **asked)
    assert type(caught.value) is kind, caught.value.message
    return f"{caught.value.message} {caught.value.hint}"


# ---- the order of checks: where two things are wrong, the earlier one is told

FITS = "extends: cpu\n"
NO_GPU = "extends: cuda\n"
COMPILER = "extends: cpu\nsystem_packages: [g++, libtcmalloc-minimal4]\n"
MAC = "extends: mps\n"


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        (NO_GPU + "accelerater: cpu\n", {}, "Did you mean 'accelerator'?"),
        (MAC, {"backend": "docker"}, "has no docker backend"),
        (NO_GPU + "backends: [venv]\n", {"backend": "docker"}, "It has: venv."),
        (MAC, {"python": "3.9"}, "has no Python 3.9"),
        (NO_GPU, {"python": "3.10", "backend": "venv"}, "has no Python 3.10"),
    ],
)
def test_arguments_and_profile_come_before_the_host(
    found: Settings, text: str, asked: dict[str, Any], told: str, running: bool
) -> None:
    add(found, text, lock=None)
    assert told in fails(found, InvalidError, running, profile="mine", **asked)


def test_an_unknown_profile_comes_before_the_host(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the host must not be looked at")

    monkeypatch.setattr(probe, "host", refuse)
    assert "zendnn" in fails(found, InvalidError, profile="zendn")


@pytest.mark.parametrize("lock", [None, "none", "stale", "fresh"])
@pytest.mark.parametrize("backend", [None, "venv", "docker"])
def test_the_host_comes_before_the_lock(
    found: Settings, lock: str | None, backend: str | None
) -> None:
    add(found, NO_GPU, lock)
    assert "NVIDIA" in fails(found, HostError, profile="mine", backend=backend)


@pytest.mark.parametrize("lock", [None, "none", "stale"])
def test_what_cannot_exist_here_comes_before_the_lock_of_a_build(
    found: Settings, lock: str | None
) -> None:
    add(found, MAC, lock)
    assert "macos" in fails(found, HostError, running=False, profile="mine")


@pytest.mark.parametrize(
    ("lock", "told"), [(None, "has no lock"), ("none", "nobody did"), ("stale", "is stale")]
)
@pytest.mark.parametrize("backend", [None, "venv", "docker"])
def test_the_lock_comes_before_the_tools(
    found: Settings, missing_tools: None, lock: str | None, told: str, backend: str | None
) -> None:
    add(found, COMPILER, lock)
    shown = fails(found, InvalidError, profile="mine", backend=backend)
    assert told in shown
    assert "envbuilder lock --profile mine" in shown


@pytest.mark.parametrize("backend", ["venv", "docker"])
def test_a_python_that_the_lock_lacks_comes_before_the_tools(
    found: Settings, missing_tools: None, backend: str
) -> None:
    add(found, COMPILER, "3.12 only")
    shown = fails(found, InvalidError, profile="mine", backend=backend, python="3.11")
    assert "no files for linux/amd64 with Python 3.11" in shown


@pytest.mark.parametrize("backend", [None, "venv", "docker"])
def test_a_required_signature_of_the_lock_comes_before_the_tools(
    found: Settings, missing_tools: None, tmp_path: Path, backend: str | None
) -> None:
    key = signing.lay_key(tmp_path / "key.pem")
    signatures = Signatures(locks=(str(key.with_suffix(".pub")),))
    strict = msgspec.structs.replace(found, configuration=Configuration(signatures=signatures))
    add(strict, COMPILER)
    asked = {"profile": "mine", "backend": backend}
    assert "not signed" in fails(strict, UnsignedError, **asked)
    lock = strict.config_dir / "profiles" / "locks" / "mine.json"
    digest = {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    statement = statements.make([statements.Subject(digest=digest)], signed_lock.TYPE, {})
    beside.write(beside.path_for(lock), statement, signing.read_key(key))
    fails(strict, ToolError, **asked)


@pytest.mark.parametrize("backend", ["venv", "docker"])
@pytest.mark.parametrize("text", [FITS, COMPILER])
def test_the_tools_come_before_the_fetch(
    found: Settings,
    missing_tools: None,
    missing_files: None,
    doings: list[str],
    backend: str,
    text: str,
) -> None:
    add(found, text)
    fails(found, ToolError, profile="mine", backend=backend)
    assert doings == []
    assert not found.store_dir.exists()


def test_the_compiler_is_a_tool(
    found: Settings, monkeypatch: pytest.MonkeyPatch, missing_files: None
) -> None:
    add(found, COMPILER)
    monkeypatch.setattr(process, "which", lambda program: None)
    assert "C++ compiler" in fails(found, ToolError, profile="mine", backend="venv")


def test_the_fetch_comes_before_the_build(
    found: Settings, missing_files: None, doings: list[str]
) -> None:
    add(found, FITS)
    assert "cannot be fetched" in fails(found, BuildError, profile="mine", backend="venv")
    assert doings == []


def test_a_build_for_another_machine_needs_no_gpu_here(found: Settings) -> None:
    """`build` may run where the device is not; only the lock is missing then."""
    add(found, NO_GPU, lock=None)
    assert "no lock" in fails(found, InvalidError, running=False, profile="mine")


def test_force_skips_the_host_and_nothing_else(found: Settings) -> None:
    add(found, NO_GPU, lock=None)
    assert "no lock" in fails(found, InvalidError, profile="mine", force=True)
    told = fails(found, InvalidError, profile="mps", force=True)
    assert "no files for linux/amd64" in told


def test_the_hint_names_a_profile_that_fits(found: Settings) -> None:
    assert "`--profile cpu` fits this host" in fails(found, HostError, profile="cuda")


def test_another_profile_that_is_broken_is_no_obstacle(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(found, FITS)
    add(found, "accelerater: cpu\n", lock=None, name="broken")
    monkeypatch.setattr(
        VenvEnvironment,
        "existing",
        lambda self: msgspec.structs.replace(self.plan.artifact, digest="sha256:" + "0" * 64),
    )
    assert go(found, profile="mine", backend="venv").profile == "mine"


# ---- for another host than this machine


def written(tmp_path: Path, **changes: Any) -> Path:
    """A host as `detect --json` writes it: an RTX card in a PC, changed."""
    gpu = host.Gpu(vendor="nvidia", name="RTX", state="usable", driver_version="590.1", sm="8.9")
    other = msgspec.structs.replace(PLAIN, gpus=(gpu,), libc="glibc 2.36", **changes)
    path = tmp_path / "other.json"
    path.write_bytes(msgspec.json.encode({"schema": 1, "host": other}))
    return path


def test_a_named_host_decides_for_a_build(found: Settings, said: Said, tmp_path: Path) -> None:
    path = written(tmp_path)
    request = Request(target_host=path, backend="venv", dry_run=True)
    prepared = prepare(request, found, said, running=False)
    profile, here = prepared.profile, prepared.host
    assert (profile.name, here.gpus[0].name) == ("cuda", "RTX")
    assert "not this machine" in said
    # What runs here, runs here.
    prepared = prepare(request, found, said, running=True)
    profile, here = prepared.profile, prepared.host
    assert (profile.name, here) == ("cpu", PLAIN)


def test_what_a_named_host_cannot_run_is_not_built_for_it(found: Settings, tmp_path: Path) -> None:
    old = host.Gpu(vendor="nvidia", name="P100", state="usable", driver_version="590.1", sm="6.0")
    path = written(tmp_path)
    told = fails(found, HostError, running=False, profile="xpu", target_host=path)
    assert "no Intel GPU was found" in told
    data = msgspec.json.decode(path.read_bytes())
    data["host"]["gpus"] = [msgspec.to_builtins(old)]
    path.write_bytes(msgspec.json.encode(data))
    told = fails(found, HostError, running=False, profile="cuda", target_host=path)
    assert "P100 is SM 6.0; the wheels carry kernels for 7.5" in told
    assert "--profile cuda-legacy" in told


def test_a_native_environment_is_made_on_its_own_platform(found: Settings, tmp_path: Path) -> None:
    arm = written(tmp_path, machine="aarch64", platform="linux/arm64")
    told = fails(found, HostError, running=False, profile="cuda", backend="venv", target_host=arm)
    assert "for linux/arm64 cannot be made on linux/amd64" in told
    assert "--backend docker" in told


def test_assumed_gpus_count_for_builds_only(
    found: Settings, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILDER_TARGET_GPU", "nvidia:sm=8.9,driver=580.65")
    assert prepare(Request(), found, said, running=False).profile.name == "cuda"
    assert prepare(Request(), found, said, running=True).profile.name == "cpu"
    assert "assumed: ENVBUILDER_TARGET_GPU" in said


def test_what_speaks_against_a_build_is_said_before_it(found: Settings, said: Said) -> None:
    prepare(Request(profile="cuda", backend="venv"), found, said, running=False)
    assert "warning: no NVIDIA GPU was found" in said


def test_wheels_are_compared_between_the_fetch_and_the_build(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(files: Any, python: str, store: Any) -> None:
        doings.append(f"compare {len(files)} files for {python} in {store.root}")
        raise InvalidError("they do not go together")

    monkeypatch.setattr(wheel_conflicts, "require_compatible", refuse)
    assert "together" in fails(found, InvalidError, profile="cpu", backend="venv")
    assert doings == ["fetch", f"compare 12 files for 3.11 in {found.store_dir}"]
    same = plan.Artifact(kind="venv", ref="/env", digest="sha256:" + "0" * 64)
    monkeypatch.setattr(VenvEnvironment, "existing", lambda self: same)
    monkeypatch.setattr(documents, "ensure", lambda *args, **options: {})
    assert go(found, profile="cpu", backend="venv").status == "reused"
    assert len(doings) == 2


def test_a_full_disk_stops_a_build_before_the_fetch(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from envbuilder.packages import space

    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 5))
    told = fails(found, BuildError, profile="cpu", backend="venv")
    assert "not enough space" in told
    assert doings == []


# ---- which profile


def test_the_host_decides_and_the_reason_is_noted(
    found: Settings, said: Said, machine: Callable[[host.Host], None]
) -> None:
    prepared = prepare(Request(), found, said, running=True)
    profile, here = prepared.profile, prepared.host
    assert (profile.name, here) == ("cpu", PLAIN)
    assert "profile cpu: no accelerator fits this host" in said
    machine(ZEN5)
    prepare(Request(), found, said, running=True)
    assert "zendnn fits too" in said


def test_a_profile_that_was_asked_for_needs_no_reason(found: Settings, said: Said) -> None:
    prepare(Request(profile="cpu"), found, said, running=True)
    assert "profile cpu" not in said


def test_where_nothing_fits_that_is_said(
    found: Settings, machine: Callable[[host.Host], None]
) -> None:
    machine(RISCV)
    assert "no profile fits this machine" in fails(found, HostError)
    assert "envbuilder detect" in fails(found, HostError)


def configured(found: Settings, **options: Any) -> Settings:
    return msgspec.structs.replace(found, configuration=Configuration(**options))


def test_the_configuration_names_the_profile(found: Settings, said: Said) -> None:
    add(found, FITS)
    mine = configured(found, profile="mine")
    profile = prepare(Request(), mine, said, running=True).profile
    assert profile.name == "mine"
    assert "profile mine: set in the configuration" in said
    asked = prepare(Request(profile="cpu"), mine, said, running=True).profile
    assert asked.name == "cpu"


def test_a_configured_profile_must_exist_and_fit(found: Settings) -> None:
    assert "unknown profile" in fails(configured(found, profile="nope"), InvalidError)
    assert "NVIDIA" in fails(configured(found, profile="cuda"), HostError)


# ---- which backend

CPU = profiles.load("cpu", SHIPPED)
BASE = CPU.base["3.11"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """One that answers, and has no image."""
    return FakeEngine().serve(monkeypatch)


def chosen(found: Settings, profile: profiles.Profile = CPU, **asked: Any) -> tuple[str, str]:
    return workflow.choose_backend(profile, Request(**asked), found)


def test_without_an_engine_it_is_venv(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> Any:
        raise AssertionError("nothing suggests an engine: none is looked for")

    monkeypatch.setattr(connection, "connect", connect)
    assert chosen(found) == ("venv", "no container engine was found")
    # A base image that is set for good in the environment is no reason to fail where none is.
    assert chosen(found, base_image="site/python:3.11")[0] == "venv"


def test_an_engine_that_does_not_answer_is_told(
    found: Settings, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> Any:
        raise ToolError("no container engine answers: permission denied")

    monkeypatch.setattr(connection, "connect", connect)
    assert chosen(found) == ("venv", "no container engine answers: permission denied")


def test_an_engine_without_the_base_image_is_not_used(found: Settings, engine: FakeEngine) -> None:
    backend, reason = chosen(found)
    assert backend == "venv"
    assert reason == f"the base image {BASE.ref} is not in the engine"


def test_an_engine_with_the_base_image_is_used(found: Settings, engine: FakeEngine) -> None:
    engine.add(f"{BASE.ref}@{BASE.digest}")
    assert chosen(found) == ("docker", "an engine answers and has the base image")
    # The image of one Python does not do for another.
    assert chosen(found, python="3.12")[0] == "venv"


def test_a_given_or_configured_base_image_means_docker(found: Settings, engine: FakeEngine) -> None:
    assert chosen(found, base_image="site/python:3.11")[0] == "docker"
    mirrored = configured(found, base_images={BASE.ref: "mirror/python:3.11"})
    assert chosen(mirrored)[0] == "docker"
    other = configured(found, base_images={"python:3.12-slim-bookworm": "mirror/python:3.12"})
    assert chosen(other)[0] == "venv"


def test_a_python_without_a_base_image_is_told(found: Settings, engine: FakeEngine) -> None:
    assert chosen(found, python="3.13")[1] == "the profile has no base image for Python 3.13"


@pytest.mark.parametrize(
    ("backends", "expected"),
    [(("venv",), "venv"), (("conda", "venv"), "venv"), (("docker",), "docker")],
)
def test_a_profile_that_leaves_no_choice(
    found: Settings, backends: tuple[Any, ...], expected: str
) -> None:
    profile = msgspec.structs.replace(CPU, backends=backends)
    assert chosen(found, profile) == (expected, "the only one that 'cpu' has")


@pytest.mark.parametrize(
    ("has", "expected"),
    [(("conda",), "conda"), (("venv", "conda"), "venv"), (("docker", "conda"), "docker")],
)
def test_conda_is_chosen_only_where_there_is_nothing_else(
    found: Settings, has: tuple[types.Backend, ...], expected: str
) -> None:
    profile = msgspec.structs.replace(CPU, backends=has)
    assert chosen(found, profile) == (expected, "the only one that 'cpu' has")


def test_the_choice_of_a_backend_is_noted(
    found: Settings, said: Said, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(Request(profile="cpu"), found, said, running=True).product
    assert first.plan.backend == "venv"
    assert f"backend venv: the base image {BASE.ref} is not in the engine" in said
    engine.add(f"{BASE.ref}@{BASE.digest}")
    monkeypatch.setattr(docker, "prepare", lambda *args: first)
    second = prepare(Request(profile="cpu"), found, said, running=True).product
    assert second is first
    assert "backend docker: an engine answers" in said


def test_a_backend_that_was_asked_for_is_not_explained(found: Settings, said: Said) -> None:
    prepare(Request(profile="cpu", backend="venv"), found, said, running=True)
    assert "backend venv:" not in said


# ---- what is said about the profile and its lock


def relocked(found: Settings, provenance: str) -> None:
    """`mine`, whose torch has a hash of this provenance and everything else a read one."""
    add(found, FITS + "warnings: [It is slow]\n")
    path = found.config_dir / "profiles" / "locks" / "mine.json"
    data = json.loads(path.read_text())
    for target in data["targets"]:
        for file in target["files"]:
            torch = file["name"] == "torch"
            changed = {"provenance": provenance, "by": "a stranger"}
            file.update(changed if torch else {"provenance": "read"})
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("provenance", ["claim", "assumed"])
def test_claimed_hashes_are_noted(found: Settings, said: Said, provenance: str) -> None:
    relocked(found, provenance)
    prepare(Request(profile="mine", backend="venv"), found, said, running=True)
    (note,) = [line for line in said.lines if "claimed" in line]
    assert note.endswith("confirms: torch 2.13.0+cpu (a stranger)")
    assert "note: It is slow" in said


def test_hashes_that_were_read_need_no_note(found: Settings, said: Said) -> None:
    relocked(found, "read")
    prepare(Request(profile="mine", backend="venv"), found, said, running=True)
    assert "claimed" not in said


# ---- built or reused


def finish(made: Any) -> None:
    """What an execution of the plan leaves."""
    prefix = Path(made.artifact.ref)
    prefix.mkdir(parents=True)
    integrity.close(prefix, {"fingerprint": made.fingerprint})


def test_what_is_missing_is_built_and_what_exists_is_reused(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def performed(made: Any, *rest: Any) -> None:
        doings.append("execute")
        finish(made)

    clock = iter([100.0, 112.34567])  # from before the fetch until after the attestations
    monkeypatch.setattr(workflow, "time", SimpleNamespace(monotonic=lambda: next(clock, 0.0)))
    monkeypatch.setattr(execute, "execute", performed)
    first = go(found, profile="cpu", backend="venv")
    assert doings == ["fetch", "execute"]
    assert (first.status, first.seconds) == ("built", 12.346)
    assert Path(first.artifact.ref).is_dir()
    second = go(found, profile="cpu", backend="venv")
    assert doings == ["fetch", "execute"]
    assert (second.status, second.seconds) == ("reused", 0.0)
    assert second.artifact == first.artifact
    assert second.fingerprint == first.fingerprint
    data = msgspec.to_builtins(second)
    assert data["schema"] == 1
    assert set(data) >= {"status", "profile", "backend", "builder", "artifact", "fingerprint"}


def test_what_made_the_base_is_told_with_what_made_the_rest(found: Settings) -> None:
    request = Request(profile="cpu", backend="venv")
    environment = prepare(request, found, Said(), running=False).product
    folder = found.cache_dir / "bases" / "debian"
    folder.mkdir(parents=True)
    (folder / "made-by.json").write_text('{"mmdebstrap": "1.3.5"}')
    base = plan.MakeBase(
        what="make", identity="0" * 64, ref="debian", suite="bookworm", platform="linux/amd64",
        files=(), epoch=0, unpacked=False, layout=str(folder),
    )  # fmt: skip
    finish(environment.plan)
    environment.plan = msgspec.structs.replace(environment.plan, steps=(base,))
    result = workflow.build(environment, request, found, Said())
    assert result.made_by == environment.made_by() | {"mmdebstrap": "1.3.5"}
    told = json.loads(Path(result.documents["provenance"]).read_text())
    assert told["predicate"]["runDetails"]["builder"]["version"]["mmdebstrap"] == "1.3.5"


def test_rebuild_builds_although_it_exists(found: Settings, doings: list[str]) -> None:
    environment = prepare(
        Request(profile="cpu", backend="venv"), found, Said(), running=False
    ).product
    finish(environment.plan)
    assert go(found, profile="cpu", backend="venv").status == "reused"
    assert doings == []
    assert go(found, profile="cpu", backend="venv", rebuild=True).status == "built"
    assert doings == ["fetch", "execute"]


@pytest.mark.parametrize(
    "marker", ["", "{", "[]", '{"fingerprint": "other"}', '{"made_by": "envbuilder"}']
)
def test_a_prefix_that_is_not_exactly_this_one_is_not_reused(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    environment = prepare(
        Request(profile="cpu", backend="venv"), found, Said(), running=False
    ).product
    finish(environment.plan)
    path = Path(environment.plan.artifact.ref) / integrity.MARKER
    path.write_text(marker)

    def performed(made: Any, *rest: Any) -> float:
        doings.append("execute")
        integrity.close(path.parent, {"fingerprint": made.fingerprint})
        return 0.0

    monkeypatch.setattr(execute, "execute", performed)
    assert go(found, profile="cpu", backend="venv").status == "built"
    assert doings == ["fetch", "execute"]


def test_a_plan_changes_nothing(found: Settings, doings: list[str]) -> None:
    prepare(Request(profile="cpu"), found, Said(), running=False)
    assert doings == []
    assert not found.cache_dir.exists()
    assert not found.data_dir.exists()


@pytest.mark.parametrize("base_image", [None, "mine:1"])
def test_a_base_that_cannot_be_had_names_the_profile_that_needs_none(
    found: Settings, monkeypatch: pytest.MonkeyPatch, base_image: str | None
) -> None:
    def fail(*args: Any) -> Any:
        raise BuildError("docker.io does not answer", "Name another.")

    monkeypatch.setattr(docker, "prepare", fail)
    request = Request(profile="cpu", backend="docker", python="3.11", base_image=base_image)
    own = found.config_dir / "profiles"
    own.mkdir(parents=True)
    (own / "broken.yaml").write_text("extends: nothing\n")  # the reason given stays the first one
    with pytest.raises(BuildError) as caught:
        prepare(request, found, Said(), running=False)
    assert ("--profile cpu-debian" in caught.value.hint) == (base_image is None)
    assert caught.value.hint.startswith("Name another.")
    assert caught.value.exit_code == 1


# ---- GPUs that do not work are hidden from what runs

OLD = host.Gpu(
    vendor="nvidia", name="GTX 1080", state="usable", bus="0000:01:00.0", sm="6.1",
    driver_version="580.95.05",
)  # fmt: skip
NEW = msgspec.structs.replace(OLD, name="RTX 5090", bus="0000:41:00.0", sm="12.0")


@pytest.mark.parametrize(
    ("gpus", "own", "expected", "note"),
    [
        ((NEW,), "", {}, ""),
        (
            (OLD, NEW),
            "",
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"},
            "GPUs: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 hides those",
        ),
        ((OLD, NEW), "0", {"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0 is set"),
    ],
)
def test_gpus_that_do_not_work_are_hidden_from_what_runs(
    found: Settings,
    machine: Callable[[host.Host], None],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[host.Gpu, ...],
    own: str,
    expected: dict[str, str],
    note: str,
) -> None:
    machine(msgspec.structs.replace(PLAIN, gpus=gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    request = Request(profile="cuda", backend="venv", python="3.11")
    _, environment = workflow.prepare_to_run(request, found, said)
    assert environment.device_variables == expected
    assert not note or note in said
