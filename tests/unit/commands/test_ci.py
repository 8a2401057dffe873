"""`envbuilder ci`: the jobs of a project, and the workflow that has them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
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
from tests.support import command_line
from tests.support.conda_locks import lock_of_python
from tests.support.projects import lay_locked, write_lock
from tests.support.shipped import FOLDERS
from tests.support.user_index import refused


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_locked(tmp_path, monkeypatch)
    return tmp_path


def matrix(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    done = command_line.printed(capsys, "ci", "--provider", "github", "--json", *options)
    return done.code, done.out + done.err


def as_json(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    code, printed = matrix(capsys, *options)
    assert code == 0, printed
    return json.loads(printed)


def test_a_projects_environments(
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = as_json(capsys)
    assert (data["schema"], data["left_out"]) == (1, [])
    assert [(row["id"], row["lock"]) for row in data["matrix"]] == [
        (f"default.cpu-linux-{arch}-py3.11-venv", "envbuilder.lock/default.cpu.json")
        for arch in ("amd64", "arm64")
    ]
    assert {row["what"] for row in data["matrix"]} == {"verify"}


def test_a_project_whose_conda_packages_are_locked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "envbuilder.lock/default.cpu.conda.json"
    assert "conda packages are not locked" in matrix(capsys, "--backend", "conda")[1]
    project = variants.of_project(load_settings())
    variant = project.of(profiles.load("cpu", FOLDERS))
    path.write_text(conda_locks.dump(lock_of_python(variant)))
    (row,) = as_json(capsys, "--backend", "conda")["matrix"]
    assert row["id"] == "default.cpu-linux-amd64-py3.11-conda"
    assert row["conda_lock"] == "envbuilder.lock/default.cpu.conda.json"
    assert row["lock"] == "envbuilder.lock/default.cpu.json"
    path.write_text(conda_locks.dump(replace(lock_of_python(variant), inputs="0" * 64)))
    code, printed = matrix(capsys)
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
    code, printed = matrix(capsys)
    assert code == 2
    assert "profile 'cpu' has no conda lock" in printed


def test_a_profiles_own_conda_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config/profiles/locks"
    folder.mkdir(parents=True)
    cpu = profiles.load("cpu", FOLDERS)
    (folder / "cpu.conda.json").write_text(conda_locks.dump(lock_of_python(cpu)))
    (row,) = as_json(capsys, "--profile", "cpu", "--backend", "conda")["matrix"]
    assert (row["backend"], row["lock"], row["conda_lock"]) == (
        "conda",
        "",
        "config/profiles/locks/cpu.conda.json",
    )


def test_a_stale_lock_of_a_listed_profile_is_refused(
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / "envbuilder.yaml").write_text(
        "profiles: [cpu]\npython: '3.11'\nrequirements: [rich]\n"
    )
    code, printed = matrix(capsys)
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
    (row,) = as_json(capsys, "--profile", "cpu-ipex")["matrix"]
    assert (row["profile"], row["lock"]) == ("cpu-ipex", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "cpu,$(id)"], "unknown profile '$(id)'"),
        (["--profile", "nothing"], "nothing"),
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
    code, printed = matrix(capsys, *options)
    assert code == 2
    assert message in printed


FILE = ".github/workflows/environments.yml"
PINS = FILE.replace(".yml", ".requirements.txt")
WHEEL = f"ci/envbuilder_ml-{__version__}-py3-none-any.whl"


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the index have this very version, and what it requires."""
    wheel = self_wheel.Wheel(file="x.whl", content=b"released")
    monkeypatch.setattr(self_wheel, "released", lambda _: wheel)
    monkeypatch.setattr(self_wheel, "pinned", lambda *_: "click==8.2 --hash=sha256:00\n")


