"""The one doorway to other programs: the only module that starts processes.

Programs are resolved first, so that a missing one is a clear error before anything starts. Output
is streamed line by line; on Ctrl-C, a time-out or a failing reader the child and its group are
asked to stop, then killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from envbuilder.core.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GRACE_SECONDS = 10.0

KEPT_BYTES, LONGEST_LINE = 16 << 20, 4 << 20
"""A program may print without end: of its output the last bytes are kept, between so many and
twice as many; a longer line reaches a callback in pieces. (A payload's lines have 0.3 MB at most.)
"""


class Completed(Struct, frozen=True, kw_only=True):
    """A finished program: its exit status (negative: the signal), output and wall time."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def last_words(self) -> str:
        """The last lines that were printed, for messages."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-12:])


class Tail:
    """The end of a text that may be of any length."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Take more of the text; its beginning is dropped where there is too much."""
        self._bytes += data
        if len(self._bytes) > 2 * KEPT_BYTES:
            del self._bytes[:-KEPT_BYTES]

    @property
    def text(self) -> str:
        """The text, or its end."""
        return self._bytes.decode(errors="replace")


def which(program: str) -> str | None:
    """The full path of an executable, or None."""
    return shutil.which(program)


def quoted(argv: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(argv)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    stdin: str = "",
    on_stdout: Callable[[str], None] | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to its end and return what it printed.

    `env` is added to `base`, by default this process's environment. `timeout` is in seconds.
    `stdin` is what the program gets to read: a line or two. The callbacks get each line as it
    comes. Raises `ToolError` when the program is missing; a failing exit status is returned. Of
    output without an end the last part is returned.
    """
    program = which(argv[0])
    if program is None:
        raise ToolError(f"{argv[0]}: not found or not executable")
    started = time.monotonic()
    out, err = Tail(), Tail()
    readers: list[threading.Thread] = []
    timed_out = False
    held = _HeldSignals()
    try:
        child = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**(os.environ if base is None else base), **(env or {})},
            cwd=cwd,
            text=True,
            encoding="utf-8",
            errors="replace",
            # Own group: a Ctrl-C reaches us alone, and we decide how the child ends.
            start_new_session=True,
        )
    except BaseException:
        held.release()
        raise
    try:
        for stream, kept, callback in (
            (child.stdout, out, on_stdout),
            (child.stderr, err, on_stderr),
        ):
            reader = threading.Thread(target=_drain, args=(stream, kept, callback), daemon=True)
            reader.start()
            readers.append(reader)
        held.release()
        if child.stdin:
            with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
                pipe.write(stdin)
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        timed_out = True
        _stop(child)
    except BaseException:
        _stop(child)
        raise
    finally:
        for reader in readers:
            reader.join(GRACE_SECONDS)
    return Completed(
        argv=tuple(argv),
        returncode=child.returncode,
        stdout=out.text,
        stderr=err.text,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
    )


class _HeldSignals:
    """Holds SIGINT and SIGTERM back while a child is born, else it could outlive us unknown.

    Their handlers raise wherever Python happens to be: between the start of a child and the first
    line that knows it, the child would go on writing into folders that are being removed.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        del frame
        self._came.append(number)

    def release(self) -> None:
        """Put the handlers back, and let them have what came meanwhile."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        for number in self._came:
            os.kill(os.getpid(), number)


def _drain(stream: Any, kept: Tail, callback: Callable[[str], None] | None) -> None:
    with stream:
        while line := stream.readline(LONGEST_LINE):
            kept.add(line.encode())
            if callback:
                callback(line.rstrip("\n"))


def _stop(child: subprocess.Popen[str]) -> None:
    """Interrupt, then terminate, then kill the child's group."""
    for number, patience in ((signal.SIGINT, 2.0), (signal.SIGTERM, GRACE_SECONDS)):
        if child.poll() is not None:
            break
        _signal(child, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
    # Also when the child has gone: what it started may still be writing.
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def replace(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become another program, so that its exit code and signals are ours."""
    program = which(argv[0])
    if program is None:
        raise ToolError(f"{argv[0]}: not found or not executable")
    # Python ignores SIGPIPE, and an ignored signal stays ignored in the next program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(program, list(argv), {**os.environ, **env})  # noqa: S606 (no shell is meant)


def start_again(*options: str) -> NoReturn:
    """Begin this very command anew, with further options for Python."""
    # Not looked for as other programs are: it runs already.
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606
