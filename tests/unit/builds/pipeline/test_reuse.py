"""What is said of a lock, and what is built or reused."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.builds import execute, pipeline, plan
from envbuilder.builds.backends import docker, integrity
from envbuilder.builds.pipeline import prepare
from envbuilder.builds.request import Request
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Definition, Settings
from envbuilder.host import model as host
from tests.support.folders import read_json
from tests.support.pipeline import FITS, PLAIN, SHIPPED, Said, add, fails, go
from tests.support.repositories import lay

build_venv = functools.partial(go, profile="cpu", backend="venv")


def prepared(
    found: Settings, said: Said | None = None, name: str = "cpu", *, running: bool = False
) -> Any:
    """A native build of a profile as far as its plan."""
    request = Request(profile=name, backend="venv")
    return prepare(request, found, said or Said(), running=running)


# ---- what is said about the profile and its lock


def relocked(found: Settings, provenance: str) -> None:
    """`mine`, whose torch has a hash of this provenance and everything else a read one."""
    add(found, FITS + "warnings: [It is slow]\n")
    path = found.config_dir / "profiles/locks/mine.json"
    data = read_json(path)
    for target in data["targets"]:
        for file in target["files"]:
            torch = file["name"] == "torch"
            changed = {"provenance": provenance, "by": "a stranger"}
            file.update(changed if torch else {"provenance": "read"})
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("provenance", ["claim", "assumed"])
def test_claimed_hashes_are_noted(found: Settings, said: Said, provenance: str) -> None:
    relocked(found, provenance)
    prepared(found, said, "mine", running=True)
    (note,) = [line for line in said.lines if "claimed" in line]
    assert note.endswith("download: torch 2.13.0+cpu (a stranger)")
    assert "note: It is slow" in said


def test_hashes_that_were_read_need_no_note(found: Settings, said: Said) -> None:
    relocked(found, "read")
    prepared(found, said, "mine", running=True)
    assert "claimed" not in said


def test_a_shipped_lock_that_is_newer_than_the_users_own_is_noted(
    found: Settings, said: Said
) -> None:
    own = found.config_dir / "profiles/locks/cpu.json"
    own.parent.mkdir(parents=True)
    data = read_json(SHIPPED[0] / "locks/cpu.json")
    own.write_text(json.dumps(data))
    prepared(found, said, running=True)
    assert "replaces the shipped lock" not in said
    for file in (f for target in data["targets"] for f in target["files"]):
        if file["name"] == "jinja2":
            file.update(version="1.0", file="jinja2-1.0-py3-none-any.whl")
    own.write_text(json.dumps(data))
    prepared(found, said, running=True)
    (note,) = [line for line in said.lines if "replaces the shipped lock" in line]
    assert note.startswith(f"note: {own} replaces")


# ---- built or reused


def finish(made: Any) -> None:
    """What an execution of the plan leaves."""
    prefix = Path(made.artifact.ref)
    prefix.mkdir(parents=True, exist_ok=True)
    integrity.close(prefix, {"fingerprint": made.fingerprint})


@pytest.fixture
def finishing(doings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution leaves the environment."""

    def performed(made: Any, *rest: Any) -> bool:
        doings.append("execute")
        finish(made)
        return True

    monkeypatch.setattr(execute, "execute", performed)


def test_what_is_missing_is_built_and_what_exists_is_reused(
    found: Settings, doings: list[str], finishing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 112.34567])  # from before the fetch until after the attestations
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: next(clock, 0.0)))
    first = build_venv(found)
    assert doings == ["fetch", "execute"]
    assert (first.status, first.seconds) == ("built", 12.346)
    assert Path(first.artifact.ref).is_dir()
    second = build_venv(found)
    assert doings == ["fetch", "execute"]
    assert (second.status, second.seconds) == ("reused", 0.0)
    assert second.artifact == first.artifact
    assert second.fingerprint == first.fingerprint
    data = msgspec.to_builtins(second)
    assert data["schema"] == 1
    assert set(data) >= {"status", "profile", "backend", "builder", "artifact", "fingerprint"}


def test_what_made_the_base_is_told_with_what_made_the_rest(found: Settings) -> None:
    build = prepared(found)
    folder = found.cache_dir / "bases/debian"
    lay(folder, {"made-by.json": '{"mmdebstrap": "1.3.5"}'})
    base = plan.MakeBase(
        what="make", identity="0" * 64, ref="debian", suite="bookworm", platform="linux/amd64",
        files=(), epoch=0, unpacked=False, layout=str(folder),
    )  # fmt: skip
    finish(build.plan)
    build.environment.plan = replace(build.plan, steps=(base,))
    result = pipeline.finish(build).result
    assert result.made_by == build.product.made_by() | {"mmdebstrap": "1.3.5"}
    told = read_json(Path(result.documents["provenance"]))
    assert told["predicate"]["runDetails"]["builder"]["version"]["mmdebstrap"] == "1.3.5"


