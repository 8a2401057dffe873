"""Files that 0.1.0 wrote, in `tests/data/0.1.0`: every later version reads them.

Until 0.1.0 is out, a format that must change takes its file here along; afterwards the files stay
as they are. Paths and the host's name were replaced, and long lists shortened.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from envbuilder import __version__
from envbuilder.builds import records
from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle
from envbuilder.core import console
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock
from envbuilder.verify.report import model as report
from envbuilder.watch import model as watch
from tests.support.command_line import Command

FOLDER = Path(__file__).parents[2] / "data/0.1.0"
LOCK = "project/envbuilder.lock/default.mine.json"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def written_again(name: str) -> str:
    """Read a file as its reader does, and write what was read."""
    path = FOLDER / name
    match name:
        case "mine.conda.json":
            return conda_lock.dump(conda_lock.load(path))
        case "watch.json":
            return watch.encoded(watch.read(path))
        case "bundle.json":
            return bundle.encode(bundle.parse(path.read_bytes(), name)).decode()
        case "image.json":
            record = msgspec.json.decode(path.read_bytes(), type=records.ImageRecord)
            return console.as_json(record, indent=1) + "\n"
        case "environment/lib/envbuilder/files.jsonl":
            return integrity.listed(integrity.parsed(path.read_text()))
    return lock.dump(lock.load(path))


@pytest.mark.parametrize(
    "name",
    [
        LOCK,
        "mine.conda.json",
        "watch.json",
        "bundle.json",
        "image.json",
        "environment/lib/envbuilder/files.jsonl",
    ],
)
def test_it_is_read_and_nothing_of_it_is_lost(name: str) -> None:
    again = written_again(name)
    if __version__ == "0.1.0":
        assert again == text_of(name), "the format has changed: record the file again"
    elif name.endswith(".json"):
        assert json.loads(text_of(name)).items() <= json.loads(again).items()


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
    marker = integrity.marker(prefix)
    assert (marker["made_by"], marker["profile"]) == ("envbuilder", "cpu")
    entries = integrity.parsed((prefix / integrity.FILES).read_text())
    assert integrity.tree_digest(entries) == marker["tree"]
    assert {entry.kind for entry in entries} == {"file", "executable", "folder", "link"}
