"""Results are written before they are shown, and nothing that fails loses another one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.core import console
from envbuilder.core.errors import BuildError, InvalidError
from tests.support.streams import Broken

REPORT = {"schema": 2, "status": "passed"}
IS_OURS = console.has_keys("schema", "status")
PAGE = '<!DOCTYPE html>\n<meta name="generator" content="envbuilder">'


def place(path: Path | None, option: str = "--output") -> console.Place:
    return console.Place(option, path, IS_OURS)


@pytest.mark.parametrize(
    "content",
    ["", json.dumps(REPORT, indent=3)],
)
def test_an_earlier_result_is_replaced_however_it_is_written(content: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(content)
    place(path).require()
    assert place(path).write(lambda: "new") == path
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    "content",
    [
        b'{"schema": 1, "profile": "cpu", "targets": []}',
        b'{"schema": 2, "status',
        b"\xff\xfe",
    ],
)
def test_nothing_else_is_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(content)
    (tmp_path / "link.json").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("out.json", "link.json", "pipe.json", "folder.json"):
        for act in (place(tmp_path / name).require, lambda n=name: place(tmp_path / n).write(str)):
            with pytest.raises(
                InvalidError, match=f"{name}: already exists and is a different type of file"
            ):
                act()
    assert path.read_bytes() == content


def test_only_a_page_of_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text("<!DOCTYPE html>\n<title>Mine</title>")
    page = console.Place("--html", path, console.is_page)
    with pytest.raises(InvalidError, match="a different type of file") as refused:
        page.require()
    assert refused.value.hint == "Move it away, or name another file with --html."
    path.write_text(PAGE)
    page.require()


@pytest.mark.parametrize("name", ["file/below/out.json", "x" * 300])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidError, match="cannot be written") as refused:
        place(tmp_path / name).require()
    assert refused.value.hint == "Name another file with --output."


def test_a_place_is_left_as_it_was_found(tmp_path: Path) -> None:
    console.require_places(place(tmp_path / "new/out.json"), place(None))
    assert list(tmp_path.iterdir()) == []


def test_two_results_need_two_files(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(InvalidError, match="named by both --output and --html"):
        console.require_places(place(path), place(path, "--html"))


def test_text_that_no_file_can_hold_is_escaped(tmp_path: Path) -> None:
    place(tmp_path / "out").write(lambda: "caf\udce9")
    assert (tmp_path / "out").read_text() == "caf\\udce9"


def _full() -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


def _refused() -> Path:
    raise BuildError("x: cannot be written")


def test_what_fails_is_returned_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []
    errors = console.deliver(
        (
            ("report", _full),
            ("report", _refused),
            ("page", lambda: place(tmp_path / "page").write(lambda: "page")),
            ("figure", lambda: None),
        ),
        lambda: seen.append((tmp_path / "page").exists()),
    )
    assert seen == [True], "it is shown after all is written"
    assert [error.message for error in errors] == [
        "the report cannot be written: No space left on device",
        "x: cannot be written",
    ]
    assert capsys.readouterr().err == f"page: {tmp_path / 'page'}\n"


@pytest.mark.parametrize(
    ("number", "failures"), [(errno.EPIPE, 0), (errno.ENOSPC, 1), (errno.EBADF, 1)]
)
def test_an_output_that_is_lost_loses_no_result(
    number: int, failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", console.Results(Broken(number)))
    monkeypatch.setattr(console, "discard", lambda: None)
    write: Callable[[], Path | None] = lambda: place(tmp_path / "out").write(lambda: "x")  # noqa: E731
    errors = console.deliver([("report", write)], lambda: console.result("verdict"))
    assert (tmp_path / "out").exists()
    assert len(errors) == failures
    for error in errors:
        assert error.hint == "", "there is no need to run it again"
