"""`envbuilder ci`: the jobs of a project, and the workflow that has them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder import __version__
from envbuilder.bundle import self_wheel
from envbuilder.core import resources
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import upstream
from envbuilder.packages.conda import lock as conda_locks
from envbuilder.packages.fetch import Place
from envbuilder.profiles import profile as profiles
from envbuilder.project import variants
from tests.support.command_line import FILE, Command
from tests.support.conda_locks import lock_of_python
from tests.support.projects import lay_locked, write_lock
from tests.support.shipped import FOLDERS
from tests.support.user_index import refused


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_locked(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def ci(envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "ci", "--provider", "github")


@pytest.fixture
def matrix(ci: Command) -> Callable[..., Any]:
    return lambda *options: json.loads("".join(ci("--json", *options)[1:]))


def test_a_projects_environments(
    project: Path,
    matrix: Callable[..., Any],
) -> None:
    data = matrix()
    assert (data["schema"], data["left_out"]) == (1, [])
    assert [(row["id"], row["lock"]) for row in data["matrix"]] == [
        (f"default.cpu-linux-{arch}-py3.11-venv", "envbuilder.lock/default.cpu.json")
        for arch in ("amd64", "arm64")
    ]
    assert {row["what"] for row in data["matrix"]} == {"verify"}


def test_a_project_whose_conda_packages_are_locked(
    project: Path, matrix: Callable[..., Any], ci: Command
) -> None:
    path = project / "envbuilder.lock/default.cpu.conda.json"
    assert "conda packages are not locked" in ci("--json", "--backend", "conda").out
    project = variants.of_project(load_settings())
    variant = project.of(profiles.load("cpu", FOLDERS))
    path.write_text(conda_locks.dump(lock_of_python(variant)))
    (row,) = matrix("--backend", "conda")["matrix"]
    assert row["id"] == "default.cpu-linux-amd64-py3.11-conda"
    assert row["conda_lock"] == "envbuilder.lock/default.cpu.conda.json"
    assert row["lock"] == "envbuilder.lock/default.cpu.json"
    path.write_text(conda_locks.dump(replace(lock_of_python(variant), inputs="0" * 64)))
    assert "the conda lock of 'cpu' is stale" in ci("--json", code=2).err


def test_conda_packages_that_nothing_else_can_hold_must_be_locked(
    project: Path, ci: Command
) -> None:
    (project / "environment.yml").write_text("dependencies: [python=3.11, ffmpeg]\n")
    FILE.write_text("profiles: [cpu]\npython: '3.11'\nrequirements_from: [environment.yml]\n")
    write_lock(project)
    assert "profile 'cpu' has no conda lock" in ci("--json", code=2).err


def test_a_profiles_own_conda_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Callable[..., Any]
) -> None:
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(tmp_path / "config"))
    folder = tmp_path / "config/profiles/locks"
    folder.mkdir(parents=True)
    cpu = profiles.load("cpu", FOLDERS)
    (folder / "cpu.conda.json").write_text(conda_locks.dump(lock_of_python(cpu)))
    (row,) = matrix("--profile", "cpu", "--backend", "conda")["matrix"]
    assert (row["backend"], row["lock"], row["conda_lock"]) == (
        "conda",
        "",
        "config/profiles/locks/cpu.conda.json",
    )


def test_a_stale_lock_of_a_listed_profile_is_refused(project: Path, ci: Command) -> None:
    FILE.write_text("profiles: [cpu]\npython: '3.11'\nrequirements: [rich]\n")
    assert "stale" in ci("--json", code=2).err


def test_shipped_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: Callable[..., Any]
) -> None:
    monkeypatch.chdir(resources.profiles_dir().parent)
    data = matrix("--runner", "cuda=gpu-box")
    rows = {row["profile"]: row for row in reversed(data["matrix"])}
    assert {"cpu", "zendnn", "jax-cpu", "tensorflow-cpu", "cuda", "mps"} <= set(rows)
    assert (rows["cuda"]["runner"], rows["cuda"]["what"]) == ("gpu-box", "verify")
    assert rows["cpu"]["lock"] == "profiles/locks/cpu.json"
    assert "cpu-ipex" not in rows
    monkeypatch.chdir(tmp_path)
    (row,) = matrix("--profile", "cpu-ipex")["matrix"]
    assert (row["profile"], row["lock"]) == ("cpu-ipex", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "cpu,$(id)"], "unknown profile '$(id)'"),
        (["--profile", "nothing"], "nothing"),
        (["--python-version", "3"], "is not a Python version such as 3.12"),
        (["--runner", "cuda"], "does not have the form cuda=LABEL"),
        (["--runner", "cuda=${{ x }}"], "does not have the form cuda=LABEL"),
        (["--runner", "cuda@arm=x"], "does not have the form cuda=LABEL"),
        (
            ["--runner", "cudda=x"],
            "no selected profile has the name or the accelerator cudda",
        ),
        (["--runner", "cuda=a\nb"], "does not have the form cuda=LABEL"),
    ],
)
def test_names_from_outside_are_checked(options: list[str], message: str, ci: Command) -> None:
    assert message in ci("--json", *options, code=2).err


WORKFLOW = ".github/workflows/environments.yml"
PINS = WORKFLOW.replace(".yml", ".requirements.txt")
WHEEL = f"ci/envbuilder_ml-{__version__}-py3-none-any.whl"


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the index have this very version, and what it requires."""
    wheel = self_wheel.Wheel(file="x.whl", content=b"released")
    monkeypatch.setattr(self_wheel, "released", lambda _: wheel)
    monkeypatch.setattr(self_wheel, "pinned", lambda *_: "click==8.2 --hash=sha256:00\n")


