"""`envbuilder compare`: compare reports of several machines side by side."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from envbuilder.commands.options import EXISTING_FOLDER, FILE
from envbuilder.core import console, decoding, files
from envbuilder.core.errors import VERIFY_FAILED, Hint, InvalidError
from envbuilder.verify import show
from envbuilder.verify.report import comparison, history
from envbuilder.watch import model

FORMATS = ("table", "markdown", "csv", "json", "html")
_OF_ENDING = {".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html", ".htm": "html"}
"""Suffix of the output file → the format, used without --format."""
_JUDGED = ("report", "against before", "why")


@click.command("compare")
@click.argument(
    "reports",
    metavar="REPORT...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Output format.  [default: by the suffix of --output, or table]",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write to this file instead of stdout.",
)
@click.option(
    "--against",
    metavar="FOLDER",
    type=EXISTING_FOLDER,
    help=(
        "Fail if a report is slower or less accurate than the earlier report of the same file"
        " name in this folder."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
def command(
    reports: tuple[Path, ...],
    form: str | None,
    output: Path | None,
    against: Path | None,
    as_json: bool,
) -> int:
    """Show reports of several machines side by side, the fastest accelerator first.

    REPORT is a file written by `envbuilder verify`, or a folder of them. Each row has the first
    epoch on the CPU and on the accelerator, whose ratio is the speed-up, and the median of the
    later, warm epochs. Reports of subsets and other precisions follow the others; failed ones come
    last. A file that is not a complete report is refused (exit 2).

    With --against, the exit code is 5 if a report is worse than before: slower by more than a
    factor of 1.3, or less accurate by more than 0.5 points. Reports of different machines are not
    compared, nor is the speed if a machine was busy. A report without an earlier one passes.

    \b
    Examples:
      envbuilder compare laptop.json server.json
      envbuilder compare reports/ --format markdown
      envbuilder compare reports/ -o epochs.csv
      envbuilder compare reports/ -o machines.html
      envbuilder compare reports/ --against earlier/ --format markdown
    """
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} cannot be combined")
    if as_json:
        form = "json"
    if form is None and output is not None:
        form = _OF_ENDING.get(output.suffix.lower())
    if against is not None and form in {"csv", "html"}:
        raise click.UsageError(f"--against is not available in {form}: use table, markdown or json")
    form = form or "table"
    side_by_side = _compared(reports, form, against)
    if output is None and side_by_side.draw:
        side_by_side.draw(console.rich_console())
        for line in side_by_side.lines:
            console.result(line)
    elif output is None:
        console.document(side_by_side.text())
    else:
        text = side_by_side.text()
        is_ours = _KINDS.get(form, _is_table)
        console.Place("--output", output, is_ours).write(lambda: text)
    return VERIFY_FAILED if side_by_side.is_worse else 0


_KINDS = {"json": console.has_keys("schema", "reports"), "html": console.is_page}
_LEAST_COLUMNS = 4
_WORD = re.compile(r"[\w-]+")
_HEADINGS = {*_WORD.findall(" ".join((*comparison.COLUMNS, *comparison.Row.__struct_fields__)))}


def _is_table(content: bytes) -> bool:
    """Return whether a file begins with the headings of a comparison table, of any width."""
    headings = _WORD.findall(content.decode(errors="replace").partition("\n")[0])
    return len(headings) >= _LEAST_COLUMNS and {*headings} <= _HEADINGS


class _Compared(Struct, frozen=True, kw_only=True):
    """Compared reports, in one output format."""

    draw: Callable[[Any], None] | None = None
    """A function that prints the reports on a rich console; None for other formats."""
    lines: tuple[str, ...] = ()
    """Lines to print after the table."""
    written: str = ""
    """Text of the reports in a format that is not for terminals."""
    is_worse: bool = False

    def text(self) -> str:
        """Return the reports as text."""
        if self.draw is None:
            return self.written
        stream = io.StringIO()
        self.draw(console.rich_console(file=stream))
        shown = (*stream.getvalue().splitlines(), *self.lines)
        return "".join(f"{line.rstrip()}\n" for line in shown)


def _compared(reports: Sequence[Path], form: str, earlier: Path | None) -> _Compared:
    stored = _read(reports)
    rows = comparison.rows(stored)
    judgements = _judgements(stored, earlier)
    is_worse = any(judgement.status == "failed" for judgement in judgements or ())
    if form == "table":
        return _Compared(
            draw=lambda out: show.print_comparison(rows, out),
            lines=tuple(": ".join(judgement.row) for judgement in judgements or ()),
            is_worse=is_worse,
        )
    return _Compared(written=_text(rows, form, judgements), is_worse=is_worse)


def _judgements(
    reports: Sequence[history.StoredReport], earlier: Path | None
) -> tuple[history.Judgement, ...] | None:
    """Return the judgements of the reports against earlier ones of the same name in a folder.

    Return None without a folder.
    """
    if earlier is None:
        return None
    before = map(history.read, _files(earlier))
    return history.judge_all(reports, {stored.path.name: stored for stored in before})


def _text(
    rows: Sequence[comparison.Row], form: str, judgements: Sequence[history.Judgement] | None
) -> str:
    if form == "json":
        more = {} if judgements is None else {"against": judgements}
        return comparison.as_json(rows, **more) + "\n"
    if form == "markdown":
        judged = [judgement.row for judgement in judgements or ()]
        table = comparison.markdown_table(_JUDGED, judged) if judged else ""
        return "\n".join(filter(None, (comparison.markdown(rows), table)))
    if form == "csv":
        return comparison.comma_separated(rows)
    return show.render_comparison(rows)


def _read(paths: Sequence[Path]) -> list[history.StoredReport]:
    """Return each report once; raise one `InvalidError` for all files that cannot be read."""
    problems: list[InvalidError] = []
    stored: dict[Path, history.StoredReport] = {}
    for path in paths:
        reports = _files(path)
        if not reports:
            problem = InvalidError(
                f"{path}: there is no report in this folder", "File names of reports end in .json."
            )
            problems.append(problem)
        for file in reports:
            if file.resolve() in stored:
                continue
            try:
                stored[file.resolve()] = _parsed(file)
            except InvalidError as error:
                problems.append(error)
    if problems:
        raise InvalidError("\n".join(p.message for p in problems), problems[0].hints)
    return list(stored.values())


def _parsed(file: Path) -> history.StoredReport:
    # Read once: it may be a pipe.
    content = files.read_named(file, decoding.LARGEST)
    if model.is_report(content):
        raise InvalidError(
            f"{file}: this is a report of watch, not of verify",
            Hint(
                "To compare a new training with it",
                ("watch", "--against", "REPORT", "--", "COMMAND"),
            ),
        )
    return history.parsed(content, file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [p for p in sorted(path.glob("*.json")) if not p.name.startswith(".")]
