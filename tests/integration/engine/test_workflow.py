"""The workflow of a project, run step by step in clean containers.

It is the one that `envbuilder ci` writes for `examples/script`. Each job gets a container without
network, in which pip installs envbuilder by hash from a wheel of this checkout; GitHub's actions
are done as local operations (`tests/support/github_runner.py`). Nothing here ran on GitHub.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from envbuilder.core import console
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock
from envbuilder.verify.report.speed import with_speed
from tests.conftest import missing, succeeded
from tests.integration.conftest import start
from tests.support import examples
from tests.support.folders import read_json
from tests.support.github_runner import PULL, PUSH, Run, Runner
from tests.support.reports import BUSY, QUIET

pytestmark = pytest.mark.slow

FILE = ".github/workflows/environments.yml"
COMMAND = (
    "ci",
    "--provider",
    "github",
    "--profile",
    "cpu",
    "--platform",
    "linux/amd64",
    "--python-version",
    "3.11",
    "--quick",
    "--output",
    FILE,
)
LOCK = "envbuilder.lock/default.cpu.json"
ID = "default.cpu-linux-amd64-py3.11-venv"
REPORT = f"{ID}.json"
PYTHONS = {"3.11": "python3.11", "3.12": "python3.11"}
"""The image has one Python only. envbuilder itself, for which the second is, runs in any newer."""


@pytest.fixture(scope="module")
def packages(
    repository: Path, session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Everything that jobs install: envbuilder's wheel, and what is locked."""
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--wheel-dir",
            folder,
            repository,
        ],
        check=True,
    )
    settings = load_settings(session_environment)
    lock = profile_lock.load(examples.ROOT / examples.LOCKED / LOCK)
    target = profile_lock.select(lock, "linux/amd64", "3.11")
    files = (lock.tool("linux/amd64"), *target.files)
    try:
        fetch.fetch(files, target, settings, console.PlainProgress(lambda line: None))
    except BuildError as error:
        missing("torch", f"what the example locks cannot be fetched: {error.message}")
    for file in files:
        if not (folder / file.basename).exists():
            Store.of(settings).link(file, folder)
    return folder


