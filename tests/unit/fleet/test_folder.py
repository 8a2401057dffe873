"""The folder of a run is the user's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.fleet import folder as folders, judge


def test_a_result_that_is_too_large_is_empty(tmp_path: Path) -> None:
    folders.create(tmp_path, {})
    for node, size in (("n1", judge.LARGEST), ("n2", judge.LARGEST + 1)):
        with folders.result_path(tmp_path, node, "7").open("wb") as result:
            result.truncate(size)
    sizes = {n: len(c) for n, c in folders.arrived(tmp_path, {"n1": "7", "n2": "7"})}
    assert sizes == {"n1": judge.LARGEST, "n2": 0}


def owned_by_a_stranger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to a user who is neither this one nor root."""
    real = files.look

    def look(looked: Path, *, follow: bool) -> os.stat_result | None:
        facts = real(looked, follow=follow)
        stranger = os.stat_result((*facts[:4], 4711, *facts[5:10])) if facts else None
        return stranger if looked == path else facts

    monkeypatch.setattr(files, "look", look)


def test_only_the_user_may_look_into_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "a/run"
    folders.create(folder, {"n1": "#!/bin/bash\n"})
    made = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700] * 4


@pytest.mark.parametrize("whose", ["", "run"])
def test_a_folder_that_a_stranger_made_beforehand_is_refused(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner, and that of the folder around it, could exchange a script before it is sent."""
    folder = tmp_path / "run"
    folder.mkdir()
    owned_by_a_stranger(tmp_path / whose, monkeypatch)
    with pytest.raises(InvalidError, match="neither you nor root"):
        folders.create(folder, {"n1": ""})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["scripts", "results", "logs"])
def test_a_part_that_is_there_already_is_not_used(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidError, match="already contains a run"):
        folders.create(tmp_path, {"n1": ""})
