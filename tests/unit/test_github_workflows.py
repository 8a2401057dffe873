"""What runs workflows in tests understands them, and refuses whatever it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support import github_workflow
from tests.support.github_expressions import UnknownWorkflowError, filled, holds, value
from tests.support.github_services import Artifacts, Caches, inside

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT: dict[str, Any] = {
    "github": {"event_name": "push", "base_ref": "", "ref_name": "main"},
    "needs": {"locks": {"result": "success"}},
    "matrix": {"lock": "a.json"},
    "success": lambda: True,
    "cancelled": lambda: False,
    "hashFiles": lambda *paths: f"<{' '.join(paths)}>",
}
WORKFLOW = """
name: environments
on: {push: {branches: [main]}, pull_request: }
permissions: {contents: read}
concurrency: {group: "${{ github.ref }}", cancel-in-progress: true}
jobs:
  environment:
    needs: locks
    if: ${{ !cancelled() }}
    strategy:
      fail-fast: false
      matrix: {include: [{id: a, processor: special}, {id: b}]}
    name: ${{ matrix.id }}
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    env: {ID: "${{ matrix.id }}"}
    steps:
      - uses: actions/checkout@v5
        with: {persist-credentials: false}
      - name: verify
        if: ${{ matrix.id == 'a' }}
        env: {X: y}
        run: make
"""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("github.event_name == 'push'", True),
        ("github.event_name != 'push'", False),
        ("!cancelled() && github.event_name == 'push'", True),
        ("github.base_ref || github.ref_name", "main"),
        ("hashFiles(matrix.lock)", "<a.json>"),
        ("hashFiles(matrix.lock, github.base_ref || 'b')", "<a.json b>"),
        ("!(cancelled() || github.event_name == 'it''s')", True),
        ("needs.locks.result != 'skipped'", True),
    ],
)
def test_expressions(expression: str, expected: object) -> None:
    assert value(expression, CONTEXT) == expected


@pytest.mark.parametrize(
    "expression",
    [
        *("always()", "github.actor", "github", "secrets.TOKEN", "matrix.what", "1 == 1"),
        *("contains(github.ref_name, 'm')", "'a' == 'a' 'b'", "(cancelled()", "", "'a' <= 'b'"),
        *("hashFiles(matrix.lock 'b')", "hashFiles(matrix.lock,", "hashFiles(,)"),
        *("cancelled() == 'a'", "github.event_name == 'push' || github.actor"),
    ],
)
def test_an_expression_that_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(UnknownWorkflowError):
        value(expression, CONTEXT)


def test_a_condition_without_a_status_holds_only_after_success() -> None:
    failed = {**CONTEXT, "success": lambda: False}
    assert holds("github.event_name == 'push'", CONTEXT)
    assert not holds("${{ github.event_name == 'push' }}", failed)
    assert holds("${{ !cancelled() && github.event_name == 'push' }}", failed)


def test_expressions_in_a_text() -> None:
    assert filled("x-${{ github.ref_name }}-${{ cancelled() }}", CONTEXT) == "x-main-false"
    with pytest.raises(UnknownWorkflowError):
        filled("${{ github.ref_name", CONTEXT)


def test_a_workflow_is_read() -> None:
    workflow = github_workflow.read(WORKFLOW)
    assert (workflow.name, workflow.branches) == ("environments", ("main",))
    job = workflow.jobs["environment"]
    assert job.rows == ({"id": "a", "processor": "special"}, {"id": "b", "processor": ""})
    assert (job.needs, job.minutes, job.variables) == (("locks",), 60, {"ID": "${{ matrix.id }}"})
    checkout, verify = job.steps
    assert (checkout.action, checkout.condition) == ("actions/checkout@v5", "success()")
    assert (verify.script, verify.variables) == ("make", {"X": "y"})


@pytest.mark.parametrize(
    ("path", "added"),
    [
        ((), {"defaults": {}}),
        (("on",), {"workflow_dispatch": ""}),
        (("on", "push"), {"paths": ["x"]}),
        (("on",), {"pull_request": {"branches": ["main"]}}),
        (("permissions",), {"id-token": "write"}),
        (("concurrency",), {"queue": "max"}),
        (("jobs", "environment"), {"container": "debian"}),
        (("jobs", "environment", "strategy"), {"max-parallel": 2}),
        (("jobs", "environment", "strategy"), {"fail-fast": True}),
        (("jobs", "environment", "strategy", "matrix"), {"os": ["a"]}),
        (("jobs", "environment", "steps", 0), {"id": "x"}),
        (("jobs", "environment", "steps", 0), {"uses": "actions/checkout@v6"}),
        (("jobs", "environment", "steps", 0, "with"), {"ref": "main"}),
        (("jobs", "environment", "steps", 0, "with"), {"persist-credentials": True}),
        (("jobs", "environment", "steps", 1), {"shell": "sh"}),
        (("jobs", "environment", "steps", 1), {"continue-on-error": True}),
        (("jobs", "environment", "steps", 1), {"run": "echo ${{ github.ref }}"}),
    ],
)
def test_a_key_that_is_not_understood_is_refused(
    path: tuple[Any, ...], added: dict[str, Any]
) -> None:
    data = yaml.load(WORKFLOW, yaml.BaseLoader)
    place = data
    for key in path:
        place = place[key]
    place.update(added)
    with pytest.raises(UnknownWorkflowError):
        github_workflow.read(yaml.safe_dump(data))


def test_a_key_that_is_missing_is_refused() -> None:
    with pytest.raises(UnknownWorkflowError):
        github_workflow.read(WORKFLOW.replace("    timeout-minutes: 60\n", ""))


def test_a_cache_is_found_by_its_key_else_the_newest_by_a_prefix(tmp_path: Path) -> None:
    caches = Caches(tmp_path / "caches")
    for number in "12":
        (tmp_path / number / "store").mkdir(parents=True)
        (tmp_path / number / "store" / "file").write_text(number)
        caches.save(f"a-{number}", ("store", "layers"), tmp_path / number)
        caches.save(f"a-{number}", ("store",), tmp_path / "1")
    caches.save("a-3", ("layers",), tmp_path / "1")
    assert (caches.find("a-1", ()), caches.find("a-3", ())) == ("a-1", None)
    assert (caches.find("a-3", ("b-", "a-")), caches.find("c", ("b-",))) == ("a-2", None)
    caches.restore("a-2", tmp_path / "restored")
    assert (tmp_path / "restored" / "store" / "file").read_text() == "2"


def test_artifacts_are_of_a_job_until_it_runs_again(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path / "artifacts")
    (tmp_path / "a.json").write_text("a")
    artifacts.upload("environment", "report-a", ("a.json", "a.html"), tmp_path)
    artifacts.download("report-*", tmp_path / "into")
    artifacts.download("log-*", tmp_path / "nothing")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["a.json"]
    assert not (tmp_path / "nothing").exists()
    artifacts.forget("environment")
    artifacts.download("report-*", tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("path", ["/etc", "../x", "*.json", "~/x", "a/?"])
def test_paths_are_plain_and_in_the_workspace(path: str) -> None:
    assert inside("a\n b/c \n") == ("a", "b/c")
    with pytest.raises(UnknownWorkflowError):
        inside(path)
