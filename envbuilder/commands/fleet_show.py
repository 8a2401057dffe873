"""`envbuilder fleet show`: the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import json_option
from envbuilder.core import console
from envbuilder.core.errors import VERIFY_FAILED

if TYPE_CHECKING:
    from envbuilder.fleet.model import Summary


@click.command("show", short_help="Show the table of a run.")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> int:
    """Show the table of a run, from its FOLDER or its summary.json.

    Exits with 5 if a node that was examined was not verified.

    \b
    Examples:
      envbuilder fleet show fleet-20261123t091500z-4f1a2b
      envbuilder fleet show fleet-20261123t091500z-4f1a2b --json
    """
    from envbuilder.fleet import summaries

    return report(summaries.read(folder), as_json=as_json)


def report(summary: Summary, *, as_json: bool) -> int:
    """Print a run's table, or its JSON; return the exit code."""
    if as_json:
        console.data(summary)
    else:
        from envbuilder.fleet import table

        table.show(summary, console.rich_console())
    return 0 if summary.passed else VERIFY_FAILED
