"""The table of what runs where says nothing without a file that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile
from tests.support.shipped import LIBRARY
from tools import matrix

RUNS = matrix.evidence().runs
NAMES = [f"{r.profile} {r.platform} {r.backend} {r.python} {r.state}" for r in RUNS]


def of(name: str) -> tuple[Profile, Lock]:
    profile = LIBRARY.profile(name)
    lock = LIBRARY.locks([profile])[name]
    return profile, lock


@pytest.mark.parametrize("run", RUNS, ids=NAMES)
def test_what_was_built_or_run_is_shown_by_a_file(run: matrix.Run, repository: Path) -> None:
    profile, lock = of(run.profile)
    assert run.backend in profile.backends
    assert (run.platform, run.python) in {(t.platform, t.python) for t in lock.targets}
    text = (repository / run.evidence).read_text()
    assert re.search(rf"(?<![\w-]){re.escape(run.profile)}(?![\w-])", text)
    if run.evidence.endswith(".json"):
        check_report(json.loads(text), run, profile)


def check_report(report: dict[str, Any], run: matrix.Run, profile: Profile) -> None:
    assert (report["profile"], report["backend"]) == (run.profile, run.backend)
    assert report["host"]["platform"] == run.platform
    assert report["framework"]["python"].startswith(f"{run.python}.")
    assert report["framework"]["version"] == profile.expects.version
    if run.state == "run":
        assert report["status"] == "passed"
        assert report["device"]["used"] == profile.expects.device


def test_every_profile_has_its_rows() -> None:
    table = matrix.shipped()
    shown = {(r.profile.name, r.platform, python) for r in table for python in r.pythons}
    assert shown == {
        (p.name, platform, python)
        for p in LIBRARY.profiles()
        for platform in p.platforms
        for python in p.python.supported
    }


def test_a_run_counts_for_its_python_alone() -> None:
    profile, lock = of("cuda-legacy")
    run = matrix.Run(
        profile="cuda-legacy", platform="linux/amd64", backend="venv", python="3.12", state="run",
        evidence="docs/evidence/reports/mine.json",
    )  # fmt: skip
    table = matrix.rows([profile], {"cuda-legacy": lock}, [run])
    assert [(row.pythons, row.states[1]) for row in table] == [
        (("3.11",), "claimed"),
        (("3.12",), "run"),
    ]
    assert "| claimed | **run** 3.12 | claimed |" in matrix.summary(table, {})
    assert "[mine.json](../evidence/reports/mine.json)" in matrix.page(table)


def test_the_readme_is_fresh(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    assert matrix.readme(text) == text, "run: make docs"
