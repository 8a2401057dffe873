"""The plan of a run is read as it was written, or refused."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from envbuilder.core import ownership
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


def owned_by_a_stranger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to a user who is neither this one nor root."""
    real = ownership.look

    def look(looked: Path, *, follow: bool) -> ownership.Facts | None:
        facts = real(looked, follow=follow)
        return msgspec.structs.replace(facts, uid=4711) if facts and looked == path else facts

    monkeypatch.setattr(ownership, "look", look)


def test_only_the_user_may_look_into_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    folders.create(folder, fleets.plan(fleets.promise()), {"n1": "#!/bin/bash\n"})
    made = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700] * 5


@pytest.mark.parametrize("whose", ["", "run"])
def test_a_folder_that_a_stranger_made_beforehand_is_refused(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner, and that of the folder around it, could exchange a script before it is sent."""
    folder = tmp_path / "run"
    folder.mkdir()
    owned_by_a_stranger(tmp_path / whose, monkeypatch)
    with pytest.raises(InvalidError, match="neither you nor root"):
        folders.create(folder, fleets.plan(fleets.promise()), {"n1": ""})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["scripts", "results", "logs", "meetings"])
def test_a_part_that_is_there_already_is_not_used(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidError, match="holds a run already"):
        folders.create(tmp_path, fleets.plan(fleets.promise()), {"n1": ""})


@pytest.mark.parametrize(
    "path", ["", "fleet.json", "jobs.jsonl", "scripts", "scripts/n1.sbatch", "results"]
)
def test_no_part_of_a_run_that_goes_on_is_a_strangers(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folders.create(folder, fleets.plan(fleets.promise()), {"n1": ""})
    folders.add_job(folder, "n1", "7")
    folders.read(folder)
    owned_by_a_stranger(folder / path, monkeypatch)
    with pytest.raises(InvalidError, match="neither you nor root") as caught:
        folders.read(folder)
    assert caught.value.exit_code == 2
