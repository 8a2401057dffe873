"""`envbuilder build` of several profiles: one line for each at the end, and one exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.build import batch
from envbuilder.commands.options import require_image
from envbuilder.core import console
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import clipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.build.batch import Outcome
    from envbuilder.build.request import Build, Request
    from envbuilder.core.settings import Settings

_LONGEST = 200
"""Characters of an artifact or an error in the table; errors are printed in full above it."""


def build(profiles: Sequence[str], request: Request, settings: Settings, *, as_json: bool) -> int:
    """Build profiles, print what came of each, and return the exit code."""
    _require_no_place(request, profiles[0])
    progress = console.progress()
    outcomes = batch.prepare(profiles, request, settings, progress, _require_image)
    if request.dry_run:
        plans = [outcome.build.plan for outcome in outcomes if outcome.build]
        console.data({"schema": 1, "plans": plans}, indent=1)
    else:
        outcomes = batch.finish(outcomes, settings, progress)
    for outcome in outcomes:
        if outcome.error:
            console.error(f"{outcome.profile}: {outcome.error.message}", outcome.error.hint)
    if as_json and not request.dry_run:
        console.data({"schema": 1, "builds": [_as_data(outcome) for outcome in outcomes]})
    elif not request.dry_run:
        _print(outcomes)
    return batch.exit_code(outcomes)


def _require_no_place(request: Request, first: str) -> None:
    """Raise `InvalidError` for an option that says where one image goes."""
    stated = {"--tag": request.tag, "--output": request.output, "--push": request.push}
    for option, value in stated.items():
        if value:
            raise InvalidError(
                f"{option} is for one image, and several profiles make several",
                "Build them without it; then, for each, which reuses what is built:"
                f" envbuilder build --profile {first} {option} …",
            )


def _require_image(build: Build) -> None:
    require_image(build.backend)


def _as_data(outcome: Outcome) -> dict[str, Any]:
    if outcome.result:
        data: dict[str, Any] = msgspec.to_builtins(outcome.result)
        return data
    assert outcome.error is not None, "a build has a result or an error"
    return {
        "schema": 1,
        "status": "failed",
        "profile": outcome.profile,
        **({"backend": outcome.build.backend} if outcome.build else {}),
        "error": {
            "message": outcome.error.message,
            "hint": outcome.error.hint,
            "exit_code": outcome.error.exit_code,
        },
    }


def _print(outcomes: Sequence[Outcome]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("profile", "status", "backend"):
        table.add_column(heading, no_wrap=heading != "profile")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for outcome in outcomes:
        result = outcome.result
        backend = outcome.build.backend if outcome.build else ""
        if result:
            shown = (result.status, backend, f"{result.seconds:.1f}", result.artifact.ref)
        else:
            message = outcome.error.message if outcome.error else ""
            shown = ("failed", backend, "", message.partition("\n")[0])
        cells = (outcome.profile, *shown[:3], clipped(console.one_line(shown[3]), _LONGEST))
        table.add_row(*map(Text, cells))
    console.rich_console().print(table)
