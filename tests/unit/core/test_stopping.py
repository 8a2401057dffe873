"""Signals as exceptions; tests/integration/test_signals.py sends them to whole processes."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import process

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in process.STOP_SIGNALS}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


class Exit:
    """What would have ended this process: its exit code, and the children that were killed."""

    def __init__(self) -> None:
        self.code = -1
        self.killed: list[object] = []
        self.cleaned, self.happened, self.never = (threading.Event() for _ in range(3))

    def clean_up(self) -> None:
        """Hang, as a connection to a server that does not answer."""
        self.cleaned.set()
        self.never.wait(60)

    def end(self, code: int) -> None:
        self.code = code
        self.happened.set()


@pytest.fixture
def exit_of_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exit]:
    ending = Exit()
    monkeypatch.setattr(process.os, "_exit", ending.end)
    monkeypatch.setattr(process.atexit, "_run_exitfuncs", ending.clean_up)
    monkeypatch.setattr(process, "CLEANUP_SECONDS", 0.05)
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.05)
    monkeypatch.setattr(process, "running", lambda: frozenset({"a child"}))
    monkeypatch.setattr(process, "kill", ending.killed.extend)
    yield ending
    ending.never.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_exception_with_its_number(number: signal.Signals) -> None:
    process.install_stop_handlers(owns_process=False)
    with pytest.raises(process.TerminatedError) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.args == (number,)


def test_what_the_caller_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.install_stop_handlers(owns_process=False)
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, process.TerminatedError),
        (signal.SIGHUP, process.TerminatedError),
    ],
)
def test_a_process_of_ours_ends_even_if_its_cleanup_hangs(
    exit_of_ours: Exit,
    number: signal.Signals,
    error: type[BaseException],
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())
    process.install_stop_handlers(owns_process=True)
    watching = set(threading.enumerate()) - before
    assert [thread.daemon for thread in watching] == [True], "the process could not exit"
    with pytest.raises(error):
        os.kill(os.getpid(), number)
    for later in process.STOP_SIGNALS:
        os.kill(os.getpid(), later)  # changes nothing
    assert exit_of_ours.happened.wait(30)
    assert exit_of_ours.code == process.exit_code(number)
    assert exit_of_ours.killed == ["a child"]
    assert exit_of_ours.cleaned.is_set()
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
    assert capfd.readouterr().err == (
        "error: stopped before everything was cleaned up; the next run does\n"
    )


def test_a_signal_of_another_kind_does_not_end_a_process_of_ours(exit_of_ours: Exit) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        process.install_stop_handlers(owns_process=True)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not exit_of_ours.happened.wait(0.3)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
    with pytest.raises(process.TerminatedError):
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_of_ours.happened.wait(30)


def test_exit_codes() -> None:
    codes = {n.name: process.exit_code(n) for n in process.STOP_SIGNALS}
    assert codes == {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def test_cleaning_up_and_the_exit_fit_into_two_seconds() -> None:
    assert process.CLEANUP_SECONDS + process.EXIT_SECONDS < 2
    assert sum(process._HASTE) < process.CLEANUP_SECONDS
