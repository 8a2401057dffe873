"""`envbuilder fleet show`: the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.fleet_output import output_options, report

if TYPE_CHECKING:
    from envbuilder.commands.fleet_output import Outputs


@click.command("show", short_help="Show the table of a run.")
@click.argument("folder", type=click.Path(path_type=Path))
@output_options
def command(folder: Path, outputs: Outputs) -> int:
    """Show the table of a run, from its FOLDER or its summary.json.

    Exits with 5 if a node that was examined was not verified.

    \b
    Examples:
      envbuilder fleet show fleet-20261123t091500z-4f1a2b
      envbuilder fleet show fleet-2 --against fleet-1 --html fleet.html
      envbuilder fleet show fleet-2 --json
    """
    from envbuilder.fleet import summaries

    return report(summaries.read(folder), outputs)
