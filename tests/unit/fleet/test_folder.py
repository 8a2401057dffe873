"""The plan of a run is read as it was written, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.fleet import folder as folders
from tests.support import fleets

if TYPE_CHECKING:
    from pathlib import Path


def test_a_time_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    plan = fleets.plan(fleets.promise())
    folders.create(tmp_path / "run", plan, {})
    assert folders.read(tmp_path / "run") == plan
    file = tmp_path / "run" / folders.PLAN
    file.write_text(file.read_text().replace(plan.started, "20261340T991500Z"))
    with pytest.raises(InvalidError, match="not the plan of a run: time data"):
        folders.read(tmp_path / "run")
