"""Workflows: what they run, and that nothing from outside reaches a shell."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from envbuilder.commands import ci
from envbuilder.commands.ci import Omission, Row
from envbuilder.core.errors import InvalidError
from tests.support import github_runner

CPU = Row(
    id="default.cpu-linux-amd64-py3.11-venv",
    what="verify",
    environment="default",
    profile="cpu",
    framework="torch",
    accelerator="cpu",
    platform="linux/amd64",
    python="3.11",
    backend="venv",
    runner="ubuntu-24.04",
    cpu_flags=("sse4_1",),
    lock="envbuilder.lock/default.cpu.json",
    cache_key="default.cpu-linux-amd64-00",
    disk_bytes=10**9,
)
ZENDNN = replace(CPU, id="zendnn", profile="zendnn", cpu_flags=("sse4_1", "avx512f"))
CUDA = replace(CPU, id="cuda", profile="cuda", accelerator="cuda", what="build")
PLAN = ci.Workflow(
    provider="github",
    rows=(CPU, CUDA),
    omissions=(),
    arguments=("envbuilder", "ci", "--provider", "github", "--output", "ci.yml"),
    output="ci.yml",
    project=True,
    from_checkout=False,
    requirements="ci.requirements.txt",
    quick=False,
)


INSTALL = "python -m pip install --require-hashes -r ci.requirements.txt"


def rendered(plan: ci.Workflow = PLAN) -> dict[str, Any]:
    # BaseLoader: `on` is a key, and versions are text.
    result: dict[str, Any] = yaml.load(ci.workflow_text(plan), yaml.BaseLoader)
    return result


def steps(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_each_row_is_a_job_of_the_matrix() -> None:
    job = rendered()["jobs"]["environment"]
    cpu, cuda = job["strategy"]["matrix"]["include"]
    assert cpu == {
        "id": CPU.id,
        "what": "verify",
        "environment": "default",
        "profile": "cpu",
        "python": "3.11",
        "backend": "venv",
        "runner": "ubuntu-24.04",
        "lock": CPU.lock,
    }
    assert cuda["what"] == "build"
    assert any("envbuilder build --environment" in run for run in steps(job))
    assert any("envbuilder verify --environment" in run for run in steps(job))


def test_the_locks_and_the_workflow_itself_are_checked_first() -> None:
    jobs = rendered()["jobs"]
    assert jobs["environment"]["needs"] == "locks"
    _, *checks = steps(jobs["locks"])
    assert checks == [
        "envbuilder check",
        "envbuilder ci --provider github --output ci.yml --check",
    ]
    jobs = rendered(replace(PLAN, project=False, output=""))["jobs"]
    assert steps(jobs["locks"])[1:] == ["envbuilder check cpu cuda"]
    assert "--environment" not in ci.workflow_text(replace(PLAN, project=False))


def test_without_a_verification_there_is_nothing_to_merge() -> None:
    text = ci.workflow_text(replace(PLAN, rows=(CUDA,)))
    assert "envbuilder verify" not in text
    assert set(yaml.safe_load(text)["jobs"]) == {"locks", "environment"}


def test_only_a_special_processor_may_be_missing() -> None:
    assert "processor" not in ci.workflow_text(PLAN)
    _, zendnn = rendered(replace(PLAN, rows=(CPU, ZENDNN)))["jobs"]["environment"]["strategy"][
        "matrix"
    ]["include"]
    assert zendnn["processor"] == "special"
    hosted_by_user = replace(ZENDNN, runner="epyc")
    assert "processor" not in ci.workflow_text(replace(PLAN, rows=(hosted_by_user,)))


def test_permissions_are_minimal_and_no_expression_is_in_a_script() -> None:
    data = rendered(replace(PLAN, rows=(CPU, ZENDNN, CUDA)))
    assert data["permissions"] == {"contents": "read"}
    for job in data["jobs"].values():
        for run in steps(job):
            assert "${{" not in run
        assert all("permissions" not in job for job in data["jobs"].values())
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"] == {"persist-credentials": "false"}


def test_quick_and_how_it_is_installed() -> None:
    text = ci.workflow_text(replace(PLAN, quick=True))
    assert '--quick --output "$ID.json"' in text
    assert text.count(INSTALL) == 3
    assert "bootstrap.py setup" in ci.workflow_text(replace(PLAN, from_checkout=True))


def test_jobs_install_nothing_by_its_name_alone() -> None:
    for plan in (PLAN, GITLAB, replace(GITLAB, rows=(CPU, CONDA))):
        installs = re.findall("pip install.*", ci.workflow_text(plan))
        assert {*installs} == {INSTALL.removeprefix("python -m ")}


def test_what_does_not_fit_a_hosted_runner_is_left_out() -> None:
    large = replace(CUDA, disk_bytes=20 * 10**9)
    plan = ci.fitting(replace(PLAN, rows=(CPU, large)))
    assert plan.rows == (CPU,)
    (omission,) = plan.omissions
    assert "20.0 GB" in omission.why
    assert "# No job for cuda: it takes 20.0 GB" in ci.workflow_text(plan)
    assert ci.fitting(replace(PLAN, rows=(replace(large, runner="big"),))).omissions == ()


def test_jobs_have_a_python_that_envbuilder_runs_with() -> None:
    """An older one comes from the lock."""
    older = replace(CUDA, python="3.8")
    plan = ci.fitting(replace(PLAN, rows=(CPU, older)))
    assert plan.omissions == ()
    job = rendered(plan)["jobs"]["environment"]
    (python,) = [s["with"]["python-version"] for s in job["steps"] if "python" in s.get("uses", "")]
    rows = job["strategy"]["matrix"]["include"]
    assert [row["python"] for row in rows] == ["3.11", "3.8"]
    assert [github_runner.filled(python, {"matrix": row}) for row in rows] == ["3.11", "3.12"]
    cuda = rendered(replace(GITLAB, rows=(older,)))["cuda"]
    assert cuda["image"] == "python:3.12"
    assert cuda["script"][0].endswith("--python-version 3.8")


def test_a_workflow_needs_jobs_and_locks_of_the_repository() -> None:
    nothing = replace(PLAN, rows=(), omissions=(Omission(label="mps", why="no venv"),))
    with pytest.raises(InvalidError, match="no job for a workflow: mps: no venv"):
        ci.fitting(nothing)
    with pytest.raises(InvalidError, match="locks of cpu are not in this repository"):
        ci.fitting(replace(PLAN, rows=(replace(CPU, lock=""),)))


GITLAB = replace(
    PLAN,
    provider="gitlab",
    rows=tuple(replace(row, runner="saas-linux-small-amd64") for row in (CPU, ZENDNN, CUDA)),
)


def test_gitlab_has_a_job_for_each_row() -> None:
    jobs = rendered(GITLAB)
    assert set(jobs) == {
        ".envbuilder",
        "envbuilder-locks",
        "envbuilder-reports",
        *(row.id for row in GITLAB.rows),
    }
    cpu, zendnn, cuda = (jobs[row.id] for row in GITLAB.rows)
    assert cpu["script"][-1] == (
        "envbuilder verify --environment default --profile cpu --backend venv"
        f" --python-version 3.11 --output reports/{CPU.id}.json --html reports/{CPU.id}.html"
    )
    assert cpu["cache"]["key"] == {"prefix": CPU.id, "files": [CPU.lock]}
    assert (cpu["image"], cpu["tags"]) == ("python:3.11", ["saas-linux-small-amd64"])
    assert "allow_failure" not in cpu
    assert zendnn["allow_failure"] == {"exit_codes": ["3"]}
    assert cuda["script"] == [
        "envbuilder build --environment default --profile cuda --backend venv --python-version 3.11"
    ]
    assert jobs["envbuilder-reports"]["needs"] == [CPU.id, ZENDNN.id]
    assert jobs["envbuilder-locks"]["script"][0] == "envbuilder check"


CONDA = replace(
    CPU, id="conda", backend="conda", conda_lock="envbuilder.lock/default.cpu.conda.json"
)


def test_conda_is_installed_for_and_cached_by_its_own_lock() -> None:
    text = ci.workflow_text(replace(PLAN, rows=(CPU, CONDA)))
    jobs = yaml.safe_load(text)["jobs"]
    cpu, conda = jobs["environment"]["strategy"]["matrix"]["include"]
    assert "conda_lock" not in cpu
    assert conda["conda_lock"] == CONDA.conda_lock
    assert steps(jobs["environment"])[0] == steps(jobs["locks"])[0] == INSTALL
    assert "hashFiles(matrix.lock, matrix.conda_lock || matrix.lock)" in text
    text = ci.workflow_text(replace(PLAN, rows=(CONDA,), from_checkout=True))
    assert "bootstrap.py setup test &&" in text


def test_so_it_is_on_gitlab() -> None:
    runner = "saas-linux-small-amd64"
    plan = replace(GITLAB, rows=tuple(replace(row, runner=runner) for row in (CPU, CONDA)))
    jobs = rendered(plan)
    assert jobs[".envbuilder"]["before_script"] == [INSTALL]
    assert jobs[CONDA.id]["cache"]["key"]["files"] == [CONDA.lock, CONDA.conda_lock]
    assert "before_script" not in jobs[CPU.id]
    assert jobs[CPU.id]["cache"]["key"]["files"] == [CPU.lock]
    jobs = rendered(replace(plan, from_checkout=True))
    assert jobs[CONDA.id]["before_script"][0] == "python bootstrap.py setup test"


def test_gitlabs_hosted_runners_have_no_engine() -> None:
    image, elsewhere = (
        replace(CPU, id=runner, backend="docker", runner=runner)
        for runner in ("saas-linux-small-amd64", "mine")
    )
    plan = ci.fitting(replace(GITLAB, rows=(image, elsewhere)))
    assert plan.rows == (elsewhere,)
    (omission,) = plan.omissions
    assert "container engine" in omission.why
