"""`envbuilder fleet show`: the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.fleet_output import output_options, read_run, report

if TYPE_CHECKING:
    from envbuilder.commands.fleet_output import Outputs


@click.command("show", short_help="Show the table of a run.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with the four MNIST files, if pods had all of them and this machine has not.",
)
@output_options
def command(folder: Path, data: Path | None, outputs: Outputs) -> int:
    """Show the table of a run, from its FOLDER or its summary.json.

    In a FOLDER that `fleet render` wrote, the results are the logs of its Jobs, saved as
    results/NAME.json by the commands in its README.md. Nothing attests such a file: the best
    verdict is `unproven`.

    Exits with 5 if a node that was examined was not verified.

    \b
    Examples:
      envbuilder fleet show fleet-20261123t091500z-4f1a2b
      envbuilder fleet show manifests --html fleet.html
      envbuilder fleet show fleet-2 --against fleet-1 --html fleet.html
      envbuilder fleet show fleet-2 --json
    """
    return report(read_run(folder, data), outputs)
