"""Print notes and progress to stderr, and write results to stdout or to files named by the user.

This is the only module that prints, and it is long because all output follows the same rules. All
text is treated as untrusted: control characters are escaped, and each line stays a single line, so
that no file or server can add lines of its own.

Output files are checked before any work that may take hours. An existing file is replaced only if
it contains a result of the same kind, so that a mistyped path does not overwrite a key or someone's
notes.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    Hint,
    InvalidError,
    as_hints,
    clipped,
    encodable,
    escaped,
    escaped_json,
    escaped_lines,
    log_text,
    redacted,
    redacted_values,
    wrapped,
)
from envbuilder.core.text import duration, percent

if TYPE_CHECKING:
    from pathlib import Path  # at run time, `--help` would wait for it

WIDTH = 80
"""Number of columns for output that does not go to a terminal.

It is fixed, so that files always look the same.
"""
WIDEST = 120
"""Maximum number of columns on a terminal, since longer lines are hard to read."""
LONGEST_LINE = 4000
"""Maximum number of characters in a line that repeats text from files, servers or programs."""
LONGEST_MESSAGE = 20_000
"""Maximum number of characters in an error message.

A message may repeat the last lines of a program's output.
"""


class Verbosity:
    """The values of `--quiet` and `--verbose`, as set on the command line."""

    quiet = False
    verbose = False

    def reset(self) -> None:
        """Restore the default, which is neither quiet nor verbose."""
        self.quiet = self.verbose = False


VERBOSITY = Verbosity()


def detail(text: str) -> None:
    """Print a detail, such as a command that is about to run, but only with --verbose."""
    if VERBOSITY.verbose:
        _report(f"+ {text}")


def _report(line: str) -> None:
    if not VERBOSITY.quiet:
        message(line)


def one_line(text: str) -> str:
    """Return text as one line of output: escaped, shortened, and with credentials removed."""
    return escaped(redacted(text), LONGEST_LINE)


def message(line: str = "") -> None:
    """Print one line to stderr, even with --quiet."""
    # One write, since other threads report, too: print writes the line's end by itself.
    print(f"{one_line(line)}\n", end="", file=sys.stderr, flush=True)


def result(line: str = "") -> None:
    """Print one line of a result to stdout."""
    print(one_line(line), flush=True)


def document(text: str) -> None:
    """Print a document to stdout, unchanged except that control characters are escaped."""
    print(escaped_lines(text), end="" if text.endswith("\n") else "\n", flush=True)


def flush() -> None:
    """Flush stdout.

    Raise `OutputError` or `NoReaderError` if the results cannot be written.
    """
    sys.stdout.flush()


def data(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON to stdout, by default on one line."""
    document(as_json(value, indent=indent))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, with credentials removed.

    Characters that could change how a terminal shows the rest of the text are escaped.
    """
    import msgspec

    encoded = msgspec.json.encode(redacted_values(msgspec.to_builtins(value)))
    if indent:
        encoded = msgspec.json.format(encoded, indent=indent)
    return escaped_json(encoded.decode())


def error(message: str, hints: str | Iterable[Hint] = "") -> None:
    """Print an error to stderr: what happened, and what to do next.

    The hints and all lines of the message after the first are indented. This way, text quoted in
    them, such as the last lines of a program's output, cannot look like a separate message.
    """
    stream = styled(sys.stderr)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    prefix = "error: "
    text = _fitted(prefix + message).removeprefix(prefix)
    start = f"\x1b[31m\x1b[1m{prefix}\x1b[0m" if coloured else prefix
    lines = [start + text]
    for hint in as_hints(hints):
        lines += hint_lines(hint)
    for line in lines:
        print(line, file=stream, flush=True)


def hints(hints: Iterable[Hint]) -> None:
    """Print hints to stdout as part of a result."""
    for hint in hints:
        for line in hint_lines(hint):
            print(line, flush=True)


def note(hint: Hint) -> None:
    """Print a hint to stderr, unless --quiet is given."""
    if not VERBOSITY.quiet:
        for line in hint_lines(hint):
            print(f"{line}\n", end="", file=sys.stderr, flush=True)


def hint_lines(hint: Hint) -> list[str]:
    """Return the lines of a hint: the sentence, followed by the indented command.

    The command is never wrapped or shortened, so that users can paste it and scripts can find it.
    """
    lines = []
    if hint.sentence:
        lines.append(_fitted(f"{hint.sentence}:" if hint.command else hint.sentence))
    if hint.command:
        lines.append(f"  {redacted(hint.command_line())}")
    return lines


def _fitted(text: str) -> str:
    """Return the text with every line after the first indented.

    If stderr is a terminal, long lines are wrapped.
    """
    text = clipped(redacted(text), LONGEST_MESSAGE)
    lines = [escaped(line, LONGEST_LINE) for line in text.rstrip("\n").split("\n")]
    if sys.stderr.isatty():
        width = min(columns(), WIDEST)
        lines = [wrapped(n, width - 2) if len(n) > width - 2 else n for n in lines]
    return "\n  ".join(lines)


def columns() -> int:
    """Return the terminal's width in columns, or `WIDTH` if it is unknown.

    This is what `shutil.get_terminal_size` does, but without the slow import of `shutil`.
    """
    with suppress(ValueError):
        if (number := int(os.environ.get("COLUMNS", "0"))) > 0:
            return number
    with suppress(OSError):
        return os.get_terminal_size().columns or WIDTH
    return WIDTH


def width() -> int:
    """Return the number of columns for text on stdout.

    This is at most `WIDEST` on a terminal, and `WIDTH` if stdout is not a terminal.
    """
    return min(columns(), WIDEST) if sys.stdout.isatty() else WIDTH


class Task(Protocol):
    """A long-running task whose progress is shown."""

    def advance(self, amount: int) -> None:
        """Add `amount` to the work done so far."""

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        """Set the amount of work done and, if given, the total amount and the detail to show."""


class Progress(Protocol):
    """Interface that long-running work uses to report its progress."""

    def task(
        self, name: str, total: int | None = None, unit: str = ""
    ) -> AbstractContextManager[Task]:
        """Start a task with the given name, and return a context manager that yields the task.

        `unit` is either `bytes` or empty.
        """

    def note(self, text: str) -> None:
        """Report something about the current work, in one line."""


class PlainProgress:
    """Progress as plain lines: one when a task starts and, for longer tasks, one when it ends."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write

    def note(self, text: str) -> None:
        """Print one line."""
        (self._write or _report)(text)

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
        """Yield a task. Print its name when it starts, and its progress every ten seconds.

        If the task takes two seconds or more, print the time taken at the end.
        """
        size = f" ({total / 1e6:.0f} MB)" if unit == "bytes" and total else ""
        self.note(f"· {name}{size}")
        started = time.monotonic()
        yield _PlainTask(self, name, total)
        seconds = time.monotonic() - started
        if seconds >= 2:
            self.note(f"  {name}: {seconds:.1f} s")