def test_it_is_written_checked_and_written_again(
    project: Path, released: None, ci: Command
) -> None:
    options = ("--platform", "linux/amd64", "--runner", "cpu=epyc", "--quick", "--output", WORKFLOW)
    ci(*options, "--check", code=2)
    done = ci(*options)
    assert (done.code, done.out) == (0, f"{WORKFLOW}\n{PINS}\n")
    assert "default.cpu-linux-amd64-py3.11-venv: verify at each push, on epyc" in done.err
    builds = project / WORKFLOW.replace(".yml", "-builds.yml")
    builds.touch()
    assert f"{builds.name} is no longer needed" in ci(*options).err
    text = (project / WORKFLOW).read_text()
    command = (
        "envbuilder ci --provider github --platform linux/amd64 --runner cpu=epyc --quick"
        f" --output {WORKFLOW}"
    )
    assert f"#   {command}\n" in text
    assert f"run: {command} --check\n" in text
    assert ci(*options, "--check") == (0, "", "")
    (project / WORKFLOW).write_text(f"{text}  more: {{}}\n")
    ci(*options, "--check", code=2)
    assert "is stale" in ci("--output", WORKFLOW, "--check", code=2).err
    ci("--output", WORKFLOW)
    assert (project / WORKFLOW).read_text() != text


def test_jobs_of_gpus_have_a_workflow_of_their_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch, ci: Command
) -> None:
    monkeypatch.chdir(repository)
    assert "also writes envbuilder-builds.yml" in ci("--profile", "cpu,cuda").err
    data = json.loads(ci("--profile", "cuda,rocm", "--json").out)
    assert {row["profile"] for row in data["matrix"]} == {"cuda"}
    assert "17.5 GB" in data["left_out"][0]["why"]
    for row in data["matrix"]:
        assert row["disk_bytes"] > row["download_bytes"] > 2 * 10**9


def test_jobs_install_every_file_by_its_hash(project: Path, released: None, ci: Command) -> None:
    ci("--output", WORKFLOW)
    lines = (project / PINS).read_text().splitlines()
    assert lines[1:] == [
        f"#   envbuilder ci --provider github --output {WORKFLOW}",
        f"envbuilder-ml=={__version__} --hash=sha256:{hashlib.sha256(b'released').hexdigest()}",
        "click==8.2 --hash=sha256:00",
    ]
    assert f"pip install --require-hashes -r {PINS}\n" in (project / WORKFLOW).read_text()
    (project / PINS).write_text(f"envbuilder-ml=={__version__}\n")
    assert "requirements.txt is stale" in ci("--output", WORKFLOW, "--check", code=2).err
    (project / PINS).unlink()
    ci("--output", WORKFLOW, "--check", code=2)


def test_without_a_release_and_a_wheel_nothing_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, ci: Command
) -> None:
    """The name is free to take until then."""

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[upstream.Index]:
        def read(_: str) -> bytes:
            raise refused(404)

        yield upstream.Index([Place(url="https://index.example/simple")], read, lambda _: [])

    monkeypatch.setattr(upstream, "opened", opened)
    for options in ((), ("--output", WORKFLOW)):
        printed = ci(*options, code=2).err
        assert f"no package index has envbuilder-ml {__version__}" in printed
        assert "--wheel" in printed
    assert not (project / WORKFLOW).exists()


def test_without_output_it_is_printed(project: Path, released: None, ci: Command) -> None:
    printed = ci()
    assert printed.out.startswith("# Generated by envbuilder")
    assert printed.err.endswith("--output also writes envbuilder.requirements.txt\n")
    assert "--check" not in printed.out + printed.err


@pytest.mark.parametrize(
    "path", ["../x.yml", "/x.yml", "x.txt", "a b.yml", "$(id).yml", "-x.yml", "x.yml\n"]
)
def test_the_path_is_one_that_the_workflow_can_hold(path: str, project: Path, ci: Command) -> None:
    ci(f"--output={path}", code=2)
    ci("--check", code=2)


def test_a_wheel_is_of_this_version_and_in_this_folder(
    project: Path, released: None, ci: Command
) -> None:
    wheel = WHEEL
    ci("--wheel", wheel, code=2)
    (project / "ci").mkdir()
    for name in (wheel, "ci/envbuilder_ml-9.9-py3-none-any.whl", "ci/other-0.1.0-py3-none-any.whl"):
        (project / name).write_bytes(b"")
    options = ("--wheel", wheel, "--output", WORKFLOW)
    ci(*options)
    digest = hashlib.sha256(b"").hexdigest()
    assert f"\n./{wheel} --hash=sha256:{digest}\n" in (project / PINS).read_text()
    assert f" --wheel {wheel} " in (project / WORKFLOW).read_text()
    ci(*options, "--check")
    ci("--output", WORKFLOW, "--check", code=2)
    for other in (
        "ci/envbuilder_ml-9.9-py3-none-any.whl",
        "ci/other-0.1.0-py3-none-any.whl",
        f"../{project.name}/{wheel}",
        str(project / wheel),
        f"ci/../{wheel}",
    ):
        assert "is not the path of a wheel" in ci(f"--wheel={other}", code=2).err, other


def test_this_repositorys_workflow_is_what_the_command_writes(
    repository: Path, monkeypatch: pytest.MonkeyPatch, ci: Command
) -> None:
    monkeypatch.chdir(repository)
    (line,) = [
        line.removeprefix("#   envbuilder ci --provider github ")
        for line in (repository / WORKFLOW).read_text().splitlines()
        if line.startswith("#   envbuilder")
    ]
    assert ci(*line.split(), "--check") == (0, "", "")
