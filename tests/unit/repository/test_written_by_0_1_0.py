"""Files that 0.1.0 wrote, in `tests/data/0.1.0`: every later version reads them.

Until 0.1.0 is out, `make golden` takes a new key along, and other changes need a new recording;
afterwards the files stay as they are. Paths and the host's name were replaced, and long lists
shortened.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envbuilder import __version__
from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock
from envbuilder.verify.report import model as report
from envbuilder.watch import model as watch
from tests.support.command_line import Command

FOLDER = Path(__file__).parents[2] / "data/0.1.0"
LOCK = "project/envbuilder.lock/default.mine.json"


ROUNDS = {
    LOCK: lambda path: lock.dump(lock.load(path)),
    "mine.conda.json": lambda path: conda_lock.dump(conda_lock.load(path)),
    "watch.json": lambda path: watch.encoded(watch.read(path)),
    "bundle.json": lambda path: bundle.encode(bundle.parse(path.read_bytes(), "")).decode(),
    "environment/lib/envbuilder/files.jsonl": (
        lambda path: integrity.listed(integrity.parsed(path.read_text()))
    ),
}
"""File → how it is read, and written again."""


@pytest.mark.parametrize("name", ROUNDS)
def test_it_is_read_and_nothing_of_it_is_lost(name: str, rewrite_golden: bool) -> None:
    again = ROUNDS[name](FOLDER / name)
    recorded = (FOLDER / name).read_text()
    if __version__ == "0.1.0":
        if rewrite_golden:
            (FOLDER / name).write_text(again)
        assert again == recorded, "the format has changed: make golden, until 0.1.0 is out"
    elif name.endswith(".json"):
        assert json.loads(recorded).items() <= json.loads(again).items()


def test_a_projects_lock_is_still_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    """Else every user would have to lock again."""
    shutil.copytree(FOLDER / "project", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    assert "default.mine" in envbuilder("check").out


def test_a_report_is_valid_and_can_be_compared(envbuilder: Command) -> None:
    path = FOLDER / "report.json"
    checked = report.check(json.loads(path.read_bytes()))
    assert (checked.status, checked.speed) == ("passed", "not_judged")
    assert "91.60 %" in envbuilder("compare", str(path), str(path)).out


def test_an_environment_is_known_as_ours_by_its_files() -> None:
    prefix = FOLDER / "environment"
    entries = integrity.parsed((prefix / integrity.FILES).read_text())
    assert integrity.tree_digest(entries) == integrity.marker(prefix)["tree"]
