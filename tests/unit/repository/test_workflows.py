"""Our own workflows and the one for users: pinned, with the least rights; what a release does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

USES = re.compile(r"uses: ([\w./-]+)@(\S+)(?: # (\S+))?")
FORMS = ("fault", "hardware")


def workflows(repository: Path) -> list[Path]:
    return sorted((repository / ".github/workflows").iterdir())


def read(path: Path) -> dict[str, Any]:
    # BaseLoader: `on` is a key, and versions are text.
    data: dict[str, Any] = yaml.load(path.read_text(), yaml.BaseLoader)
    return data


def test_every_action_is_pinned_by_commit_and_to_one_commit(repository: Path) -> None:
    pins: dict[str, set[tuple[str, str]]] = {}
    for path in (*workflows(repository), repository / "templates/ci/github.yml.j2"):
        for action, commit, version in USES.findall(path.read_text()):
            assert re.fullmatch("[0-9a-f]{40}", commit), f"{path.name}: {action}@{commit}"
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version), f"{path.name}: {action}"
            pins.setdefault("/".join(action.split("/")[:2]), set()).add((commit, version))
    assert len(pins) == 7
    assert {action for action, commits in pins.items() if len(commits) > 1} == set()


def test_workflows_read_and_nothing_else_but_for_a_release(repository: Path) -> None:
    for path in workflows(repository):
        workflow = read(path)
        rights = [workflow["permissions"], *(job.get("permissions") for job in jobs(workflow))]
        if path.name != "release.yml":
            assert rights == [{"contents": "read"}, *[None] * len(jobs(workflow))], path.name
        for job in jobs(workflow):
            for step in job["steps"]:
                assert "${{" not in step.get("run", ""), "an expression in a script"
                if step.get("uses", "").startswith("actions/checkout"):
                    assert step["with"]["persist-credentials"] == "false"


def jobs(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [*workflow["jobs"].values()]


def test_what_may_publish_runs_no_code_of_this_repository(repository: Path) -> None:
    workflow = read(repository / ".github/workflows/release.yml")
    assert workflow["on"] == {"push": {"tags": ["v[0-9]*"]}}
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights == {
        "build": {"contents": "read"},
        "install": {},
        "attest": {"id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
    }
    needs = [job.get("needs") for job in jobs(workflow)]
    assert needs == [None, "build", "install", "attest"]
    assert workflow["jobs"]["publish"]["environment"] == "pypi"
    for name in ("attest", "publish"):
        assert all("run" not in step for step in workflow["jobs"][name]["steps"])
    supported = re.findall(r"Python :: (3\.\d+)", (repository / "pyproject.toml").read_text())
    assert workflow["jobs"]["install"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("name", FORMS)
def test_a_form_asks_for_what_doctor_finds(name: str, repository: Path) -> None:
    fields = {
        field["id"]: field
        for field in read(repository / f".github/ISSUE_TEMPLATE/{name}.yml")["body"]
        if "id" in field
    }
    assert "envbuilder doctor --json" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] == "true"
    assert ("report" in fields) == (name == "hardware")
