"""`compare --against`: hold reports against the earlier ones of the same names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped_markdown
from envbuilder.verify.report import regression

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.verify.report.history import StoredReport


class Judgement(Struct, frozen=True, kw_only=True):
    """What a report is in comparison with the earlier one of its name."""

    report: str
    """The name of the file."""
    status: Literal["passed", "warning", "failed", "skipped"]
    """`failed`: slower or less accurate. `warning`: the speed was not judged, or something other
    than the machine differs. `skipped`: not comparable."""
    detail: str


def judged(
    reports: Iterable[StoredReport], earlier: Mapping[str, StoredReport]
) -> tuple[Judgement, ...]:
    """Compare each report with the earlier one whose file has the same name.

    Reports of different machines are not compared: CI lends whichever is free. Nor is the speed if
    either machine was busy.
    """
    return tuple(_judged(each, earlier.get(each.path.name)) for each in reports)


def _judged(new: StoredReport, earlier: StoredReport | None) -> Judgement:
    status: Literal["passed", "warning", "failed", "skipped"] = "skipped"
    if new.report.status != "passed":
        detail = "its verification failed"
    elif earlier is None:
        detail = "there is no earlier report of this name"
    elif others := regression.machine_differences(new.report, earlier.report):
        detail = f"another machine: {'; '.join(others)}"
    else:
        try:
            compared = regression.compare(new.report, earlier, regression.MAX_SLOWDOWN, named=True)
        except InvalidError as error:
            detail = error.message
        else:
            status, detail = compared.status, compared.detail
    return Judgement(report=new.path.name, status=status, detail=detail)


def lines(judgements: Sequence[Judgement]) -> list[str]:
    """Return the judgements as lines of text."""
    return [f"{each.report}: {_WORDS[each.status]}: {each.detail}" for each in judgements]


def markdown(judgements: Sequence[Judgement]) -> str:
    """Return the judgements as a Markdown table, with all markup in cells escaped."""
    rows = [
        (escaped_markdown(each.report), _WORDS[each.status], escaped_markdown(each.detail))
        for each in judgements
    ]
    table = [("report", "against before", "why"), ("---", "---", "---"), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


_WORDS = {
    "passed": "as good",
    "warning": "as good as can be judged",
    "failed": "worse",
    "skipped": "not compared",
}