def test_rebuild_builds_although_it_exists(found: Settings, doings: list[str]) -> None:
    finish(prepared(found).plan)
    assert build_venv(found).status == "reused"
    assert doings == []
    assert build_venv(found, rebuild=True).status == "built"
    assert doings == ["fetch", "execute"]


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_is_reused_gets_its_names_whoever_built_it(
    found: Settings, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    build = prepared(found)
    named = list[str]()
    monkeypatch.setattr(build.product, "restore_names", lambda: named.append("named"))
    monkeypatch.setattr(execute, "execute", lambda made, *rest: finish(made))
    if not meanwhile:
        finish(build.plan)
    assert pipeline.finish(build).result.status == "reused"
    assert named == ["named"]


def test_a_build_that_is_removed_again_leaves_the_projects_link_alone(
    found: Settings, doings: list[str], tmp_path: Path
) -> None:
    build = prepared(found)
    finish(build.plan)
    project = replace(found, project=tmp_path, definition=Definition())
    build = replace(build, settings=project)
    removed = replace(build.request, only_tag="x")
    pipeline.finish(replace(build, request=removed))
    assert not (tmp_path / ".envbuilder").exists()
    pipeline.finish(build)
    assert (tmp_path / ".envbuilder/default").readlink() == Path(build.plan.artifact.ref)


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "{",
        "[]",
        '{"fingerprint": "other"}',
        '{"made_by": "envbuilder"}',
    ],
)
def test_a_prefix_that_is_not_exactly_this_one_is_not_reused(
    found: Settings, doings: list[str], finishing: None, marker: str
) -> None:
    made = prepared(found).plan
    finish(made)
    (Path(made.artifact.ref) / integrity.MARKER).write_text(marker)
    assert build_venv(found).status == "built"
    assert doings == ["fetch", "execute"]


SITE = "lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (f"{SITE}/torch/lib", f"{SITE}/torch/lib/libtorch.so"),
        (f"{SITE}/torch-2.13.0.dist-info", f"{SITE}/torch-2.13.0.dist-info/RECORD"),
        (f"{SITE}/six.py", f"{SITE}/six.py"),
        ("../python3.11", "bin/python"),
    ],
)
def test_an_environment_that_has_lost_files_is_damaged_and_built_again(
    found: Settings,
    doings: list[str],
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    named: str,
) -> None:
    """Also by an upgrade of the system, which removes the interpreter that it links to."""
    build = prepared(found, said)
    prefix = Path(build.plan.artifact.ref)
    installed = ("torch/lib/libtorch.so", "torch-2.13.0.dist-info/RECORD", "six.py")
    lay(prefix / SITE, dict.fromkeys(("torch/__init__.py", *installed), "x"))
    (prefix.parent / "python3.11").touch()
    (prefix / "bin").mkdir()
    (prefix / "bin/python").symlink_to(prefix.parent / "python3.11")
    integrity.close(prefix, {"fingerprint": build.plan.fingerprint})
    assert build_venv(found, said=said).status == "reused"
    gone = prefix / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    def performed(made: Any, *rest: Any) -> bool:
        (prefix / "bin/python").unlink(missing_ok=True)
        integrity.close(prefix, {"fingerprint": made.fingerprint})
        return True

    monkeypatch.setattr(execute, "execute", performed)
    assert build_venv(found, said=said).status == "built"
    assert doings == ["fetch"]
    assert f"note: building again: {prefix} is damaged: {named} is missing" in said


def test_what_a_command_runs_in_is_not_built_again(found: Settings, doings: list[str]) -> None:
    build = prepared(found)
    finish(build.plan)
    running = pipeline.finish(build)
    asked: dict[str, Any] = {"profile": "cpu", "backend": "venv", "rebuild": True}
    assert "because a running command uses it" in fails(found, BuildError, running=False, **asked)
    assert doings == []
    del build, running
    assert go(found, **asked).status == "built"


def test_a_plan_changes_nothing(found: Settings, doings: list[str]) -> None:
    prepare(Request(profile="cpu"), found, Said(), running=False)
    assert doings == []
    assert not found.cache_dir.exists()
    assert not found.data_dir.exists()


@pytest.mark.parametrize("base_image", [None, "mine:1"])
def test_a_base_that_cannot_be_had_names_the_profile_that_needs_none(
    found: Settings, monkeypatch: pytest.MonkeyPatch, base_image: str | None
) -> None:
    monkeypatch.setattr(
        docker,
        "prepare",
        Mock(side_effect=BuildError("docker.io does not answer", "Name another.")),
    )
    request = Request(profile="cpu", backend="docker", python="3.11", base_image=base_image)
    # The reason given stays the first one.
    lay(found.config_dir, {"profiles/broken.yaml": "extends: nothing\n"})
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
NEW = replace(OLD, name="RTX 5090", bus="0000:41:00.0", sm="12.0")


@pytest.mark.parametrize(
    ("gpus", "own", "expected", "note"),
    [
        ((NEW,), "", {}, ""),
        (
            (OLD, NEW),
            "",
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"},
            "GPUs: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 hides GPUs",
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
    machine(replace(PLAIN, gpus=gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    request = Request(profile="cuda", backend="venv", python="3.11")
    environment = prepare(request, found, said, running=True).environment
    assert environment.device_variables == expected
    assert not note or note in said
