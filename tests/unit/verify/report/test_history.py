"""Reports are kept in order, whatever the clock says, and read at the door."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.verify import run
from envbuilder.verify.report import history, model
from tests.support.reports import CUDA, loaded, whole, written


def names(folder: Path) -> list[str]:
    return [e.path.name for e in history.entries(folder)]


def keep(folder: Path, **changes: Any) -> Path:
    """Keep a report with these changes."""
    return history.keep(whole(**changes), folder)


def last(folder: Path, **changes: Any) -> str | None:
    """The `time` of the report that --against last would take for a run with these changes."""
    like = loaded(**changes).report
    found = history.last(
        folder,
        profile=like.profile or "",
        backend=like.backend or "",
        quick=like.partial,
        like=like,
    )
    return found.report.time if found else None


def test_a_name_says_what_it_is(tmp_path: Path) -> None:
    path = keep(tmp_path / "reports")
    assert path.name == "000001-20261120T095103Z-cpu-venv-0123456789ab.json"
    assert history.read(path).report == model.check(whole())
    path = keep(
        tmp_path / "reports",
        known__profile="cpu-ipex",
        known__backend="external",
        known__fingerprint=None,
    )
    assert path.name == "000002-20261120T095103Z-cpu-ipex-external.json"
    (first, second) = history.entries(tmp_path / "reports")
    assert (first.profile, first.backend) == ("cpu", "venv")
    assert (second.profile, second.backend) == ("cpu-ipex", "external")
    path = keep(tmp_path / "reports", known__backend="apptainer")
    assert history.entries(tmp_path / "reports")[-1].path == path


def test_a_clock_that_runs_backwards_changes_no_order(tmp_path: Path) -> None:
    # From the future, then right, then before the epoch of everything.
    times = ["20391231T235959Z", "20261120T095103Z", "19700101T000000Z"]
    for time in times:
        keep(tmp_path, known__time=time)
    assert [e.time for e in history.entries(tmp_path)] == times
    assert names(tmp_path) == sorted(names(tmp_path))
    assert last(tmp_path) == "19700101T000000Z"


def test_the_number_goes_on_after_a_gap(tmp_path: Path) -> None:
    for _ in range(3):
        keep(tmp_path)
    history.entries(tmp_path)[0].path.unlink()
    assert keep(tmp_path).name.startswith("000004-")
    written(tmp_path / "9999999-20261120T095103Z-cpu-venv.json")
    assert keep(tmp_path).name.startswith("10000000-")
    assert history.entries(tmp_path)[-1].number == 10_000_000


def test_other_files_are_no_reports_of_ours(tmp_path: Path) -> None:
    kept = keep(tmp_path)
    for name in ("notes.json", f".{kept.name}.1.part", "000002-x-cpu-venv.json", "x"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "000003-20261120T095103Z-cpu-venv.json").mkdir()
    (tmp_path / "000004-20261120T095103Z-cpu-venv.json").symlink_to(kept)
    assert names(tmp_path) == [kept.name]
    assert history.entries(tmp_path / "nowhere") == ()
    assert history.entries(tmp_path, "xpu") == ()


def test_last_is_the_newest_that_passed_of_the_same_kind(tmp_path: Path) -> None:
    def keep_at(second: int, **changes: Any) -> None:
        keep(tmp_path, known__time=f"20261120T0000{second:02}Z", **changes)

    assert last(tmp_path) is None
    keep_at(1)
    keep_at(2, device__name="Intel Xeon")
    keep_at(3, quick=True)
    keep_at(4, dataset__subset=True)
    keep_at(5, known__backend="docker")
    keep_at(6, **CUDA)
    keep_at(7, status="failed", reasons=["no"])
    damaged = tmp_path / "000099-20261120T000008Z-cpu-venv.json"
    damaged.write_text('{"schema": 1')
    assert last(tmp_path) == "20261120T000001Z"
    assert last(tmp_path, device__name="Intel Xeon") == "20261120T000002Z"
    assert last(tmp_path, quick=True) == "20261120T000004Z"
    assert last(tmp_path, known__backend="docker") == "20261120T000005Z"
    assert last(tmp_path, **CUDA) == "20261120T000006Z"
    assert last(tmp_path, device__name="AMD") is None
    assert last(tmp_path, framework__name="jax") is None
    found = history.last(tmp_path, profile="cpu", backend="venv", quick=False)
    assert found.report.time == "20261120T000002Z", "before the run the device is not known"


def test_a_busy_machine_is_no_yardstick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 1)
    keep(tmp_path, known__time="20261120T000001Z")
    for second in (2, 3):
        keep(tmp_path, known__time=f"20261120T00000{second}Z", speed="not_judged")
        assert last(tmp_path) == "20261120T000001Z"
    # The newest is kept as the newest; the one before it serves no comparison.
    assert [e.number for e in history.entries(tmp_path)] == [1, 3]


def test_each_external_interpreter_has_its_own_history(tmp_path: Path) -> None:
    mine: dict[str, Any] = {"known__backend": "external", "known__fingerprint": None}
    one, two = ({**mine, "known__artifact": {"ref": f"{n}/bin/python"}} for n in ("a", "b"))
    keep(tmp_path, **one)
    assert last(tmp_path, **one) is not None
    assert last(tmp_path, **two) is None


def test_the_newest_stay_and_so_does_a_yardstick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    keep(tmp_path)
    keep(tmp_path, quick=True)
    keep(tmp_path, known__profile="xpu")
    keep(tmp_path)
    foreign = tmp_path / "20261120-cpu.json"
    foreign.write_text("{}")
    for _ in range(5):
        keep(tmp_path, status="failed", reasons=["no"])
    # The newest passed one of each kind outlives any number of failed ones.
    assert [e.number for e in history.entries(tmp_path)] == [2, 3, 4, 7, 8, 9]
    assert foreign.exists()
    assert last(tmp_path) is not None


def no_space(path: Path, content: bytes, mode: int = 0o666) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("obstacle", ["full", "file", "locked"])
def test_a_report_that_cannot_be_kept_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    folder = tmp_path / "reports"
    if obstacle == "full":
        monkeypatch.setattr(files, "write", no_space)
    elif obstacle == "file":
        folder.write_text("")
    monkeypatch.setattr(history, "_LOCK_SECONDS", 0.0)
    if obstacle == "locked":
        folder.mkdir()
        with (
            FileLock(folder / ".lock"),
            pytest.raises(BuildError, match=r"cannot store the report"),
        ):
            keep(folder)
    else:
        with pytest.raises(BuildError, match=r"No space left|File exists") as caught:
            keep(folder)
        assert "ENVBUILDER_DATA_DIR" in caught.value.hint
        assert caught.value.exit_code == 1
    assert history.entries(folder) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "damaged"),
        (b'"\\ud800"', "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"{}", "malformed"),
        (json.dumps({"schema": 3}).encode(), "a newer envbuilder has schema 3, expected 2"),
        (json.dumps(whole(device__used="cuda")).encode(), "contradicts itself"),
        (b" " * (decoding.LARGEST + 1), "larger than 16 MiB"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=said) as caught:
        history.read(path)
    assert str(path) in caught.value.message


def test_an_older_report_is_called_older_and_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{"schema": 1, "torch": {}}')
    with pytest.raises(InvalidError) as caught:
        history.read(path)
    assert caught.value.message == (
        f"{path}: the report of an earlier envbuilder has schema 1, expected 2"
    )
    assert caught.value.hint == "Verify again with this one."


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path("/dev/zero")):
        with pytest.raises(InvalidError, match=str(path)):
            history.read(path)


def test_what_acts_on_a_terminal_goes_no_further_than_the_door(tmp_path: Path) -> None:
    """JSON escapes C0 alone: a raw C1 or bidirectional character would be in every copy."""
    name = "A\x9b2JB\u202eC\u200bD é"
    path = written(tmp_path / "report.json", device__name=name)
    assert history.read(path).report.device.name == "A?2JB?C?D é"
    stored = run.as_stored({"name": name, name: ["\x1b\n", 1.5, None]}, "")
    assert stored == {"name": "A?2JB?C?D é", "A?2JB?C?D é": ["\x1b\n", 1.5, None]}


def test_a_folder_that_cannot_be_read_is_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InvalidError, match="cannot be read: Permission denied"):
        history.entries(tmp_path)
