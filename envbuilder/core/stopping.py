"""End this process within two seconds of SIGINT, SIGTERM or SIGHUP, whatever it is doing.

The first signal raises an exception in the main thread, so that everything is cleaned up as after
an error; later ones change nothing. If that takes too long, or the main thread is in a call that
cannot be interrupted (a name server that does not answer), a second thread ends the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from envbuilder.core import process

if TYPE_CHECKING:
    from types import FrameType

CLEANUP_SECONDS = 1.4
"""How long the main thread may clean up."""
EXIT_SECONDS = 0.3
"""How long temporary folders and connections may take to be removed after that."""


class TerminatedError(BaseException):
    """SIGTERM or SIGHUP was received; `args` holds its number."""


def exit_code(number: int) -> int:
    """Return the exit code of a process that a signal ended, as shells report it."""
    return 128 + number


def install(*, owns_process: bool) -> None:
    """Handle SIGTERM and SIGHUP from now on; SIGINT and the time, too, if the process is ours.

    Signals that the caller ignores stay ignored, as with nohup.
    """
    handled = [n for n in process.STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    if not owns_process:
        for number in set(handled) - {signal.SIGINT}:
            signal.signal(number, _raise)
        return

    def handle(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, _ignore)
        _raise(number, frame)

    for number in handled:
        signal.signal(number, handle)
    # Written to by the interpreter itself, even while the main thread cannot run a handler.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_guard, args=(reading, frozenset(handled)), daemon=True).start()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: children inherit signals that are really ignored."""


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise TerminatedError(number)


def _guard(reading: int, handled: frozenset[int]) -> NoReturn:
    """Wait for a signal, then end the process unless it ends by itself soon enough."""
    numbers: list[int] = []
    while not numbers:
        numbers = [n for n in os.read(reading, 64) if n in handled]
    children = process.running()
    time.sleep(CLEANUP_SECONDS)
    process.kill(children)  # later ones clean up, such as one that removes a container
    exiting = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    exiting.start()
    exiting.join(EXIT_SECONDS)
    with contextlib.suppress(OSError):
        os.write(2, b"error: stopped before everything was cleaned up; the next run does\n")
    os._exit(exit_code(numbers[0]))
