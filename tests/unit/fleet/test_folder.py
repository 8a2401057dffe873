"""The plan of a run is read as it was written, or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.fleet import folder as folders
from tests.support import fleets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "x"),
        ("folder", "/a b"),
        ("options", ["--comment=a\nrm -rf /"]),
        ("setup", ["a\nb"]),
        ("variables", {"A=$(id)": ""}),
        ("limit_seconds", 0),
    ],
)
def test_what_would_make_other_scripts_is_refused(key: str, value: object, tmp_path: Path) -> None:
    """Scripts of nodes that train together are made of the plan, also when a run goes on."""
    across = fleets.common(tmp_path)
    plan = fleets.plan(fleets.promise(), across=across)
    folders.create(tmp_path / "run", plan, {})
    assert folders.read(tmp_path / "run").across == across
    file = tmp_path / "run" / folders.PLAN
    data = json.loads(file.read_text())
    data["across"][key] = value
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidError, match="not the plan of a run"):
        folders.read(tmp_path / "run")


def test_a_time_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    plan = fleets.plan(fleets.promise())
    folders.create(tmp_path / "run", plan, {})
    assert folders.read(tmp_path / "run") == plan
    file = tmp_path / "run" / folders.PLAN
    file.write_text(file.read_text().replace(plan.started, "20261340T991500Z"))
    with pytest.raises(InvalidError, match="not the plan of a run: time data"):
        folders.read(tmp_path / "run")
