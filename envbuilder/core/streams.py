"""Standard streams that escape control characters and report failed writes.

Outside text can thus not drive the terminal, even if a library prints it. Only `styled` streams
pass on escape sequences; the console writes its own styles there.

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
from envbuilder.core.redaction import log_text
from envbuilder.core.text import escaped_lines

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
        """Write text without control characters, or bytes if this is a `buffer`."""
        with _failures():
            self._stream.write(self._safe(data) if isinstance(data, str) else data)
        return len(data)

    def _safe(self, text: str) -> str:
        return escaped_lines(text)

    def flush(self) -> None:
        """Write buffered output."""
        with _failures():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Messages(Results):
    """Standard error without credentials of URLs, that drops output it cannot write."""

    def write(self, data: str | bytes) -> int:
        """Write text without control characters, or bytes if this is a `buffer`."""
        with contextlib.suppress(OutputError):
            return super().write(data)
        return len(data)

    def _safe(self, text: str) -> str:
        return log_text(text)

    def flush(self) -> None:
        """Write buffered output."""
        with contextlib.suppress(OutputError):
            super().flush()


class _Styled:
    """A mixin that passes on escape sequences."""

    def _safe(self, text: str) -> str:
        return text


class _StyledResults(_Styled, Results):
    pass


class _StyledMessages(_Styled, Messages):
    pass


def styled(stream: Any) -> Any:
    """Return the stream for text that carries styles: its writer has escaped all else."""
    if isinstance(stream, Results):
        kind = _StyledMessages if isinstance(stream, Messages) else _StyledResults
        return kind(stream._stream)
    return stream


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
