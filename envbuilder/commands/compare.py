"""`envbuilder compare`: put reports of several machines side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.core import console
from envbuilder.core.errors import BuildError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.verify.report.comparison import Row
    from envbuilder.verify.report.history import StoredReport

FORMATS = ("table", "markdown", "csv", "json", "html")
_OF_ENDING = {".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html", ".htm": "html"}
"""The format for a file's suffix, if --format is not given."""


@click.command("compare", short_help="Put reports of several machines side by side.")
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
    help="How to print them.  [default: what the name of --output ends in, or table]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file instead of stdout.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    reports: tuple[Path, ...], form: str | None, output: Path | None, as_json: bool
) -> None:
    """Put reports of several machines side by side, the fastest accelerator first.

    REPORT is a file written by `envbuilder verify`, or a folder of them. Each row has the first
    epoch on the CPU and on the accelerator, whose ratio is the speed-up, and the median of the
    later, warm epochs. Reports of subsets and of other precisions come after the others, failed
    ones last. A file that is not a complete report is refused (exit 2).

    \b
    Examples:
      envbuilder compare laptop.json server.json
      envbuilder compare reports/ --format markdown
      envbuilder compare reports/ -o epochs.csv
      envbuilder compare reports/ -o machines.html
    """
    from envbuilder.core import files
    from envbuilder.verify.report import comparison
    from envbuilder.verify.report.terminal import print_comparison

    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} contradict each other")
    if as_json:
        form = "json"
    if form is None and output is not None:
        form = _OF_ENDING.get(output.suffix.lower())
    rows = comparison.rows(_read(reports))
    if output is None and form in {None, "table"}:
        print_comparison(rows, console.rich_console())
        return
    text = _text(rows, form or "table")
    if output is None:
        console.document(text)
        return
    files.save(output, text.encode(), BuildError, "Name another file with --output.")


def _text(rows: Sequence[Row], form: str) -> str:
    from envbuilder.verify.report import comparison
    from envbuilder.verify.report.terminal import print_comparison

    if form == "json":
        return comparison.as_json(rows) + "\n"
    if form == "csv":
        return comparison.comma_separated(rows)
    if form == "markdown":
        return comparison.markdown(rows)
    if form == "html":
        from envbuilder.verify.page import side_by_side

        return side_by_side.render(rows)
    stream = io.StringIO()
    print_comparison(rows, console.rich_console(file=stream))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _read(paths: Sequence[Path]) -> list[StoredReport]:
    """Return every report once; raise `InvalidError` for damaged ones and folders without any."""
    from envbuilder.verify.report import history

    by_path: dict[Path, StoredReport] = {}
    problems: list[InvalidError] = []
    for path in paths:
        files = _files(path)
        if not files:
            problem = InvalidError(f"{path}: no report in this folder", "Reports end in .json.")
            problems.append(problem)
        for file in files:
            try:
                by_path[file.resolve()] = history.read(file)
            except InvalidError as error:
                problems.append(error)
    if problems:
        raise InvalidError("\n".join(p.message for p in problems), problems[0].hint)
    return list(by_path.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [p for p in sorted(path.glob("*.json")) if not p.name.startswith(".")]
