"""Interpreters that exist as empty files, and what each prints when it is run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.host import interpreters as pythons
from envbuilder.host.interpreters import _FILE, Answer, Answers


def answer(executable: Path, version: str, **changes: Any) -> str:
    prefix = str(executable.parent.parent)
    facts = {
        "version": version,
        "final": True,
        "bits": 64,
        "implementation": "cpython",
        "machine": "x86_64",
        "free_threaded": False,
        "executable": str(executable),
        "base_executable": str(executable),
        "prefix": prefix,
        "base_prefix": prefix,
    }
    return json.dumps({**facts, **changes})


class Machine:
    """Interpreters that exist as empty files, and what each prints when it is run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outputs: dict[str, tuple[int, str, str]] = {}
        self.ran: list[str] = []
        self.argvs: list[tuple[str, ...]] = []
        self.managed = ""
        self.hanging: set[str] = set()
        self.environ = {"PATH": f"{root}/first/bin:{root}/second/bin", "HOME": str(root / "home")}

    def add(self, path: str, version: str = "", *, code: int = 0, **changes: Any) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.chmod(0o755)
        out = answer(file, version, **changes) if version else "pyenv: command not found"
        self.outputs[str(file)] = (code, out if not code else "", out if code else "")
        return file

    def run(
        self, argv: Sequence[str], *, timeout: float | None = None, **_: Any
    ) -> process.Completed:
        assert timeout == pythons.SECONDS
        self.ran.append(argv[0])
        self.argvs.append(tuple(argv))
        if argv[0] == process.uv_path():
            code, out, err = (0, self.managed + "\n", "") if self.managed else (2, "", "none")
        elif argv[0] in self.outputs:
            code, out, err = self.outputs[argv[0]]
        else:
            raise ToolError(f"{argv[0]}: not found or not executable")
        return process.Completed(
            argv=tuple(argv),
            returncode=code,
            stdout=out,
            stderr=err,
            seconds=0.0,
            timed_out=argv[0] in self.hanging,
        )

    def find(self, version: str | None = "3.11", **changes: Any) -> pythons.Interpreter:
        values: dict[str, Any] = {
            "supported": ("3.11", "3.12"),
            "machine": "x86_64",
            **changes,
        }
        return pythons.find(version, runner=self.run, environ=self.environ, **values)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    return Machine(tmp_path)


def test_a_shim_that_fails_is_skipped(machine: Machine) -> None:
    machine.add("first/bin/python3.11", code=127)
    good = machine.add("second/bin/python3.11", "3.11.7")
    found = machine.find()
    assert found.path == good
    assert found.version == "3.11.7"


def test_our_own_interpreter_goes_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    own = machine.add("own/bin/python", "3.11.9")
    machine.add("first/bin/python3.11", "3.11.2")
    monkeypatch.setattr(sys, "executable", str(own))
    assert machine.find().path == own


def test_inside_a_venv_its_base_is_taken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    base = machine.add("opt/bin/python3.11", "3.11.9")
    inside = machine.add(
        "venv/bin/python", "3.11.9", base_executable=str(base), base_prefix=str(base.parent.parent)
    )
    monkeypatch.setattr(sys, "executable", str(inside))
    assert machine.find().path == base


def test_the_base_is_found_where_an_old_python_does_not_say(machine: Machine) -> None:
    base = machine.add("opt/bin/python3.11", "3.11.9")
    # _base_executable names the venv's own python.
    inside = machine.add("first/bin/python3.11", "3.11.9", base_prefix=str(base.parent.parent))
    assert machine.outputs[str(inside)][0] == 0
    assert machine.find().path == base


def test_a_venv_whose_base_is_gone_is_rejected(machine: Machine) -> None:
    machine.add("first/bin/python3.11", "3.11.9", base_prefix=str(machine.root / "gone"))
    with pytest.raises(ToolError, match=r"in a venv whose base Python, in .*gone, cannot be run"):
        machine.find()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"implementation": "pypy"}, "is pypy"),
        ({"machine": "arm64"}, "for arm64"),
        ({"bits": 32}, "32-bit"),
        ({"free_threaded": True}, "free-threaded"),
        ({"final": False}, "pre-release"),
    ],
)
def test_what_is_not_a_plain_cpython_of_this_machine_is_rejected(
    machine: Machine, changes: dict[str, Any], why: str
) -> None:
    machine.add("first/bin/python3.11", "3.11.7", **changes)
    good = machine.add("second/bin/python3.11", "3.11.2")
    assert machine.find().path == good
    good.unlink()
    with pytest.raises(ToolError, match=why):
        machine.find()


