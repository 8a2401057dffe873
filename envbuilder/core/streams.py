"""Standard streams whose failures are reported: full, closed, or without a reader.

Python drops what is printed to a closed stdout, and reports a full one only when it exits. Results
that nothing received must not look like success, so writing them raises an error of ours. Messages
are no result: where stderr cannot take them they are dropped, and the exit code still speaks.
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
    """Standard output cannot take the results (exit 1)."""


class NoReaderError(Exception):
    """The program that read the output has ended, as `head` does.

    It is no `OSError`, since some libraries exit on their own when they see a broken pipe.
    """


class Results:
    """Standard output; `OutputError` where it cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def buffer(self) -> Results:
        """The same for bytes."""
        return type(self)(self._stream.buffer)

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes to `buffer`."""
        with _failures():
            return int(self._stream.write(data))

    def flush(self) -> None:
        """Write what is held back."""
        with _failures():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Messages(Results):
    """Standard error; what it cannot take is dropped."""

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes to `buffer`."""
        with contextlib.suppress(OutputError):
            return super().write(data)
        return len(data)

    def flush(self) -> None:
        """Write what is held back."""
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
    """Open what is closed of the three streams, and make failures to write known.

    Otherwise the next file that is opened would become the standard output of every child. A closed
    stdout stays one that cannot be written.
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
    with contextlib.suppress(AttributeError):  # somebody's own stream
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream


def discard() -> None:
    """Let what could not be written go, so that Python does not try again when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
