"""`envbuilder fleet node` and `join`: what jobs do on a node. Not for people."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import click
import msgspec

from envbuilder.build.request import Request
from envbuilder.commands.options import environment_option, load_settings, profile_option
from envbuilder.core import console, files
from envbuilder.core.errors import VERIFY_FAILED, BuildError
from envbuilder.fleet.model import LONGEST_TOGETHER_SECONDS
from envbuilder.payload.parallel import shares
from envbuilder.profiles.backends import BACKENDS


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
def node(
    run: str, name: str, job: str, folder: Path, limit: int, arguments: tuple[str, ...]
) -> int:
    """Verify this node with ARGUMENTS of `envbuilder verify`, and write the result to the folder.

    \b
    Example:
      envbuilder fleet node --run 20261123t091500z-4f1a2b --node n1 --job 17 \\
        --folder /shared/run --limit 1800 -- --profile cpu --quick
    """
    from envbuilder.fleet import folder as folders, node as examination
    from envbuilder.fleet.slurm import given_gpus

    result = examination.examine(
        load_settings(),
        run=run,
        job=job,
        node=name,
        limit=limit,
        gpus=given_gpus(os.environ),
        arguments=arguments,
    )
    examination.write(result, folders.result_path(folder, name, job))
    return VERIFY_FAILED if result.exit_code is None else result.exit_code


class _Name(click.ParamType[str]):
    """The name of an attempt or a node, which becomes part of the names of files."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or refuse it."""
        try:
            return shares.name(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Host(click.ParamType[str]):
    """The name or the address of a host."""

    name = "HOST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the host, or refuse it."""
        if not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}", str(value)):
            self.fail(f"{value!r} is not the name or the address of a host", param, ctx)
        return str(value)


@click.command("join", hidden=True, short_help="Do this node's part of a training across nodes.")
@profile_option
@environment_option
@click.option(
    "--backend", type=click.Choice(tuple(BACKENDS)), help="venv or conda.  [default: venv]"
)
@click.option(
    "--python",
    "executable",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Use this interpreter as it is, instead of an environment of envbuilder's.",
)
@click.option(
    "--folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder that all nodes see.",
)
@click.option(
    "--attempt",
    required=True,
    type=_Name(),
    help="Name of this attempt: equal on all nodes, and never used before in this folder.",
)
@click.option(
    "--nodes",
    required=True,
    type=click.IntRange(2, shares.MOST_RANKS),
    help="How many take part.",
)
@click.option("--node-rank", required=True, type=click.IntRange(0), help="This one's number.")
@click.option(
    "--node-name",
    type=_Name(),
    envvar="SLURMD_NODENAME",
    default=socket.gethostname,
    help="What reports call this node.  [default: as Slurm does, else the host's name]",
)
@click.option("--master-address", required=True, type=_Host(), help="Where node 0 is reached.")
@click.option(
    "--master-port", required=True, type=click.IntRange(1024, 65535), help="A free port there."
)
@click.option(
    "--limit",
    required=True,
    type=click.IntRange(1, LONGEST_TOGETHER_SECONDS),
    help="Seconds to train.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the result, which node 0 alone writes.",
)
def join(
    profile: str | None,
    backend: str | None,
    executable: Path | None,
    folder: Path,
    attempt: str,
    nodes: int,
    node_rank: int,
    node_name: str,
    master_address: str,
    master_port: int,
    limit: int,
    output: Path | None,
) -> int:
    """Do this node's part of a training across nodes; each of them runs this once.

    Node 0 writes the result of all, whatever it is. Exits with 5 if this node did not do its part,
    and on node 0 if anything failed.

    \b
    Example, in a batch script of Slurm with two nodes:
      export PORT=$((20000 + SLURM_JOB_ID % 20000))
      srun bash -c 'envbuilder fleet join --profile cpu --backend venv \\
        --folder /shared/run --attempt $SLURM_JOB_ID --nodes $SLURM_NNODES \\
        --node-rank $SLURM_PROCID --master-address n1 --master-port $PORT \\
        --limit 600 --output /shared/run/across.json'
    """
    from envbuilder.verify import parallel

    if node_rank >= nodes:
        raise click.UsageError(f"node {node_rank} of {nodes}: they are numbered from 0")
    place = parallel.Place(
        nodes=nodes,
        number=node_rank,
        name=node_name,
        address=master_address,
        port=master_port,
        folder=folder.absolute(),
        attempt=attempt,
        limit_seconds=limit,
    )
    outcome = parallel.join(
        place,
        Request(profile=profile, backend=backend),
        executable,
        load_settings(),
        console.progress(),
    )
    if output is not None and node_rank == 0:
        stated = msgspec.structs.asdict(outcome)
        result = parallel.Result(**stated, attempt=attempt, nodes=nodes, schema=1)
        hint = "Is the folder shared with this node?"
        # Atomically: who collects it sees all of it, or nothing.
        files.save(output, msgspec.json.encode(result) + b"\n", BuildError, hint)
    for reason in outcome.reasons:
        console.message(reason)
    return 0 if outcome.status == "passed" else VERIFY_FAILED
