"""Our own workflows and the one for users: pinned, with the least rights; what a release does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

USES = re.compile(r"uses: ([\w./-]+)@(\S+)(?: # (\S+))?")


def read(path: Path) -> dict[str, Any]:
    # BaseLoader: `on` is a key, and versions are text.
    data: dict[str, Any] = yaml.load(path.read_text(), yaml.BaseLoader)
    return data


def test_every_action_is_pinned_by_commit_and_to_one_commit(repository: Path) -> None:
    pins: dict[str, tuple[str, str]] = {}
    template = repository / "templates/ci/github.yml.j2"
    for path in (*(repository / ".github/workflows").iterdir(), template):
        for action, commit, version in USES.findall(path.read_text()):
            assert re.fullmatch(r"[0-9a-f]{40} v\d+\.\d+\.\d+", f"{commit} {version}"), action
            name = "/".join(action.split("/")[:2])
            assert pins.setdefault(name, (commit, version)) == (commit, version)
    assert len(pins) == 7


@pytest.mark.parametrize("name", ["ci", "newest", "environments", "release"])
def test_a_workflow_reads_and_nothing_else(name: str, repository: Path) -> None:
    workflow = read(repository / f".github/workflows/{name}.yml")
    for job in workflow["jobs"].values():
        if name != "release":
            assert {**workflow, **job}["permissions"] == {"contents": "read"}
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "an expression in a script"
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] == "false"


def test_what_may_publish_runs_no_code_of_this_repository(repository: Path) -> None:
    workflow = read(repository / ".github/workflows/release.yml")
    jobs = workflow["jobs"]
    assert [(name, job.get("needs"), job["permissions"]) for name, job in jobs.items()] == [
        ("build", None, {"contents": "read"}),
        ("install", "build", {}),
        ("attest", "install", {"id-token": "write", "attestations": "write"}),
        ("publish", "attest", {"id-token": "write"}),
    ]
    assert workflow["permissions"] == {}
    assert not any("run" in step for name in ("attest", "publish") for step in jobs[name]["steps"])
    supported = re.findall(r"Python :: (3\.\d+)", (repository / "pyproject.toml").read_text())
    assert jobs["install"]["strategy"]["matrix"]["python"] == supported


def test_forms_ask_for_what_doctor_finds(repository: Path) -> None:
    for form in ("fault", "hardware"):
        text = (repository / f".github/ISSUE_TEMPLATE/{form}.yml").read_text()
        assert 'label: "`envbuilder doctor --json`"' in text