def ci(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    done = command_line.printed(capsys, "ci", "--provider", "github", *options)
    return done.code, done.out + done.err


def test_it_is_written_checked_and_written_again(
    project: Path, released: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--platform", "linux/amd64", "--runner", "cpu=epyc", "--quick", "--output", FILE)
    assert ci(capsys, *options, "--check")[0] == 2
    assert ci(capsys, *options) == (0, f"{FILE}\n{PINS}\n")
    text = (project / FILE).read_text()
    command = (
        "envbuilder ci --provider github --platform linux/amd64 --runner cpu=epyc --quick"
        f" --output {FILE}"
    )
    assert f"#   {command}\n" in text
    assert f"run: {command} --check\n" in text
    assert ci(capsys, *options, "--check") == (0, "")
    (project / FILE).write_text(f"{text}  more: {{}}\n")
    assert ci(capsys, *options, "--check")[0] == 2
    code, printed = ci(capsys, "--output", FILE, "--check")
    assert code == 2
    assert "is stale" in printed
    assert ci(capsys, "--output", FILE)[0] == 0
    assert (project / FILE).read_text() != text


def test_jobs_install_every_file_by_its_hash(
    project: Path, released: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ci(capsys, "--output", FILE)[0] == 0
    lines = (project / PINS).read_text().splitlines()
    assert lines[1:] == [
        f"#   envbuilder ci --provider github --output {FILE}",
        f"envbuilder-ml=={__version__} --hash=sha256:{hashlib.sha256(b'released').hexdigest()}",
        "click==8.2 --hash=sha256:00",
    ]
    assert f"pip install --require-hashes -r {PINS}\n" in (project / FILE).read_text()
    (project / PINS).write_text(f"envbuilder-ml=={__version__}\n")
    assert "requirements.txt: is stale" in ci(capsys, "--output", FILE, "--check")[1]
    (project / PINS).unlink()
    assert ci(capsys, "--output", FILE, "--check")[0] == 2


def test_without_a_release_and_a_wheel_nothing_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is free to take until then."""

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[upstream.Index]:
        def read(_: str) -> bytes:
            raise refused(404)

        yield upstream.Index([Place(url="https://index.example/simple")], read, lambda _: [])

    monkeypatch.setattr(upstream, "opened", opened)
    for options in ((), ("--output", FILE)):
        code, printed = ci(capsys, *options)
        assert code == 2
        assert f"no package index has envbuilder-ml {__version__}" in printed
        assert "--wheel" in printed
    assert not (project / FILE).exists()


def test_without_output_it_is_printed(
    project: Path, released: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = ci(capsys)
    assert code == 0
    assert printed.startswith("# Generated by envbuilder")
    assert printed.endswith(
        "--output writes envbuilder.requirements.txt, too, which jobs install\n"
    )
    assert "--check" not in printed


@pytest.mark.parametrize(
    "path", ["../x.yml", "/x.yml", "x.txt", "a b.yml", "$(id).yml", "-x.yml", "x.yml\n"]
)
def test_the_path_is_one_that_the_workflow_can_hold(
    path: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ci(capsys, f"--output={path}")[0] == 2
    assert ci(capsys, "--check")[0] == 2


def test_a_wheel_is_of_this_version_and_in_this_folder(
    project: Path, released: None, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = WHEEL
    assert ci(capsys, "--wheel", wheel)[0] == 2
    (project / "ci").mkdir()
    for name in (wheel, "ci/envbuilder_ml-9.9-py3-none-any.whl", "ci/other-0.1.0-py3-none-any.whl"):
        (project / name).write_bytes(b"")
    options = ("--wheel", wheel, "--output", FILE)
    assert ci(capsys, *options)[0] == 0
    digest = hashlib.sha256(b"").hexdigest()
    assert f"\n./{wheel} --hash=sha256:{digest}\n" in (project / PINS).read_text()
    assert f" --wheel {wheel} " in (project / FILE).read_text()
    assert ci(capsys, *options, "--check")[0] == 0
    assert ci(capsys, "--output", FILE, "--check")[0] == 2
    for other in (
        "ci/envbuilder_ml-9.9-py3-none-any.whl",
        "ci/other-0.1.0-py3-none-any.whl",
        f"../{project.name}/{wheel}",
        str(project / wheel),
        f"ci/../{wheel}",
    ):
        code, printed = ci(capsys, f"--wheel={other}")
        assert (code, "is not the path of a wheel" in printed) == (2, True), other


def test_this_repositorys_workflow_is_what_the_command_writes(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    (line,) = [
        line.removeprefix("#   envbuilder ci --provider github ")
        for line in (repository / FILE).read_text().splitlines()
        if line.startswith("#   envbuilder")
    ]
    assert ci(capsys, *line.split(), "--check") == (0, "")
