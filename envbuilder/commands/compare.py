"""`envbuilder compare`: put reports of several machines side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import click

from envbuilder.core import console, files
from envbuilder.core.errors import VERIFY_FAILED, BuildError, InvalidError
from envbuilder.verify.figures import print_comparison
from envbuilder.verify.report import comparison, history
from envbuilder.watch import model, show

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
@click.option(
    "--against",
    "earlier",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Fail if a report is slower or less accurate than the earlier one of the same file name"
    " in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    reports: tuple[Path, ...],
    form: str | None,
    output: Path | None,
    earlier: Path | None,
    as_json: bool,
) -> int:
    """Put reports of several machines side by side, the fastest accelerator first.

    REPORT is a file written by `envbuilder verify` or `watch`, or a folder of one kind. Each row
    has the first epoch on the CPU and on the accelerator, whose ratio is the speed-up, and the
    median of the later, warm epochs. Reports of subsets and of other precisions come after the
    others, failed ones last. A file that is not a complete report is refused (exit 2).

    With --against it exits with 5 if a report is worse than before: slower by more than a factor of
    1.3, or less accurate by more than 0.5 points. Reports of different machines are not compared,
    nor is the speed if a machine was busy, and a report without an earlier one passes.

    \b
    Examples:
      envbuilder compare laptop.json server.json
      envbuilder compare reports/ --format markdown
      envbuilder compare reports/ -o epochs.csv
      envbuilder compare reports/ -o machines.html
      envbuilder compare reports/ --against earlier/ --format markdown
    """
    if as_json and form not in {None, "json"}:
        raise click.UsageError(f"--json and --format {form} contradict each other")
    if as_json:
        form = "json"
    if form is None and output is not None:
        form = _OF_ENDING.get(output.suffix.lower())
    if earlier is not None and form in {"csv", "html"}:
        raise click.UsageError(f"--against: not in {form}; use table, markdown or json")
    if watches := _watches(reports):
        return _compare_watches(watches, form or "table", output, earlier)
    stored = _read(reports)
    rows, judgements = comparison.rows(stored), _judgements(stored, earlier)
    code = VERIFY_FAILED if any(each.status == "failed" for each in judgements or ()) else 0
    if output is None and form in {None, "table"}:
        print_comparison(rows, console.rich_console())
        for line in history.judgement_lines(judgements or ()):
            console.result(line)
        return code
    text = _text(rows, form or "table", judgements)
    if output is None:
        console.document(text)
        return code
    files.save_output(output, text.encode(), BuildError, "Name another file with --output.")
    return code


def _watches(paths: Sequence[Path]) -> tuple[model.Watched, ...]:
    """Return the reports of `watch`, if that is what all of them are.

    Raise `InvalidError` if some are and others are not: they have nothing in common.
    """
    files = [file for path in paths for file in _files(path)]
    are = [model.is_report(file) for file in files]
    if any(are) and not all(are):
        raise InvalidError(
            f"{files[are.index(False)]}: a report of verify, beside reports of watch",
            "Compare one kind at a time.",
        )
    return tuple(map(model.read, files)) if any(are) else ()


def _compare_watches(
    watches: Sequence[model.Watched], form: str, output: Path | None, earlier: Path | None
) -> int:
    if earlier is not None or form in {"csv", "html"}:
        raise click.UsageError(
            "reports of watch: as table, markdown or json, and without --against"
            " (`envbuilder watch --against REPORT` says what changed)"
        )
    if output is None and form == "table":
        show.print_comparison(watches, console.rich_console())
        return 0
    text = show.compared(watches, form)
    if output is None:
        console.document(text)
    else:
        files.save_output(output, text.encode(), BuildError, "Name another file with --output.")
    return 0


def _judgements(
    reports: Sequence[history.StoredReport], earlier: Path | None
) -> tuple[history.Judgement, ...] | None:
    """Return what the reports are in comparison with those in a folder; None without a folder."""
    if earlier is None:
        return None
    before = (history.read(file) for file in _files(earlier))
    return history.judge_all(reports, {stored.path.name: stored for stored in before})


def _text(
    rows: Sequence[comparison.Row], form: str, judgements: Sequence[history.Judgement] | None
) -> str:
    if form == "json":
        more = {} if judgements is None else {"against": judgements}
        return comparison.as_json(rows, **more) + "\n"
    if form == "csv":
        return comparison.comma_separated(rows)
    if form == "markdown":
        judged = history.judgement_table(judgements) if judgements else ""
        return "\n".join(filter(None, (comparison.markdown(rows), judged)))
    if form == "html":
        from envbuilder.verify import page

        return page.render_comparison(rows)
    stream = io.StringIO()
    print_comparison(rows, console.rich_console(file=stream))
    shown = (*stream.getvalue().splitlines(), *history.judgement_lines(judgements or ()))
    return "".join(f"{line.rstrip()}\n" for line in shown)


def _read(paths: Sequence[Path]) -> list[history.StoredReport]:
    """Return every report once; raise `InvalidError` for damaged ones and folders without any."""
    by_path: dict[Path, history.StoredReport] = {}
    problems: list[InvalidError] = []
    for path in paths:
        reports = _files(path)
        if not reports:
            problem = InvalidError(f"{path}: no report in this folder", "Reports end in .json.")
            problems.append(problem)
        for file in reports:
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
