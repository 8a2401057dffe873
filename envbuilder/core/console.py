"""Terminal output: notes and progress on stderr, results on stdout, colour only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 80
"""Columns if the output is not a terminal, so that a file looks the same wherever it is written."""
WIDEST = 120
"""Maximum columns on a terminal: longer lines are hard to read."""


class Verbosity:
    """How much commands report apart from results and errors; set by the command line."""

    quiet = False
    verbose = False

    def reset(self) -> None:
        """Report as usual."""
        self.quiet = self.verbose = False


VERBOSITY = Verbosity()


def detail(text: str) -> None:
    """Report what only --verbose shows, such as a program that is run; `text` holds no secret."""
    if VERBOSITY.verbose:
        _report(f"+ {text}")


def _report(line: str) -> None:
    if not VERBOSITY.quiet:
        print(line, file=sys.stderr, flush=True)  # noqa: T201


class Task(Protocol):
    """A long-running task in progress."""

    def advance(self, amount: int) -> None:
        """Add `amount` to the work done."""

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        """Set the work done so far, and the total and a detail to show if they are given."""


class Progress(Protocol):
    """Receiver of progress reports from long-running work."""

    def task(
        self, name: str, total: int | None = None, unit: str = ""
    ) -> contextlib.AbstractContextManager[Task]:
        """Start a named task; `unit` is `bytes` or empty."""

    def note(self, text: str) -> None:
        """Report one line about the current work."""


class PlainProgress:
    """Progress as plain lines: one when a task starts, one when a longer task ends."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write or _report

    def note(self, text: str) -> None:
        """Print the line."""
        self._write(text)

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
        """Print the task's name and, every ten seconds, its progress."""
        size = f" ({total / 1e6:.0f} MB)" if unit == "bytes" and total else ""
        self._write(f"· {name}{size}")
        started = time.monotonic()
        yield _PlainTask(self._write, name, total)
        seconds = time.monotonic() - started
        if seconds >= 2:
            self._write(f"  {name}: {seconds:.1f} s")


class _PlainTask:
    PERIOD_SECONDS = 10.0

    def __init__(self, write: Callable[[str], object], name: str, total: int | None) -> None:
        self._write, self._name, self._total = write, name, total
        self._done = 0
        self._next = time.monotonic() + self.PERIOD_SECONDS

    def advance(self, amount: int) -> None:
        self.update(self._done + amount)

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        self._done, self._total = done, total or self._total
        if self._total and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.PERIOD_SECONDS
            share = f"{100 * self._done / self._total:.0f} %"
            self._write(f"  {self._name}: {share}{f', {detail}' if detail else ''}")


class RichProgress:
    """Progress bars on a terminal."""

    def __init__(self) -> None:
        self._console = rich_console(stderr=True)

    def note(self, text: str) -> None:
        """Print the line."""
        self._console.print(text, highlight=False, markup=False)

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Task]:
        """Show a progress bar, or a spinner if the total is unknown."""
        from rich.progress import Progress

        columns = _columns(unit, sized=bool(total))
        with Progress(*columns, console=self._console, transient=True) as bar:
            yield _RichTask(bar, bar.add_task(name, total=total), name, unit)


def _columns(unit: str, *, sized: bool) -> tuple[Any, ...]:
    from rich import progress as bars

    columns: list[Any] = [bars.SpinnerColumn(), bars.TextColumn("{task.description}")]
    if sized:
        columns += [bars.BarColumn(bar_width=24), bars.TaskProgressColumn()]
    if unit == "bytes":
        columns += [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    return (*columns, bars.TimeElapsedColumn())


class _RichTask:
    def __init__(self, bar: Any, number: Any, name: str, unit: str) -> None:
        self._bar, self._number, self._name, self._unit = bar, number, name, unit

    def advance(self, amount: int) -> None:
        self._bar.advance(self._number, amount)

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        if total and self._bar.tasks[0].total is None:
            self._bar.columns = _columns(self._unit, sized=True)
        text = f"{self._name}, {detail}" if detail else self._name
        self._bar.update(self._number, completed=done, total=total, description=text)


def progress() -> Progress:
    """Return progress bars if stderr is a terminal, plain lines otherwise; none with --quiet."""
    return RichProgress() if sys.stderr.isatty() and not VERBOSITY.quiet else PlainProgress()


def rich_console(*, stderr: bool = False) -> Any:
    """Return a console at most `WIDEST` columns wide; `WIDTH` columns if it is not a terminal.

    rich honours NO_COLOR, and drops colour if the output is not a terminal.
    """
    from rich.console import Console

    console = Console(stderr=stderr, soft_wrap=False)
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDTH
    return console
