"""Standard streams that report failed writes: a full disk, a closed stream, a broken pipe.

Python drops output to a closed stdout, and reports a full disk only at exit. Lost results must not
look like success, so writing them raises `OutputError` or `NoReaderError`. Messages are not
results: if stderr cannot take them they are dropped, and the exit code still shows the outcome.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from typing import TextIO


class OutputError(BuildError):
    """The results cannot be written to standard output (exit 1)."""


class NoReaderError(Exception):
    """The program reading the output has exited, as `head` does.

    Not an `OSError`, because some libraries exit on their own on a broken pipe.
    """


class Results:
    """Standard output that raises `OutputError` if it cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def buffer(self) -> Results:
        """The binary stream, with the same error handling."""
        return type(self)(self._stream.buffer)

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes if this is a `buffer`."""
        with _failures():
            return int(self._stream.write(data))

    def flush(self) -> None:
        """Write buffered output."""
        with _failures():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Messages(Results):
    """Standard error that drops output it cannot write."""

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes if this is a `buffer`."""
        with contextlib.suppress(OutputError):
            return super().write(data)
        return len(data)

    def flush(self) -> None:
        """Write buffered output."""
        with contextlib.suppress(OutputError):
            super().flush()


@contextlib.contextmanager
def _failures() -> Any:
    try:
        yield
    except BrokenPipeError as error:
        raise NoReaderError from error
    except OSError as error:
        why = "it is closed" if error.errno == errno.EBADF else error.strerror or error
        raise OutputError(
            f"standard output cannot be written: {why}",
            "The command's result was lost: run it again with an output that can be written.",
        ) from error


def guard() -> None:
    """Reopen standard streams that are closed, and wrap stdout and stderr to handle failed writes.

    Otherwise the next file to be opened would become the standard output of every child. A closed
    stdout is reopened read-only, so that it still cannot be written.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = Results(_writable(sys.stdout, 1))
    sys.stderr = Messages(_writable(sys.stderr, 2))


def _writable(stream: TextIO | None, number: int) -> TextIO:
    stream = stream or open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    with contextlib.suppress(AttributeError):  # a replaced stream may lack `reconfigure`
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream


def discard() -> None:
    """Drop output that could not be written, so that Python does not try again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
