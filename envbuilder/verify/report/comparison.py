"""Tabulate reports from several machines, one row per report, as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import math
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from envbuilder.core import console
from envbuilder.core.errors import escaped_markdown, printable
from envbuilder.core.text import amount, memory, percent, times
from envbuilder.verify.report.model import plausible

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from envbuilder.verify.report.regression import StoredReport

STANDARD = (60_000, "float32")
"""Number of training images and precision of the standard epoch. Published times usually refer to
this epoch."""
COLUMNS = (
    "machine",
    "verdict",
    "profile",
    "GPU epoch",
    "CPU epoch",
    "warm",
    "speed-up",
    "images/s",
    "accuracy",
    "start-up",
    "peak memory",
    "memory",
    "backend",
    "framework",
    "date",
    "report",
)
NUMBERS = COLUMNS[3:12]
"""Names of the columns that hold numbers, which are right-aligned."""
_TIMES = slice(3, 8)
FOOTNOTES = {
    "*": (
        "not the standard epoch (60,000 images, float32), so its time cannot be compared with the"
        " others"
    ),
    "†": "the machine was busy, so its speed was not judged",
}
"""Meaning of each mark that can follow a time in the table."""


class Row(Struct, frozen=True, kw_only=True):
    """The values of one report; durations are in seconds and exclude evaluation.

    `cpu_seconds` and `accelerator_seconds` are the durations of first epochs, because every report
    has a first epoch. An epoch on the verified device is included only if that device did the work.
    `speedup` is the ratio of these two durations, so both sides of the ratio include the same kind
    of work. `images_per_second` is the speed of the last epoch. `peak_bytes` is the framework's
    peak use of the device's memory, or of the machine's memory if the device is the CPU.
    `start_seconds` is the time from the start of the process to the end of its first training step,
    including imports and compilation.
    """

    file: str
    date: str
    """Date of the verification, such as 2026-11-22; empty if the report has none."""
    machine: str
    memory_bytes: int | None
    profile: str
    backend: str
    framework: str
    precision: str
    images: int | None
    quick: bool
    epochs: int
    cpu_seconds: float | None
    accelerator_seconds: float | None
    warm_seconds: float | None
    speedup: float | None
    images_per_second: float | None
    accuracy: float | None
    peak_bytes: int | None
    start_seconds: float | None
    status: Literal["passed", "failed", "unproven"]
    speed: Literal["judged", "not_judged"] | None = None

    @property
    def standard(self) -> bool:
        """Whether the epoch is the standard epoch that `STANDARD` describes."""
        return not self.quick and (self.images, self.precision) == STANDARD


def rows(reports: Iterable[StoredReport]) -> tuple[Row, ...]:
    """Return one row per report, sorted by the accelerator's epoch time, then by the CPU's.

    Rows that cannot be compared with the others come last: first those of busy machines, then those
    with a non-standard epoch, then those of failed verifications.
    """

    def order(row: Row) -> tuple[Any, ...]:
        seconds = row.cpu_seconds if row.accelerator_seconds is None else row.accelerator_seconds
        return (
            row.status == "failed",
            not row.standard,
            row.speed == "not_judged",
            row.accelerator_seconds is None,
            math.inf if seconds is None else seconds,
            row.machine,
            row.file,
        )

    return tuple(sorted(map(_row, reports), key=order))


def _row(stored: StoredReport) -> Row:
    report = stored.report
    device = report.device
    first, warm = report.epoch_seconds if device.used == device.requested else (None, None)
    on_cpu = device.requested == "cpu"
    cpu = first if on_cpu else plausible(report.baseline_seconds())
    device_seconds = None if on_cpu else first
    return Row(
        file=printable(stored.path.name),
        date=_date(report.time or ""),
        machine=printable(device.name or report.host.cpu.model_name or ""),
        memory_bytes=device.memory_bytes,
        profile=printable(report.profile or ""),
        backend=printable(report.backend or ""),
        framework=printable(
            " ".join(filter(None, (report.framework.name, report.framework.version)))
        ),
        precision=report.effective_precision,
        images=report.dataset.train,
        quick=report.partial,
        epochs=len(report.epochs),
        cpu_seconds=cpu,
        accelerator_seconds=device_seconds,
        warm_seconds=warm,
        speedup=cpu / device_seconds if cpu and device_seconds else None,
        images_per_second=plausible(report.epochs[-1].samples_per_second) if first else None,
        accuracy=report.epochs[-1].accuracy if report.epochs else None,
        peak_bytes=report.measurements.peak_memory_bytes if report.measurements else None,
        start_seconds=plausible(report.training.cold_start_seconds) if report.training else None,
        status=report.status,
        speed=report.speed if report.speed_counts else "not_judged",
    )


def _date(time: str) -> str:
    """Return the date in a timestamp such as 20261122T091500Z, in the form 2026-11-22.

    Return an empty string if the timestamp has another form.
    """
    match = re.fullmatch(r"(\d{4})(\d{2})(\d{2})T\d{6}Z", time)
    if match:
        return "-".join(match.groups())
    return ""


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row as strings, in the order of `COLUMNS`."""
    mark = "" if row.standard else "*"
    if row.speed == "not_judged":
        mark += "†"
    seconds = f" s{mark}"
    return (
        row.machine or "unknown",
        row.status,
        row.profile or "-",
        _amount(row.accelerator_seconds, seconds),
        _amount(row.cpu_seconds, seconds),
        _amount(row.warm_seconds, seconds),
        times(row.speedup) if row.speedup else "-",
        _amount(row.images_per_second, mark),
        percent(row.accuracy),
        _amount(row.start_seconds, " s"),
        memory(row.peak_bytes),
        memory(row.memory_bytes),
        row.backend or "-",
        row.framework or "unknown",
        row.date or "-",
        row.file,
    )