def test_one_architecture_has_several_names(machine: Machine) -> None:
    found = machine.add("first/bin/python3.11", "3.11.7", machine="arm64")
    assert machine.find(machine="aarch64").path == found


def test_all_hits_of_python3_are_tried(machine: Machine) -> None:
    machine.add("first/bin/python3", "3.9.2")
    good = machine.add("second/bin/python3", "3.11.4")
    assert machine.find().path == good


def test_pyenv_versions_newest_first(machine: Machine) -> None:
    machine.add("home/.pyenv/versions/3.11.9/bin/python3.11", "3.11.9")
    newest = machine.add("home/.pyenv/versions/3.11.10/bin/python3.11", "3.11.10")
    assert machine.find().path == newest
    machine.environ["PYENV_ROOT"] = str(machine.root / "pyenv")
    other = machine.add("pyenv/versions/3.11.1/bin/python3.11", "3.11.1")
    assert machine.find().path == other


def test_uv_is_asked_last_and_without_the_network(machine: Machine) -> None:
    file = machine.add("uv/cpython-3.11/bin/python3.11", "3.11.15")
    machine.managed = str(file)
    assert machine.find().path == file
    argv = next(a for a in machine.argvs if a[0] == process.uv_path())
    assert {"--offline", "--no-python-downloads", "--managed-python"} <= set(argv)


def test_without_a_version_the_first_supported_then_the_newest(machine: Machine) -> None:
    many = ("3.11", "3.12", "3.9", "3.13")
    old = machine.add("first/bin/python3.9", "3.9.1")
    twelve = machine.add("first/bin/python3.12", "3.12.1")
    assert machine.find(None, supported=many).path == twelve
    assert machine.find(None, supported=("3.9", "3.12")).path == old
    thirteen = machine.add("second/bin/python3.13", "3.13.0")
    assert machine.find(None, supported=many).path == thirteen
    eleven = machine.add("second/bin/python3.11", "3.11.0")
    assert machine.find(None, supported=many).path == eleven


def test_an_installed_one_of_another_version_beats_asking_uv(machine: Machine) -> None:
    machine.managed = str(machine.add("uv/bin/python3.11", "3.11.15"))
    twelve = machine.add("first/bin/python3.12", "3.12.1")
    assert machine.find(None).path == twelve


@pytest.mark.parametrize("out", ["", "hello", "[]", '{"version": 3}', "\x00" * 50])
def test_an_answer_that_is_none(machine: Machine, out: str) -> None:
    file = machine.add("first/bin/python3.11", "3.11.7")
    machine.outputs[str(file)] = (0, out, "")
    with pytest.raises(ToolError, match="not a Python interpreter"):
        machine.find()


def test_one_that_hangs_is_skipped(machine: Machine) -> None:
    machine.hanging.add(str(machine.add("first/bin/python3.11", "3.11.7")))
    good = machine.add("second/bin/python3.11", "3.11.2")
    assert machine.find().path == good


def test_none_found_says_what_was_and_what_to_do(machine: Machine) -> None:
    machine.add("first/bin/python3.11", code=127)
    machine.add("first/bin/python3", "3.9.2")
    with pytest.raises(ToolError) as error:
        machine.find(None)
    message = error.value.message
    assert "no Python 3.11 or 3.12 for x86_64 was found" in message
    assert "exit status 127: pyenv: command not found" in message
    assert "first/bin/python3 (Python 3.9.2)" in message
    assert "python -m uv python install 3.11" in error.value.hint