class _PlainTask:
    PERIOD_SECONDS = 10.0

    def __init__(self, progress: PlainProgress, name: str, total: int | None) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._next = self._began + self.PERIOD_SECONDS

    def advance(self, amount: int) -> None:
        self.update(self._done + amount)

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        self._done = done
        self._total = total or self._total
        now = time.monotonic()
        if self._total and self._done and now >= self._next:
            self._next = now + self.PERIOD_SECONDS
            share = percent(self._done / self._total, 0)
            left = (now - self._began) * (self._total - self._done) / self._done
            parts = (share, f"{duration(left)} left" if left else "", detail)
            self._progress.note(f"  {self._name}: {', '.join(filter(None, parts))}")


class RichProgress:
    """Progress bars on a terminal. Each finished task leaves a line with the time it took."""

    def __init__(self) -> None:
        self._console = rich_console(stderr=True)

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(one_line(text))

    @contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
        """Yield a task that is shown as a progress bar, or as a spinner if the total is unknown.

        Print the time taken when the task ends.
        """
        from rich.progress import Progress

        columns = _columns(unit, sized=bool(total))
        name = one_line(name)
        started = time.monotonic()
        with Progress(*columns, console=self._console, transient=True) as bar:
            yield _RichTask(bar, bar.add_task(name, total=total), name, unit)
        self.note(f"· {name}: {time.monotonic() - started:.1f} s")