def filled(shown: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return a table's header row and data rows, without the columns that are empty in all rows."""
    columns = zip(COLUMNS, *map(cells, shown), strict=True)
    return list(zip(*(column for column in columns if {*column[1:]} != {"-"}), strict=True))


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{amount(value)}{unit}"


def markdown(shown: Sequence[Row]) -> str:
    """Return the table and its footnotes as Markdown, with all markup in the cells escaped."""
    table = markdown_table(COLUMNS, map(cells, shown), {*map(COLUMNS.index, NUMBERS)})
    return table + "".join(f"\n{escaped_markdown(note)}\n" for note in footnotes(shown))


def markdown_table(
    columns: Sequence[str], rows: Iterable[Iterable[str]], right: Collection[int] = ()
) -> str:
    """Return a table as Markdown.

    `right` contains the indices of the columns to align to the right.
    """
    rules = ["---:" if place in right else "---" for place in range(len(columns))]
    lines = [columns, rules, *([*map(escaped_markdown, row)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def footnotes(shown: Sequence[Row]) -> list[str]:
    """Return the footnotes for the marks that occur in the table."""
    times_shown = "".join(chain.from_iterable(cells(row)[_TIMES] for row in shown))
    return [f"{mark} {note}" for mark, note in FOOTNOTES.items() if mark in times_shown]


def comma_separated(shown: Sequence[Row]) -> str:
    """Return the rows as CSV with a header.

    Values that a spreadsheet could interpret as formulas are escaped.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    for row in shown:
        writer.writerow(map(_no_formula, msgspec.structs.astuple(row)))
    return out.getvalue()


_FORMULA = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def _no_formula(value: object) -> object:
    # Spreadsheets evaluate a cell that begins with one of these, even if quoted; some also accept
    # the full-width forms. (OWASP, "CSV Injection")
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str) and value[:1] in _FORMULA:
        return f"'{value}"
    return value


def as_json(shown: Sequence[Row], **more: object) -> str:
    """Return the rows as JSON, together with the additional keys in `more`."""
    return console.as_json({"schema": 1, "reports": shown, **more})