def test_nothing_is_run_twice(machine: Machine) -> None:
    machine.add("first/bin/python3", "3.9.2")
    (machine.root / "second").mkdir()
    (machine.root / "second/bin").symlink_to(machine.root / "first/bin")
    with pytest.raises(ToolError):
        machine.find(None)
    asked = [a for a in machine.argvs if a[0] != process.uv_path()]
    assert len(asked) == 1


def test_the_question_is_answered_by_this_python(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(pythons._QUESTION, "question", "exec"), {})
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == ".".join(map(str, sys.version_info[:3]))
    assert told["base_prefix"] == sys.base_prefix


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
    path = tmp_path / "bin/python3.11"
    path.parent.mkdir()
    path.write_text("an interpreter")
    path.chmod(0o755)
    return path


def answered(path: Path, **changes: Any) -> Answer:
    return replace(ANSWER, executable=str(path), **changes)


@pytest.fixture
def learned(python: Path, tmp_path: Path) -> Path:
    """The folder of a command that ran the interpreter."""
    folder = tmp_path / "cache/interpreters"
    answers = Answers(folder)
    answers.add(python, answered(python))
    answers.save()
    return folder


def test_the_next_command_knows_the_answer(learned: Path, python: Path) -> None:
    assert Answers(learned).get(python) == answered(python)
    assert (learned / _FILE).stat().st_mode & 0o777 == 0o600


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


def test_another_library_of_the_same_program_is_asked_again(python: Path, tmp_path: Path) -> None:
    library = tmp_path / "libpython3.11.so.1.0"
    library.write_text("3.11.7")
    answers = Answers(tmp_path / "new")
    answers.add(python, answered(python, library=str(library)))
    assert answers.get(python)
    library.write_text("3.11.10")
    assert answers.get(python) is None
    library.unlink()
    assert answers.get(python) is None


def test_another_interpreter_behind_the_same_link(python: Path, tmp_path: Path) -> None:
    link = tmp_path / "python3"
    other = tmp_path / "python3.12"
    other.write_text("an interpreter")
    link.symlink_to(python)
    answers = Answers(tmp_path / "new")
    answers.add(link, answered(link))
    assert answers.get(link)
    link.unlink()
    link.symlink_to(other)
    assert answers.get(link) is None


def test_the_answer_of_a_shim_is_never_kept(python: Path, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\n")
    answers = Answers(tmp_path / "new")
    answers.add(shim, answered(python))
    assert answers.get(shim) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 1}',
        b'{"answers": {"/usr/bin/python3": {"identity": [], "answer": {}}}}',
        b'{"extra": 1}',
        b'{"managed": {"3.11": "\\u0000"}}',
        b'{"managed": {"3.11": "' + b"x" * (1 << 20) + b'"}}',
        b"\xff",
    ],
)
def test_a_damaged_file_counts_as_none(learned: Path, python: Path, content: bytes) -> None:
    (learned / _FILE).write_bytes(content)
    answers = Answers(learned)
    assert answers.get(python) is None
    assert answers.managed("3.11") is None
    answers.add(python, answered(python))
    answers.save()
    assert Answers(learned).get(python)


def test_a_folder_that_cannot_be_written_stops_nothing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = Answers(tmp_path / "file/interpreters")
    answers.add(python, answered(python))
    answers.save()


def remembered(machine: Machine) -> Answers:
    """Search once, as a command does, and keep the answers for the next one."""
    answers = Answers(machine.root / "cache")
    machine.find(answers=answers)
    answers.save()
    return answers


def test_an_interpreter_on_path_is_run_once(machine: Machine) -> None:
    python = machine.add("first/bin/python3.11", "3.11.7")
    remembered(machine)
    remembered(machine)
    assert machine.ran == [str(python)]


def test_uv_is_asked_once_for_its_interpreter_and_again_after_forgetting(machine: Machine) -> None:
    python = machine.add("uv/bin/python3.11", "3.11.15")
    machine.managed = str(python)
    remembered(machine)
    answers = remembered(machine)
    assert machine.ran == [process.uv_path(), str(python)]
    edit(python)
    remembered(machine)
    assert machine.ran == [process.uv_path(), str(python)] * 2
    answers.forget()
    answers.save()
    assert Answers(machine.root / "cache").managed("3.11") is None
    assert Answers(machine.root / "cache").get(python) is None