@pytest.fixture(scope="module")
def commit(
    packages: Path, session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The project with its workflow, as it is in the repository.

    Of what the requirements file beside it names, `packages` gets a copy for the containers.
    """
    folder = tmp_path_factory.mktemp("commit")
    examples.copy(examples.LOCKED, folder)
    (wheel,) = packages.glob("envbuilder_ml-*.whl")
    shutil.copy(wheel, folder)
    succeeded(start((*COMMAND, "--wheel", wheel.name), session_environment, cwd=folder))
    download = ("pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
    wanted = ("--require-hashes", "--requirement", FILE.replace(".yml", ".requirements.txt"))
    command = [sys.executable, "-m", *download, "--dest", packages, *wanted]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def runner(
    docker_client: Any, base_image: str, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    del docker_client
    folder = tmp_path_factory.mktemp("runner")
    yield Runner(base_image, folder, packages, PYTHONS)
    shutil.rmtree(folder)  # an environment, and downloads


@pytest.fixture(scope="module")
def workflow(commit: Path) -> dict[str, Any]:
    return read(commit)


@pytest.fixture(scope="module")
def first(runner: Runner, workflow: dict[str, Any], commit: Path) -> Run:
    """The first push to the main branch. Later runs find its Python with all that it installed."""
    run = runner.run(workflow, commit, PUSH)
    runner.keep_python("1-locks-0", "python3.11")
    return run


def read(commit: Path) -> dict[str, Any]:
    """Read the workflow; with BaseLoader, since `on` is a key and versions are text."""
    workflow: dict[str, Any] = yaml.load((commit / FILE).read_text(), yaml.BaseLoader)
    return workflow


def reported(runner: Runner) -> Path:
    """The report that the job uploaded."""
    return runner.artifacts / f"environment/report-{ID}" / REPORT


def changed(commit: Path, folder: Path) -> Path:
    """A copy of the project, for another commit."""
    return Path(shutil.copytree(commit, folder / "commit"))


def test_the_first_push_is_green(runner: Runner, first: Run) -> None:
    assert set(first.results.values()) == {"success"}, first.log
    assert list(first.results) == ["locks", "environment", "reports"]
    assert f"| {REPORT} | not compared | there is no earlier report of this name |" in first.summary
    report = read_json(reported(runner))
    assert (report["status"], report["quick"]) == ("passed", True)
    assert report["framework"]["version"] == "2.13.0+cpu"
    downloads, reports = runner.caches.items()
    assert downloads[0].startswith(f"{ID}-")
    assert reports[0] == "reports-main-1-1"
    assert (reports[1] / "earlier" / REPORT).read_text() == reported(runner).read_text()


def test_red_if_the_lock_has_another_hardwares_torch(
    runner: Runner, workflow: dict[str, Any], commit: Path, tmp_path: Path
) -> None:
    other = changed(commit, tmp_path)
    lock = profile_lock.load(other / LOCK)
    targets = []
    for target in lock.targets:
        # What a plain `pip install torch` finds: the build for CUDA.
        files = (
            replace(file, version="2.13.0", source="default", file=file.file.replace("+cpu", ""))
            if file.name == "torch"
            else file
            for file in target.files
        )
        targets.append(replace(target, files=tuple(files)))
    (other / LOCK).write_text(profile_lock.dump(replace(lock, targets=tuple(targets))))
    run = runner.run(workflow, other, PULL)
    assert run.results == {"locks": "failure", "environment": "skipped", "reports": "skipped"}
    assert run.failed == ["envbuilder check"]
    assert "a build for other hardware" in run.log


def test_red_if_torch_was_exchanged_in_an_environment_that_was_kept(
    runner: Runner,
    workflow: dict[str, Any],
    commit: Path,
    first: Run,
    tmp_path: Path,
) -> None:
    """A runner that keeps its workspace, or a cache of environments that somebody added."""
    assert first.results["environment"] == "success"
    left = tmp_path / "left"
    (left / ".envbuilder").mkdir(parents=True)
    data = Path(".envbuilder") / "data"
    (runner.folder / "1-environment-0/work" / data).rename(left / data)
    (version,) = left.glob(".envbuilder/data/envs/*/lib/python3.11/site-packages/torch/version.py")
    exchanged = version.read_text().replace("+cpu", "+cu130")
    version.unlink()  # what is written in place is restored, since other environments share it
    version.write_text(exchanged)
    run = runner.run(workflow, commit, PULL, passed=("locks",), left=left)
    assert run.results["environment"] == "failure"
    assert "torch/version.py (changed)" in run.log
    assert "(exit code 5)" in run.log
    assert "| failed |" in run.summary


def test_red_if_torch_was_exchanged_in_the_cache(
    runner: Runner, workflow: dict[str, Any], commit: Path, first: Run
) -> None:
    assert first.results["environment"] == "success"
    (key,) = (key for key in runner.caches if key.startswith(ID))
    files = (path for path in runner.caches[key].rglob("*") if path.is_file())
    torch = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(torch.read_bytes())
    content[1 << 20] ^= 1
    torch.unlink()
    torch.write_bytes(content)
    run = runner.run(workflow, commit, PULL, passed=("locks",))
    assert run.results["environment"] == "failure"
    assert f"cache {key}: {key}" in run.log
    assert "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl: damaged" in run.log
    assert "(exit code 1)" in run.log
    # There is no report, and its absence is no failure of its own.
    assert run.results["reports"] == "success"
    assert "No environment was verified" in run.summary


@pytest.mark.parametrize(
    ("contention", "expected", "judged"),
    [(QUIET, "failure", "worse"), (BUSY, "success", "not judged")],
    ids=["quiet", "busy"],
)
def test_red_if_a_report_became_slower_unless_the_machine_was_busy(
    runner: Runner,
    workflow: dict[str, Any],
    commit: Path,
    first: Run,
    tmp_path: Path,
    contention: dict[str, Any],
    expected: str,
    judged: str,
) -> None:
    """The times of the real report, with what the machine did at that time."""
    assert first.results["reports"] == "success"
    path = runner.caches["reports-main-1-1"] / "earlier" / REPORT
    report = read_json(path)
    earlier = tmp_path / "earlier" / REPORT
    earlier.parent.mkdir()
    earlier.write_text(json.dumps(while_machine_was(QUIET, report, faster=2)))
    runner.save(f"reports-main-{tmp_path.name}", ["earlier"], tmp_path)
    reported(runner).parent.mkdir(parents=True, exist_ok=True)
    reported(runner).write_text(json.dumps(while_machine_was(contention, report)))
    run = runner.run(workflow, commit, PULL, passed=("locks", "environment"))
    assert run.results["reports"] == expected, run.log
    assert ("(exit code 5)" in run.log) == (expected == "failure")
    (line,) = [line for line in run.summary.splitlines() if line.startswith(f"| {REPORT}")]
    assert judged in line


def while_machine_was(
    contention: dict[str, Any], report: dict[str, Any], faster: float = 1
) -> dict[str, Any]:
    """A report whose trainings took place on a quiet or a busy machine."""
    epochs = [
        {**epoch, "seconds": epoch["seconds"] / faster} for epoch in report["training"]["epochs"]
    ]
    return with_speed(
        {
            **report,
            "training": {**report["training"], "epochs": epochs},
            "contention": dict.fromkeys(report["contention"], contention),
        }
    )
