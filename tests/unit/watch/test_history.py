"""Reports of trainings are kept in order, and compared with those of the same command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.verify.report import history as numbered
from envbuilder.watch import history, judge, model
from envbuilder.watch.model import Loader, Watched
from tests.support.watched import observed, on_cpu, placed, watched, work

SLOW = {"training_seconds": 80.0}
WAITING = {"loader": Loader(batches=1200, waited=30.0, workers=0)}


def test_a_report_is_kept_under_a_number_and_read_again(tmp_path: Path) -> None:
    report = judge.judged(watched(observed(**WAITING)))
    first, second = (history.keep(report, tmp_path / "watched") for _ in range(2))
    assert first.name == "000001-20261126T220000Z-cuda-venv-52a7ad1d9ed3.json"
    assert second.name.startswith("000002-")
    assert first.stat().st_mode & 0o077 == 0
    assert model.read(first) == report


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "watched").write_text("")
    with pytest.raises(BuildError, match="the report cannot be stored"):
        history.keep(watched(), tmp_path / "watched")


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"schema": 1}', '{"schema": 2, "kind": "watch"}', "[" * 100_000, "NaN"],
)
def test_a_damaged_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(InvalidError, match=r"report\.json: damaged"):
        model.read(path)


def test_last_is_the_newest_other_of_the_same_command_that_succeeded(tmp_path: Path) -> None:
    def keep(second: int, **changes: Any) -> Watched:
        report = watched(time=f"20261126T2200{second:02}Z", **changes)
        history.keep(report, tmp_path)
        return report

    assert history.last(tmp_path, watched()) is None
    keep(1)
    keep(2)
    keep(3, command=("python", "other.py"))
    keep(4, requested="cpu")
    keep(5, exit_code=1)
    keep(6, profile="cpu")
    (tmp_path / "000099-20261126T220000Z-cuda-venv.json").write_text("{}")
    itself = keep(7)
    found = history.last(tmp_path, itself)
    assert found.time == "20261126T220002Z"


def test_the_newest_stay_and_the_newest_of_each_command_that_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered, "KEPT", 2)
    for command, code in (("a", 0), ("a", 0), ("b", 0), ("b", 1), ("c", 1), ("d", 1)):
        history.keep(watched(command=(command,), exit_code=code), tmp_path)
    assert [entry.number for entry in numbered.entries(tmp_path)] == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("now", "before", "sentences"),
    [
        ({}, {}, ["about as fast: 640 samples/s, before 640 samples/s"]),
        (SLOW, {}, ["slower: 480 samples/s, before 640 samples/s"]),
        ({}, SLOW, ["faster: 640 samples/s, before 480 samples/s"]),
        ({"samples": 0, **SLOW}, {}, []),
        (
            {"work": (work(dtype="bfloat16"),), "version": "2.15"},
            {},
            [
                "about as fast: 640 samples/s, before 640 samples/s",
                "dtype: bfloat16, before float32",
                "framework: torch 2.15, before torch 2.14.1+cu130",
            ],
        ),
        (
            {"work": (work("cuda:1"),), "parameters": (placed("cuda:1"),), **SLOW},
            {},
            [
                "slower: 480 samples/s, before 640 samples/s",
                "device: cuda:1, before A GPU (cuda:0)",
            ],
        ),
        (WAITING, {}, ["about as fast: 640 samples/s, before 640 samples/s", "new: data"]),
        ({}, WAITING, ["about as fast: 640 samples/s, before 640 samples/s", "gone: data"]),
    ],
)
def test_what_changed_is_said(
    now: dict[str, Any], before: dict[str, Any], sentences: list[str]
) -> None:
    reports = [judge.judged(watched(observed(**changes))) for changes in (now, before)]
    assert history.changes(*reports) == sentences


def test_what_was_not_seen_is_unknown() -> None:
    nothing = watched(processes=())
    assert (judge.device(nothing), judge.dtype(nothing), judge.framework(nothing)) == (
        "unknown",
        "unknown",
        "",
    )
    parameters = on_cpu(work=(), parameters=(placed("cpu", "float16"),))
    assert judge.dtype(watched(parameters)) == "float16"
