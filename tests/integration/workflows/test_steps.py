"""The scripts in workflows, run as GitHub runs them: with `bash -e`, and the variables of a row."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ran, succeeded
from tests.support.reports import epoch, written

ROW = {
    "ID": "zendnn-linux-amd64-py3.11-venv",
    "PROFILE": "zendnn",
    "BACKEND": "venv",
    "PYTHON": "3.11",
}
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def jobs(repository: Path) -> Any:
    path = repository / ".github/workflows/environments.yml"
    return yaml.safe_load(path.read_text())["jobs"]


def scripts(job: Mapping[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step and "if" not in step]


def bash(
    script: str, folder: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return ran(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": PATH, **variables},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("processor", "code", "expected"),
    [("", 0, 0), ("", 3, 3), ("special", 3, 0), ("special", 5, 5), ("special", 1, 1)],
)
def test_only_a_missing_processor_is_excused(
    processor: str, code: int, expected: int, jobs: Any, tmp_path: Path
) -> None:
    (step,) = [s for s in jobs["environment"]["steps"] if s.get("name") == "verify"]
    program = tmp_path / "envbuilder"
    program.write_text(f'#!/bin/sh\necho "$@" >arguments\nexit {code}\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = bash(step["run"], tmp_path, {**ROW, **path, "PROCESSOR": processor})
    assert done.returncode == expected
    assert ("::notice::" in done.stdout) == (code == 3 and expected == 0)
    assert (tmp_path / "arguments").read_text().split() == [
        "verify",
        "--profile",
        "zendnn",
        "--backend",
        "venv",
        "--python-version",
        "3.11",
        "--output",
        f"{ROW['ID']}.json",
        "--html",
        f"{ROW['ID']}.html",
    ]


def test_the_reports_of_a_run_are_compared_with_those_before(jobs: Any, tmp_path: Path) -> None:
    _, prepare, compare = scripts(jobs["reports"])
    (keep,) = [s["run"] for s in jobs["reports"]["steps"] if "run" in s and "if" in s]
    summary = tmp_path / "summary.md"
    variables = {"GITHUB_STEP_SUMMARY": str(summary), "ENVBUILDER_CONFIG_DIR": str(tmp_path)}

    def finish(seconds: float) -> int:
        summary.write_text("")
        name = f"{ROW['ID']}.json"
        written(tmp_path / "reports" / name, training__epochs=[epoch(seconds)])
        assert bash(prepare, tmp_path, variables).returncode == 0
        done = bash(compare, tmp_path, variables)
        if done.returncode == 0:
            assert bash(keep, tmp_path, variables).returncode == 0
        return done.returncode

    assert finish(20.0) == 0
    assert "not compared" in summary.read_text()
    assert finish(21.0) == 0
    assert "as good" in summary.read_text()
    assert finish(40.0) == 5
    assert "worse" in summary.read_text()
    assert finish(22.0) == 0


def test_a_run_that_verified_nothing_is_no_failure(jobs: Any, tmp_path: Path) -> None:
    """No processor was the right one."""
    _, prepare, compare = scripts(jobs["reports"])
    (keep,) = [s["run"] for s in jobs["reports"]["steps"] if "run" in s and "if" in s]
    summary = tmp_path / "summary.md"
    for script in (prepare, compare, keep):
        succeeded(bash(script, tmp_path, {"GITHUB_STEP_SUMMARY": str(summary)}))
    assert summary.read_text() == "No environment was verified.\n"


def test_nor_is_it_on_gitlab(repository: Path, tmp_path: Path) -> None:
    done = bash("envbuilder ci --provider gitlab --profile zendnn", repository, {})
    for script in yaml.safe_load(done.stdout)["envbuilder-reports"]["script"]:
        assert bash(script, tmp_path, {}).returncode == 0
    assert (tmp_path / "reports.md").read_text() == "No environment was verified.\n"


def test_the_locks_are_checked(jobs: Any, repository: Path) -> None:
    for script in scripts(jobs["locks"])[1:]:
        succeeded(bash(script, repository, {}))
