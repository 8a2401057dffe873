from __future__ import annotations

import os
import signal

import pytest

from envbuilder.payload import cli, entry
from envbuilder.payload.machine import threads
from envbuilder.payload.machine.threads import CpuFacts


class BecameError(Exception):
    """Raised in place of becoming the command."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def execvp(file: str, args: list[str]) -> None:
        raise BecameError(file, args, os.environ.get("OMP_NUM_THREADS"))

    monkeypatch.setattr(os, "execvp", execvp)
    monkeypatch.setattr(threads, "fetch", lambda: CpuFacts(8, 3.0, 4))
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(signal, "signal", lambda *args: None)


@pytest.mark.parametrize(
    "arguments", [["exec", "--", "nproc", "--all"], ["exec", "nproc", "--all"]]
)
def test_the_command_gets_the_thread_count(arguments: list[str]) -> None:
    with pytest.raises(BecameError) as became:
        cli.main(arguments)
    assert became.value.args == ("nproc", ["nproc", "--all"], "3")


def test_a_thread_count_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(BecameError) as became:
        cli.main(["exec", "--", "x"])
    assert became.value.args[2] == "7"


def test_options_of_the_command_are_its_own() -> None:
    with pytest.raises(BecameError) as became:
        cli.main(["exec", "--", "x", "--help", "--", "-y"])
    assert became.value.args[1] == ["x", "--help", "--", "-y"]


def test_signals_that_python_ignores_are_not_ignored_in_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = []
    monkeypatch.setattr(signal, "signal", lambda number, action: changed.append((number, action)))
    with pytest.raises(BecameError):
        entry.run_command(["x"])
    assert (signal.SIGPIPE, signal.SIG_DFL) in changed


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FileNotFoundError(2, "No such file"), 127, "nothing-here: command not found"),
        (PermissionError(13, "Permission denied"), 126, "cannot be executed: Permission denied"),
        (OSError(8, "Exec format error"), 126, "cannot be executed: Exec format error"),
    ],
)
def test_a_command_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    code: int,
    words: str,
) -> None:
    def execvp(file: str, args: list[str]) -> None:
        raise error

    monkeypatch.setattr(os, "execvp", execvp)
    assert cli.main(["exec", "--", "nothing-here"]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


@pytest.mark.parametrize("arguments", [["exec"], ["exec", "--"]])
def test_no_command_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "no command given" in capsys.readouterr().err
