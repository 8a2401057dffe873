"""`envbuilder fleet node`: what the job of a fleet does on its node. Not for people."""

from __future__ import annotations

import os
from pathlib import Path

import click

from envbuilder.commands.options import load_settings
from envbuilder.core.errors import VERIFY_FAILED


@click.command("node", hidden=True, short_help="Verify this node, for a run of a fleet.")
@click.option("--run", required=True, help="The run.")
@click.option("--node", "name", required=True, help="The node, as the scheduler calls it.")
@click.option("--job", required=True, help="The job.")
@click.option(
    "--folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of the run.",
)
@click.option("--limit", required=True, type=click.IntRange(1), help="Seconds at most.")
@click.argument("arguments", nargs=-1)
def command(
    run: str, name: str, job: str, folder: Path, limit: int, arguments: tuple[str, ...]
) -> int:
    """Verify this node with ARGUMENTS of `envbuilder verify`, and write the result to the folder.

    \b
    Example:
      envbuilder fleet node --run 20261123t091500z-4f1a2b --node n1 --job 17 \\
        --folder /shared/run --limit 1800 -- --profile cpu --quick
    """
    from envbuilder.fleet import folder as folders
    from envbuilder.fleet import node
    from envbuilder.fleet.slurm.parse import given_gpus

    result = node.examine(
        load_settings(),
        run=run,
        job=job,
        node=name,
        limit=limit,
        gpus=given_gpus(os.environ),
        arguments=arguments,
    )
    node.write(result, folders.result_path(folder, name, job))
    return VERIFY_FAILED if result.exit_code is None else result.exit_code
