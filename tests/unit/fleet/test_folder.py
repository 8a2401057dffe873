"""The plan and the summary of a run are read as they were written, or refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import decoding, files
from envbuilder.core.errors import InvalidError
from envbuilder.fleet import folder as folders, judge
from tests.support import fleets
from tests.support.fleet_runs import entry, summary, unreported
from tests.support.folders import read_json

PLAN = fleets.plan(fleets.promise())


def test_a_time_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    folders.create(tmp_path, PLAN, {})
    assert folders.read(tmp_path) == PLAN
    file = tmp_path / folders.PLAN
    file.write_text(file.read_text().replace(PLAN.started, "20261340T991500Z"))
    with pytest.raises(InvalidError, match="not the plan of a run: time data"):
        folders.read(tmp_path)


def test_a_result_that_is_too_large_is_empty(tmp_path: Path) -> None:
    folders.create(tmp_path, PLAN, {})
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
    folders.create(folder, PLAN, {"n1": "#!/bin/bash\n"})
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
        folders.create(folder, PLAN, {"n1": ""})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["scripts", "results", "logs"])
def test_a_part_that_is_there_already_is_not_used(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidError, match="holds a run already"):
        folders.create(tmp_path, PLAN, {"n1": ""})


@pytest.mark.parametrize(
    "path", ["", "fleet.json", "jobs.jsonl", "scripts", "scripts/n1.sbatch", "results"]
)
def test_no_part_of_a_run_that_goes_on_is_a_strangers(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folders.create(folder, PLAN, {"n1": ""})
    folders.add_job(folder, "n1", "7")
    folders.read(folder)
    owned_by_a_stranger(folder / path, monkeypatch)
    with pytest.raises(InvalidError, match="neither you nor root") as caught:
        folders.read(folder)
    assert caught.value.exit_code == 2


RUN = summary(entry("a"), entry("b", outcome="slow", share=1.6), unreported("c", "lost"))


def test_what_was_written_is_read_from_the_file_and_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / folders.SUMMARY
    file.write_bytes(folders.encode(RUN))
    assert folders.read_summary(file) == folders.read_summary(tmp_path) == RUN
    assert read_json(file)["schema"] == 1


def changed(**values: Any) -> dict[str, Any]:
    return {**json.loads(folders.encode(RUN)), **values}


def with_entry(**values: Any) -> dict[str, Any]:
    first, *others = changed()["entries"]
    return changed(entries=[{**first, **values}, *others])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "Expected `object`"),
        ({}, "missing required field"),
        (changed(schema=2), "$.schema"),
        (changed(schema="1"), "schema"),
        (changed(run="../../etc"), "run"),
        (changed(started="yesterday"), "yesterday"),
        (changed(finished=""), "does not match"),
        (changed(quick=1), "quick"),
        (with_entry(outcome="excellent"), "outcome"),
        (with_entry(node="b"), "the node b is in it twice"),
        (with_entry(node="<b>"), "node"),
        (with_entry(epoch_seconds="1"), "epoch_seconds"),
        (with_entry(job="a b"), "job"),
        (with_entry(gpus=-1), "gpus"),
        (with_entry(gpus="8"), "gpus"),
        # JSON's 1e999 is infinite.
        (with_entry(share=7e77), "share of the node a is not finite"),
        *(
            (content, "not a summary of a fleet")
            for content in (b"", b"\xff", b"{", b'{"a": 1, "a": 2}', b"[" * 200_000)
        ),
    ],
)
def test_what_is_no_summary_is_refused(data: Any, problem: str, tmp_path: Path) -> None:
    file = tmp_path / folders.SUMMARY
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    file.write_bytes(text.replace(b"7e+77", b"1e999"))
    with pytest.raises(InvalidError) as caught:
        folders.read_summary(tmp_path)
    assert str(file) in caught.value.message
    assert problem in caught.value.message


def test_a_file_that_is_missing_or_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot be read") as caught:
        folders.read_summary(tmp_path)
    assert "folder of a finished run" in caught.value.hint
    file = tmp_path / folders.SUMMARY
    with file.open("wb") as stream:
        stream.truncate(decoding.LARGEST + 1)
    with pytest.raises(InvalidError, match="larger than"):
        folders.read_summary(file)


def test_texts_are_safe_whoever_wrote_them(tmp_path: Path) -> None:
    text = json.dumps(with_entry(detail="\x1b[31mred\u202e", device="x" * 5000))
    (tmp_path / folders.SUMMARY).write_text(text)
    row = folders.read_summary(tmp_path).entries[0]
    assert (row.detail, len(row.device)) == ("?[31mred?", 300)
