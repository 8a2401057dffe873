"""An interpreter is run once, and again when anything about it may have changed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.core import process, uv_program
from envbuilder.host import interpreters
from envbuilder.host.interpreter_answers import NAME, OWNED, Answer, Answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ANSWER = Answer(
    version="3.11.7",
    final=True,
    bits=64,
    implementation="cpython",
    machine="x86_64",
    free_threaded=False,
    executable="",
    prefix="/usr",
    base_prefix="/usr",
)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "python3.11"
    path.parent.mkdir()
    path.write_text("an interpreter")
    path.chmod(0o755)
    return path


def answer(path: Path, **changes: Any) -> Answer:
    return replace(ANSWER, executable=str(path), **changes)


@pytest.fixture
def learned(python: Path, tmp_path: Path) -> Path:
    """The folder of a command that ran the interpreter."""
    folder = tmp_path / "cache" / "interpreters"
    answers = Answers(folder)
    answers.add(python, answer(python))
    answers.save()
    return folder


def test_the_next_command_knows_the_answer(learned: Path, python: Path) -> None:
    answers = Answers(learned)
    assert not answers.used
    assert answers.get(python) == answer(python)
    assert answers.used
    assert (learned / NAME).stat().st_mode & 0o777 == 0o600
    assert OWNED.has(NAME, "file"), "`clean` knows it"


def test_what_this_command_asked_is_not_remembered(python: Path, tmp_path: Path) -> None:
    answers = Answers(tmp_path / "new")
    answers.add(python, answer(python))
    assert answers.get(python) == answer(python)
    assert not answers.used


def edit(python: Path) -> None:
    python.write_text("another one")


def exchange(python: Path) -> None:
    other = python.with_name("other")
    other.write_text(python.read_text())
    other.replace(python)


def wrap(python: Path) -> None:
    (python.parent.parent / "pyvenv.cfg").write_text("home = /opt\n")


@pytest.mark.parametrize("change", [edit, exchange, wrap, lambda python: python.unlink()])
def test_what_changed_is_asked_again(
    learned: Path, python: Path, change: Callable[[Path], None]
) -> None:
    change(python)
    assert Answers(learned).get(python) is None


def test_another_interpreter_behind_the_same_link(python: Path, tmp_path: Path) -> None:
    link, other = tmp_path / "python3", tmp_path / "python3.12"
    other.write_text("an interpreter")
    link.symlink_to(python)
    answers = Answers(tmp_path / "new")
    answers.add(link, answer(link))
    assert answers.get(link)
    link.unlink()
    link.symlink_to(other)
    assert answers.get(link) is None


def test_the_answer_of_a_shim_is_never_kept(python: Path, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\n")
    answers = Answers(tmp_path / "new")
    answers.add(shim, answer(python))
    assert answers.get(shim) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 2}',
        b'{"answers": {"/usr/bin/python3": {"identity": [], "answer": {}}}}',
        b'{"extra": 1}',
        b'{"managed": {"3.11": "\\u0000"}}',
        b'{"managed": {"3.11": "' + b"x" * (1 << 20) + b'"}}',
        b"\xff",
    ],
)
def test_a_damaged_file_counts_as_none(learned: Path, python: Path, content: bytes) -> None:
    (learned / NAME).write_bytes(content)
    answers = Answers(learned)
    assert answers.get(python) is None
    assert answers.managed("3.11") is None
    answers.add(python, answer(python))
    answers.save()
    assert Answers(learned).get(python)


def test_a_folder_that_cannot_be_written_stops_nothing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = Answers(tmp_path / "file" / "interpreters")
    answers.add(python, answer(python))
    answers.save()


def test_the_oldest_go_first(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "new")
    paths = [tmp_path / f"python{n}" for n in range(70)]
    for path in paths:
        path.write_text("")
        answers.add(path, answer(path))
    answers.save()
    later = Answers(tmp_path / "new")
    assert [bool(later.get(path)) for path in paths] == [False] * 6 + [True] * 64


class Programs:
    """Counts the programs that a search runs: interpreters, and uv, which manages one."""

    def __init__(self, managed: Path, **changes: Any) -> None:
        self.managed, self.changes, self.ran = managed, changes, list[str]()

    def __call__(self, argv: Sequence[str], **_: Any) -> process.Completed:
        uv = argv[0] == uv_program.path()
        self.ran.append("uv" if uv else argv[0])
        said = answer(self.managed, **self.changes)
        out = str(self.managed) if uv else json.dumps({f: getattr(said, f) for f in FIELDS})
        return process.Completed(argv=tuple(argv), returncode=0, stdout=out, stderr="", seconds=0)


FIELDS = Answer.__struct_fields__


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Programs, str], Answers]:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))

    def run(programs: Programs, path: str = "") -> Answers:
        answers = Answers(tmp_path / "cache")
        interpreters.find(
            *("3.11", ("3.11",), "x86_64"),
            runner=programs,
            environ={"PATH": path},
            answers=answers,
        )
        answers.save()
        return answers

    return run


def test_an_interpreter_on_path_is_run_once(
    python: Path, search: Callable[[Programs, str], Answers]
) -> None:
    programs = Programs(python)
    assert not search(programs, str(python.parent)).used
    assert search(programs, str(python.parent)).used
    assert programs.ran == [str(python)]


def test_uv_is_asked_once_for_its_interpreter(
    python: Path, search: Callable[[Programs, str], Answers]
) -> None:
    programs = Programs(python)
    search(programs, "")
    assert search(programs, "").used
    assert programs.ran == ["uv", str(python)]
    edit(python)
    search(programs, "")
    assert programs.ran == ["uv", str(python)] * 2


def test_after_forgetting_each_is_run_again(
    python: Path, search: Callable[[Programs, str], Answers], tmp_path: Path
) -> None:
    search(Programs(python), "")
    answers = Answers(tmp_path / "cache")
    answers.forget()
    assert answers.get(python) is None
    assert answers.managed("3.11") is None
    answers.save()
    assert Answers(tmp_path / "cache").get(python) is None
