"""The order of checks: where two things are wrong, the earlier one is named."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.builds import attestations, plan
from envbuilder.builds.backends.venv import NativeEnvironment
from envbuilder.builds.image import base
from envbuilder.builds.pipeline import prepare
from envbuilder.builds.request import Request
from envbuilder.core import process, signatures
from envbuilder.core.errors import BuildError, HostError, InvalidError, ToolError
from envbuilder.core.settings import Configuration, Settings, Signatures
from envbuilder.core.signatures import UnsignedError
from envbuilder.host import model as host, probe
from envbuilder.packages import store
from envbuilder.packages.python import libraries, wheel_conflicts
from envbuilder.packages.store import Store
from envbuilder.profiles import library
from tests.support import signing
from tests.support.pipeline import FITS, PLAIN, Said, add, fails, go
from tests.support.recorded import replaced

NO_GPU = "extends: cuda\n"
COMPILER = "extends: cpu\nsystem_packages: [g++, libtcmalloc-minimal4]\n"
MAC = "extends: mps\n"
every_backend = pytest.mark.parametrize("backend", [None, "venv", "docker"])


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
    monkeypatch.setattr(
        probe, "host", Mock(side_effect=AssertionError("the host must not be looked at"))
    )
    assert "zendnn" in fails(found, InvalidError, profile="zendn")


@pytest.mark.parametrize("lock", [None, "none", "stale", "fresh"])
@every_backend
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
@every_backend
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


@every_backend
def test_a_required_signature_of_the_lock_comes_before_the_tools(
    found: Settings, missing_tools: None, tmp_path: Path, backend: str | None
) -> None:
    key = signing.lay_key(tmp_path / "key.pem")
    required = Signatures(locks=(str(key.with_suffix(".pub")),))
    strict = replace(found, configuration=Configuration(signatures=required))
    add(strict, COMPILER)
    asked = {"profile": "mine", "backend": backend}
    assert "not signed" in fails(strict, UnsignedError, **asked)
    lock = strict.config_dir / "profiles/locks/mine.json"
    digest = {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    statement = signatures.make_statement(
        [signatures.Subject(digest=digest)], library.LOCK_TYPE, {}
    )
    signatures.write_signatures(signatures.path_beside(lock), statement, signing.read_key(key))
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
        NativeEnvironment,
        "existing",
        lambda self: replace(self.plan.artifact, digest="sha256:" + "0" * 64),
    )
    assert go(found, profile="mine", backend="venv").profile == "mine"


# ---- for another host than this machine


def written(tmp_path: Path, **changes: Any) -> Path:
    """A host as `detect --json` writes it: an RTX card in a PC, changed."""
    gpu = host.Gpu(vendor="nvidia", name="RTX", state="usable", driver_version="590.1", sm="8.9")
    other = replace(PLAIN, gpus=(gpu,), libc="glibc 2.36", **changes)
    path = tmp_path / "other.json"
    path.write_bytes(msgspec.json.encode({"schema": 1, "host": other}))
    return path


def test_a_named_host_decides_for_a_build(found: Settings, said: Said, tmp_path: Path) -> None:
    path = written(tmp_path)
    request = Request(target_host=path, backend="venv", dry_run=True)
    prepared = prepare(request, found, said, running=False)
    profile = prepared.profile
    here = prepared.host
    assert (profile.name, here.gpus[0].name) == ("cuda", "RTX")
    assert "not this machine" in said
    # What runs here, runs here.
    prepared = prepare(request, found, said, running=True)
    profile = prepared.profile
    here = prepared.host
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
    assert "P100 is SM 6.0, but the wheels have kernels for 7.5" in told
    assert "--profile cuda-legacy" in told


def test_a_native_environment_is_made_on_its_own_platform(found: Settings, tmp_path: Path) -> None:
    arm = written(tmp_path, machine="aarch64", platform="linux/arm64")
    told = fails(found, HostError, running=False, profile="cuda", backend="venv", target_host=arm)
    assert "for linux/arm64 on linux/amd64" in told
    assert "--backend docker" in told


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
    monkeypatch.setattr(NativeEnvironment, "existing", lambda self: same)
    replaced(monkeypatch, attestations, "ensure", {})
    assert go(found, profile="cpu", backend="venv").status == "reused"
    assert len(doings) == 2


@pytest.mark.parametrize("profile", ["cuda", "cpu"])
def test_packages_for_other_gpus_are_named_once(
    found: Settings, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str
) -> None:
    path = written(tmp_path)
    read = {"kernels-1": {"sm_70": 5}, "libraries-1": {"x.so": ["libgomp.so.1"]}}
    monkeypatch.setattr(Store, "derived", lambda self, sha256, what, *_: read[what])
    replaced(monkeypatch, wheel_conflicts, "require_compatible", None)
    with pytest.raises(BuildError, match="is missing, or another process changed it"):
        go(found, False, said, profile=profile, backend="venv", target_host=path)
    named = [line.split()[1] for line in said.lines if "has no kernels for" in line]
    # The framework and its libraries are not read: the table of its releases knows them.
    assert ("sympy" in named) == (profile == "cuda")
    assert not {"torch", "nvidia-cudnn-cu13"} & {*named}
    assert len(named) == len({*named})


@pytest.mark.parametrize("cache", [b"libgomp.so.1\0", b"libother.so.1\0"])
def test_libraries_that_this_machine_lacks_are_named(
    found: Settings, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: bytes
) -> None:
    (tmp_path / "ld.so.cache").write_bytes(cache)
    monkeypatch.setattr(libraries, "_CACHE", tmp_path / "ld.so.cache")
    read = {"sympy/x.so": ["libgomp.so.1"]}
    monkeypatch.setattr(Store, "derived", lambda *_: read)
    replaced(monkeypatch, wheel_conflicts, "require_compatible", None)
    with pytest.raises(BuildError, match="is missing, or another process changed it"):
        go(found, said=said, profile="cpu", backend="venv")
    assert ("warning: sympy lacks libgomp.so.1. For this machine" in said) == (b"other" in cache)


def test_a_full_disk_stops_a_build_before_the_fetch_and_after_a_base_of_another_python(
    found: Settings, doings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 5))
    assert "not enough space" in fails(found, BuildError, profile="cpu", backend="venv")
    monkeypatch.setattr(
        base,
        "require_python",
        Mock(side_effect=BuildError("Python 3.12 is needed, but the base image has 3.11")),
    )
    assert "the base image has 3.11" in fails(found, BuildError, profile="cpu", backend="venv")
    assert doings == []