def _columns(unit: str, *, sized: bool) -> tuple[Any, ...]:
    from rich import progress as bars

    columns: list[Any] = [bars.SpinnerColumn(), bars.TextColumn("{task.description}", markup=False)]
    if sized:
        columns += [bars.BarColumn(bar_width=24), bars.TaskProgressColumn()]
    if unit == "bytes":
        columns += [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    if sized:
        return (*columns, bars.TimeRemainingColumn(), bars.TextColumn("left"))
    return (*columns, bars.TimeElapsedColumn())


class _RichTask(NamedTuple):
    bar: Any
    number: Any
    name: str
    unit: str

    def advance(self, amount: int) -> None:
        self.bar.advance(self.number, amount)

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        if total and self.bar.tasks[0].total is None:
            self.bar.columns = _columns(self.unit, sized=True)
        text = one_line(f"{self.name}, {detail}" if detail else self.name)
        self.bar.update(self.number, completed=done, total=total, description=text)


def progress() -> Progress:
    """Return an object that shows progress bars on a terminal, and plain lines elsewhere.

    Progress is shown on stderr. With `--quiet`, nothing is shown.
    """
    if sys.stderr.isatty() and not VERBOSITY.quiet:
        return RichProgress()
    return PlainProgress()


def rich_console(*, stderr: bool = False) -> Any:
    """Return a rich console for stdout or, if `stderr` is set, for stderr.

    The console is at most `WIDEST` columns wide on a terminal, and exactly `WIDTH` columns wide
    otherwise. rich honors NO_COLOR, and omits colors if the output is not a terminal.
    """
    stream = styled(sys.stderr if stderr else sys.stdout)
    console = _escaping_console(file=stream, soft_wrap=False)
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDTH
    return console


def _escaping_console(**options: Any) -> Any:
    """Return a console whose only escape sequences are rich's own styles and cursor movements."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class EscapingConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            # Lines are cut and padded afterwards, so that tables keep their columns.
            if isinstance(renderable, str):
                renderable = redacted(renderable)
            elif isinstance(renderable, Text) and redacted(renderable.plain) != renderable.plain:
                renderable = Text(redacted(renderable.plain), style=renderable.style)
            for segment in super().render(renderable, options):
                safe = segment.text if segment.control else escaped_lines(segment.text)
                yield Segment(safe, segment.style, segment.control)

    return EscapingConsole(markup=False, emoji=False, highlight=False, **options)


def table(columns: Mapping[str, Mapping[str, Any]], rows: Iterable[Iterable[Any]]) -> Any:
    """Return a rich table without borders; `columns` maps each heading to rich's column options."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading, options in columns.items():
        shown.add_column(heading, **options)
    for row in rows:
        shown.add_row(*row)
    return shown


class OutputError(BuildError):
    """Error raised if the results cannot be written to standard output (exit 1)."""


class NoReaderError(Exception):
    """Error raised if the program that reads the output, such as `head`, has exited.

    This is not an `OSError`, because some libraries end the process on a broken pipe.
    """


class Results:
    """Wrapper for standard output that raises `OutputError` if writing fails.

    Control characters in text are escaped, unless the stream was returned by `styled`.
    """

    _safe = staticmethod(escaped_lines)

    def __init__(self, stream: Any, *, styled: bool = False) -> None:
        self._stream = stream
        self._styled = styled

    @property
    def buffer(self) -> Results:
        """The underlying binary stream, with the same error handling."""
        return type(self)(self._stream.buffer)

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes if this object was returned by `buffer`."""
        with _failures():
            escapes = isinstance(data, str) and not self._styled
            self._stream.write(self._safe(str(data)) if escapes else data)
        return len(data)

    def flush(self) -> None:
        """Flush buffered output."""
        with _failures():
            self._stream.flush()

    def styled(self) -> Results:
        """Return a stream that preserves style codes. Callers must escape all other text."""
        return type(self)(self._stream, styled=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Messages(Results):
    """Wrapper for standard error that removes credentials and ignores failed writes."""

    _safe = staticmethod(log_text)

    def write(self, data: str | bytes) -> int:
        """Write text, or bytes if this object was returned by `buffer`. Ignore failures."""
        with suppress(OutputError, NoReaderError):
            return super().write(data)
        return len(data)

    def flush(self) -> None:
        """Flush buffered output. Ignore failures."""
        with suppress(OutputError, NoReaderError):
            super().flush()


def styled(stream: Any) -> Any:
    """Return a wrapper for the stream that lets style codes through.

    Callers must escape any text that is not their own styling.
    """
    return stream.styled() if isinstance(stream, Results) else stream


@contextmanager
def _failures() -> Any:
    try:
        yield
    except BrokenPipeError as error:
        raise NoReaderError from error
    except OSError as error:
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror or error
        raise OutputError(
            f"cannot write to standard output: {reason}",
            "The result was lost: run the command again with a writable output.",
        ) from error


def guard() -> None:
    """Reopen closed standard streams, and wrap stdout and stderr to handle failed writes.

    If a standard stream remained closed, the next file to be opened would get the descriptor of
    that stream. The file could then become, for example, the standard output of every child
    process. A closed stdout is reopened read-only, so that writing to it still fails.
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
    with suppress(AttributeError):  # a replaced stream may lack `reconfigure`
        stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream


def discard() -> None:
    """Redirect stdout to the null device, so that Python does not retry a failed write at exit."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


_PAGE = b'<meta name="generator" content="envbuilder">'
Recognize = Callable[[bytes], bool]
"""Function that returns whether a file's content is a result of a particular kind."""


def has_keys(*keys: str) -> Recognize:
    """Return a function that checks whether content is a JSON object with all of these keys."""

    def recognize(content: bytes) -> bool:
        from envbuilder.core import decoding

        try:
            value = decoding.strict_json(content)
        except ValueError:
            return False
        return isinstance(value, dict) and value.keys() >= {*keys}

    return recognize


def is_page(content: bytes) -> bool:
    """Return whether the content is an HTML page that envbuilder wrote."""
    return _PAGE in content


class Place(NamedTuple):
    """An output file that the user can choose, with a check that replacing it is allowed."""

    option: str
    path: Path | None
    is_ours: Recognize

    def require(self) -> None:
        """Raise `InvalidError` if the file cannot be written.

        Raise the same error if a different type of file exists at the path.
        """
        path = self.path
        if path is None:
            return
        import tempfile

        hint = f"Name another file with {self.option}."
        if os.path.exists(path) and not self._is_replaceable(path):  # noqa: PTH110 (never raises)
            problem = "already exists and is a different type of file, so nothing was written"
            raise InvalidError(f"{path}: {problem}", f"Move it away, or n{hint[1:]}")
        try:
            folder = next(above for above in path.absolute().parents if above.exists())
            tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.").close()
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise InvalidError(f"{path}: {problem}", hint) from error

    def _is_replaceable(self, path: Path) -> bool:
        if not path.is_file() or not os.access(path, os.R_OK):
            return False
        from envbuilder.core import decoding

        with path.open("rb") as stream:
            content = stream.read(decoding.LARGEST)
        return not content or self.is_ours(content)

    def write(self, make: Callable[[], str]) -> Path | None:
        """Write the text that `make` returns, and return the file's path.

        Return None if the user has not chosen a file. Raise `EnvbuilderError` if the text cannot be
        written, or if a different file has appeared at the path since the path was checked.
        """
        if self.path is None:
            return None
        from envbuilder.core import files

        self.require()
        return files.save(
            self.path,
            encodable(make()).encode(),
            BuildError,
            f"Name another file with {self.option}.",
        )


def require_places(*places: Place) -> None:
    """Raise `InvalidError` if a file cannot be written, or if two files have the same path."""
    for number, output in enumerate(places):
        output.require()
        for other in places[:number]:
            if output.path and other.path and output.path.absolute() == other.path.absolute():
                raise InvalidError(
                    f"{output.path}: named by both {other.option} and {output.option}",
                    "Name two different files.",
                )


def deliver(
    writes: Iterable[tuple[str, Callable[[], Path | None]]], show: Callable[[], object]
) -> list[EnvbuilderError]:
    """Write all results, call `show`, report the files that were written, and return the errors.

    Each item of `writes` consists of a name for messages and a function. The function writes a
    result and returns the path of its file, or None if there is no file to write. If one result
    cannot be written, the others are still written. It is not an error if the program that reads
    the output has exited.
    """
    errors: list[EnvbuilderError] = []
    notes = []
    for what, write in writes:
        try:
            if path := write():
                notes.append(f"{what}: {path}")
        except EnvbuilderError as error:
            errors.append(error)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            errors.append(BuildError(f"the {what} cannot be written: {reason}"))
    try:
        show()
        flush()
    except NoReaderError:
        discard()
    except OutputError as error:
        discard()
        errors.append(BuildError(error.message) if notes else error)
    for note in notes:
        progress().note(note)
    return errors
