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


BUILDS = "ci-builds.yml"


def text_of(plan: ci.Workflow = PLAN, path: str = "") -> str:
    return ci.workflow_files(plan)[path or plan.output]


def rendered(plan: ci.Workflow = PLAN, path: str = "") -> dict[str, Any]:
    # BaseLoader: `on` is a key, and versions are text.
    result: dict[str, Any] = yaml.load(text_of(plan, path), yaml.BaseLoader)
    return result


def steps(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_each_row_is_a_job_of_the_matrix() -> None:
    job = rendered()["jobs"]["environment"]
    (cpu,) = job["strategy"]["matrix"]["include"]
    assert cpu == {
        "id": CPU.id,
        "environment": "default",
        "profile": "cpu",
        "python": "3.11",
        "backend": "venv",
        "runner": "ubuntu-24.04",
        "lock": CPU.lock,
    }
    assert any("envbuilder verify --environment" in run for run in steps(job))
    assert not any("envbuilder build" in run for run in steps(job))


def test_what_is_only_built_is_so_when_its_lock_changes() -> None:
    workflow = rendered(path=BUILDS)
    changed = {"paths": [CUDA.lock, BUILDS]}
    assert workflow["on"]["push"] == {"branches": ["main", "master"], **changed}
    assert workflow["on"]["pull_request"] == changed
    (job,) = workflow["jobs"].values()
    assert steps(job)[1].startswith("envbuilder build --environment")
    large = text_of(replace(PLAN, rows=(replace(CUDA, download_bytes=9**12),)), BUILDS)
    assert not re.search("actions/cache|cache: ", large)
    assert BUILDS not in ci.workflow_files(replace(PLAN, rows=(CPU,)))
    cuda = rendered(GITLAB)["cuda"]
    assert [rule["changes"] for rule in cuda["rules"]] == [[CUDA.lock]] * 2
    assert "cache" not in cuda


def test_the_projects_own_tests_are_a_step_if_pytest_is_locked() -> None:
    assert "pytest" not in text_of()
    both = (replace(CPU, tests=True), replace(ZENDNN, tests=True))
    *_, tests = steps(rendered(replace(PLAN, rows=both))["jobs"]["environment"])
    assert tests.startswith('[ -e "$ID.json" ] || exit 0')
    assert tests.endswith('--backend "$BACKEND" -- python -m pytest\n')
    *_, tests = rendered(replace(GITLAB, rows=both))[CPU.id]["script"]
    assert tests.endswith("--profile cpu --backend venv -- python -m pytest")


def test_caches_stay_below_githubs_limit() -> None:
    large = replace(CPU, id="large", download_bytes=3 * 10**9)
    image = replace(large, id="image", backend="docker")
    assert ci.uncached((large, image, CPU)) == ["image"]
    text = text_of(replace(PLAN, rows=(large, image, CPU)))
    assert text.count("cache: too large") == text.count("matrix.cache != 'too large'") == 1
    assert "too large" not in text_of()


def test_jobs_and_sizes_are_summed_up() -> None:
    omission = Omission(label="rocm", why="it is too large")
    tested = replace(CPU, tests=True, download_bytes=4 * 10**8)
    cpu, cuda, rocm = ci.summary(replace(PLAN, rows=(tested, CUDA), omissions=(omission,)))
    assert cpu == (
        f"{CPU.id}: verify and pytest at each push, on ubuntu-24.04;"
        " at least 0.4 GB to download, 1.0 GB of disk"
    )
    assert cuda.startswith("cuda: build when its lock changes, on ubuntu-24.04;")
    assert rocm == "no job for rocm: it is too large"


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
    assert "--environment" not in text_of(replace(PLAN, project=False))


def test_without_a_verification_there_is_nothing_to_merge() -> None:
    assert set(rendered(replace(PLAN, rows=(CUDA,)))["jobs"]) == {"locks"}


def test_only_a_special_processor_may_be_missing() -> None:
    assert "processor" not in text_of(PLAN)
    _, zendnn = rendered(replace(PLAN, rows=(CPU, ZENDNN)))["jobs"]["environment"]["strategy"][
        "matrix"
    ]["include"]
    assert zendnn["processor"] == "special"
    hosted_by_user = replace(ZENDNN, runner="epyc")
    assert "processor" not in text_of(replace(PLAN, rows=(hosted_by_user,)))


def test_code_of_forks_does_not_run_on_runners_of_ones_own() -> None:
    assert "if" not in rendered(PLAN)["jobs"]["environment"]
    own = replace(PLAN, rows=(replace(CPU, runner="epyc"),))
    condition = rendered(own)["jobs"]["environment"]["if"]
    here = "github.event.pull_request.head.repo.full_name == github.repository"
    assert condition == f"github.event_name == 'push' || {here}"


def test_permissions_are_minimal_and_no_expression_is_in_a_script() -> None:
    plan = replace(PLAN, rows=(replace(CPU, tests=True), ZENDNN, CUDA))
    both = [rendered(plan), rendered(plan, BUILDS)]
    assert [data["permissions"] for data in both] == [{"contents": "read"}] * 2
    for job in (job for data in both for job in data["jobs"].values()):
        for run in steps(job):
            assert "${{" not in run
        assert "permissions" not in job
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"] == {"persist-credentials": "false"}


def test_quick_and_how_it_is_installed() -> None:
    text = text_of(replace(PLAN, quick=True))
    assert '--quick --output "$ID.json"' in text
    assert text.count(INSTALL) == 3
    assert "bootstrap.py setup" in text_of(replace(PLAN, from_checkout=True))


def test_jobs_install_nothing_by_its_name_alone() -> None:
    for plan in (PLAN, GITLAB, replace(GITLAB, rows=(CPU, CONDA))):
        installs = re.findall("pip install.*", text_of(plan))
        assert {*installs} == {INSTALL.removeprefix("python -m ")}


def test_what_does_not_fit_a_hosted_runner_is_left_out() -> None:
    large = replace(CUDA, disk_bytes=20 * 10**9)
    jobs, omissions = ci.fitting((CPU, large), ci.SERVICES["github"])
    assert jobs == [CPU]
    assert "20.0 GB" in omissions[0].why
    plan = replace(PLAN, omissions=tuple(omissions))
    assert "# No job for cuda: it needs 20.0 GB" in text_of(plan)
    larger = replace(large, runner="big")
    assert ci.fitting((larger,), ci.SERVICES["github"]) == ([larger], [])


def test_jobs_have_a_python_that_envbuilder_runs_with() -> None:
    """An older one comes from the lock."""
    older = replace(CUDA, id="older", python="3.8")
    job = rendered(replace(PLAN, rows=(CUDA, older)), BUILDS)["jobs"]["environment"]
    (python,) = [s["with"]["python-version"] for s in job["steps"] if "python" in s.get("uses", "")]
    rows = job["strategy"]["matrix"]["include"]
    assert [row["python"] for row in rows] == ["3.11", "3.8"]
    assert [github_runner.filled(python, {"matrix": row}) for row in rows] == ["3.11", "3.12"]
    cuda = rendered(replace(GITLAB, rows=(older,)))["older"]
    assert cuda["image"] == "python:3.12"
    assert cuda["script"][0].endswith("--python-version 3.8")


def test_a_workflow_needs_jobs_and_locks_of_the_repository() -> None:
    nothing = replace(PLAN, rows=(), omissions=(Omission(label="mps", why="no venv"),))
    with pytest.raises(InvalidError, match="workflow would have no jobs: mps: no venv"):
        ci.require_jobs(nothing)
    with pytest.raises(InvalidError, match="locks of cpu are not in this repository"):
        ci.require_jobs(replace(PLAN, rows=(replace(CPU, lock=""),)))


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
    text = text_of(replace(PLAN, rows=(CPU, CONDA)))
    jobs = yaml.safe_load(text)["jobs"]
    cpu, conda = jobs["environment"]["strategy"]["matrix"]["include"]
    assert "conda_lock" not in cpu
    assert conda["conda_lock"] == CONDA.conda_lock
    assert steps(jobs["environment"])[0] == steps(jobs["locks"])[0] == INSTALL
    assert "hashFiles(matrix.lock, matrix.conda_lock || matrix.lock)" in text
    text = text_of(replace(PLAN, rows=(CONDA,), from_checkout=True))
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
    jobs, (omission,) = ci.fitting((image, elsewhere), ci.SERVICES["gitlab"])
    assert jobs == [elsewhere]
    assert "container engine" in omission.why
