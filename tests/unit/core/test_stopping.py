"""Signals as exceptions; tests/integration/test_signals.py sends them to whole processes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import process, stopping

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in process.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_exception_with_its_number(number: signal.Signals) -> None:
    stopping.install(owns_process=False)
    with pytest.raises(stopping.TerminatedError) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.args == (number,)


def test_what_the_caller_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopping.install(owns_process=False)
    os.kill(os.getpid(), signal.SIGHUP)


def test_exit_codes() -> None:
    codes = {n.name: stopping.exit_code(n) for n in process.STOP_SIGNALS}
    assert codes == {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def test_cleaning_up_and_the_exit_fit_into_two_seconds() -> None:
    assert stopping.CLEANUP_SECONDS + stopping.EXIT_SECONDS < 2
    assert sum(process._HASTE) < stopping.CLEANUP_SECONDS
