"""`envbuilder matrix`: the jobs of a project, for any CI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.conda import lock as conda_locks
from envbuilder.profiles import profile as profiles
from envbuilder.project import catalog
from tests.support import command_line
from tests.support.conda_locks import lock_of_python
from tests.support.projects import FOLDERS, lay_locked, write_lock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_locked(tmp_path, monkeypatch)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    done = command_line.printed(capsys, "matrix", *options)
    return done.code, done.out + done.err


def as_json(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    code, printed = run(capsys, *options, "--json")
    assert code == 0, printed
    return json.loads(printed)


def test_a_projects_environments(
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = as_json(capsys)
    assert data["schema"] == 1
    assert data["left_out"] == []
    assert [(row["id"], row["lock"]) for row in data["matrix"]] == [
        (f"default.cpu-linux-{arch}-py3.11-venv", "envbuilder.lock/default.cpu.json")
        for arch in ("amd64", "arm64")
    ]
    code, printed = run(capsys)
    assert (code, printed.count("verify")) == (0, 2)


def test_a_project_whose_conda_packages_are_locked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "envbuilder.lock" / "default.cpu.conda.json"
    assert "conda packages are not locked" in run(capsys, "--backend", "conda")[1]
    variants = catalog.variants(load_settings())
    assert variants is not None
    variant = variants.of(profiles.load("cpu", FOLDERS))
    path.write_text(conda_locks.dump(lock_of_python(variant)))
    (row,) = as_json(capsys, "--backend", "conda")["matrix"]
    assert row["id"] == "default.cpu-linux-amd64-py3.11-conda"
    assert row["conda_lock"] == "envbuilder.lock/default.cpu.conda.json"
    assert row["lock"] == "envbuilder.lock/default.cpu.json"
    path.write_text(conda_locks.dump(replace(lock_of_python(variant), inputs="0" * 64)))
    code, printed = run(capsys)
    assert code == 2
    assert "the conda lock of 'cpu' is stale" in printed


def test_conda_packages_that_nothing_else_can_hold_must_be_locked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "environment.yml").write_text("dependencies: [python=3.11, ffmpeg]\n")
    (project / "envbuilder.yaml").write_text(
        "profiles: [cpu]\npython: '3.11'\nrequirements_from: [environment.yml]\n"
    )
    write_lock(project)
    code, printed = run(capsys)
    assert code == 2
    assert "profile 'cpu' has no conda lock" in printed


def test_a_profiles_own_conda_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config" / "profiles" / "locks"
    folder.mkdir(parents=True)
    cpu = profiles.load("cpu", FOLDERS)
    (folder / "cpu.conda.json").write_text(conda_locks.dump(lock_of_python(cpu)))
    (row,) = as_json(capsys, "--profiles", "cpu", "--backend", "conda")["matrix"]
    assert (row["backend"], row["lock"], row["conda_lock"]) == (
        *("conda", ""),
        "config/profiles/locks/cpu.conda.json",
    )


def test_a_stale_lock_of_a_listed_profile_is_refused(
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / "envbuilder.yaml").write_text(
        "profiles: [cpu]\npython: '3.11'\nrequirements: [rich]\n"
    )
    code, printed = run(capsys)
    assert code == 2
    assert "stale" in printed


def test_shipped_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(resources.profiles_dir().parent)
    data = as_json(capsys, "--runner", "cuda=gpu-box")
    rows = {row["profile"]: row for row in reversed(data["matrix"])}
    assert {"cpu", "zendnn", "jax-cpu", "tensorflow-cpu", "cuda", "mps"} <= set(rows)
    assert (rows["cuda"]["runner"], rows["cuda"]["what"]) == ("gpu-box", "verify")
    assert rows["cpu"]["lock"] == "profiles/locks/cpu.json"
    assert "cpu-ipex" not in rows
    monkeypatch.chdir(tmp_path)
    (row,) = as_json(capsys, "--profiles", "cpu-ipex")["matrix"]
    assert (row["profile"], row["lock"]) == ("cpu-ipex", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profiles", "cpu,$(id)"], "is not the name of a profile"),
        (["--profiles", "nothing"], "nothing"),
        (["--python-version", "3"], "is not like 3.12"),
        (["--runner", "cuda"], "is not like cuda=LABEL"),
        (["--runner", "cuda=${{ x }}"], "is not like cuda=LABEL"),
        (["--runner", "cuda@arm=x"], "is not like cuda=LABEL"),
        (["--runner", "cudda=x"], "no profile in the matrix is or has cudda"),
        (["--runner", "cuda=a\nb"], "is not like cuda=LABEL"),
    ],
)
def test_names_from_outside_are_checked(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = run(capsys, *options)
    assert code == 2
    assert message in printed
