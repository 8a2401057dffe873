"""`envbuilder compare`: compare reports from several machines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from envbuilder.commands.options import EXISTING_FOLDER
from envbuilder.core import console, decoding, files
from envbuilder.core.errors import VERIFY_FAILED, Hint, InvalidError
from envbuilder.verify import show
from envbuilder.verify.report import comparison, regression
from envbuilder.watch import model

FORMATS = ("table", "markdown", "csv", "json", "html")
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
    default="table",
    help="Output format.  [default: table]",
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
@click.option("--json", "form", flag_value="json", help="Same as --format json.")
def command(
    reports: tuple[Path, ...],
    form: str,
    against: Path | None,
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
      envbuilder compare reports/ --format csv > epochs.csv
      envbuilder compare reports/ --format html > machines.html
      envbuilder compare reports/ --against earlier/ --format markdown
    """
    if against is not None and form in {"csv", "html"}:
        raise click.UsageError(f"--against is not available in {form}: use table, markdown or json")
    stored = _read(reports)
    rows = comparison.rows(stored)
    judgements = _judgements(stored, against)
    if form == "table":
        show.print_comparison(rows, console.rich_console())
        for judgement in judgements or ():
            console.result(": ".join(judgement.row))
    else:
        console.document(_text(rows, form, judgements))
    is_worse = any(judgement.status == "failed" for judgement in judgements or ())
    return VERIFY_FAILED if is_worse else 0


def _judgements(
    reports: Sequence[regression.StoredReport], earlier: Path | None
) -> tuple[regression.Judgement, ...] | None:
    """Compare each report with the earlier report that has the same file name.

    `earlier` is the folder that contains the earlier reports. Return the resulting judgments, or
    None if no folder is given.
    """
    if earlier is None:
        return None
    before = map(regression.read, _files(earlier))
    return regression.judge_all(reports, {stored.path.name: stored for stored in before})


def _text(
    rows: Sequence[comparison.Row], form: str, judgements: Sequence[regression.Judgement] | None
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


def _read(paths: Sequence[Path]) -> list[regression.StoredReport]:
    """Read all reports, reading each file only once, and return them.

    Raise a single `InvalidError` that covers all files that cannot be read.
    """
    problems: list[InvalidError] = []
    stored: dict[Path, regression.StoredReport] = {}
    for path in paths:
        reports = _files(path)
        if not reports:
            problem = InvalidError(
                f"{path}: this folder contains no reports", "Name a folder with reports (*.json)."
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


def _parsed(file: Path) -> regression.StoredReport:
    # Read once: it may be a pipe.
    content = files.read_named(file, decoding.LARGEST)
    if model.is_report(content):
        raise InvalidError(
            f"{file}: this report is from 'watch', not from 'verify'",
            Hint(
                "To compare a new training with it",
                ("watch", "--against", "REPORT", "--", "COMMAND"),
            ),
        )
    return regression.parsed(content, file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [p for p in sorted(path.glob("*.json")) if not p.name.startswith(".")]
