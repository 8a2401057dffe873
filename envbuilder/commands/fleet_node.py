"""`envbuilder fleet node` and `join`: what jobs do on a node. Not for people."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.builds.request import Request
from envbuilder.commands.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    environment_option,
    load_settings,
    profile_option,
)
from envbuilder.core import console, files, process
from envbuilder.core.errors import VERIFY_FAILED, BuildError, EnvbuilderError, printable
from envbuilder.fleet.model import LONGEST_TOGETHER_SECONDS, Detected
from envbuilder.payload.parallel import shares
from envbuilder.profiles.backends import BACKENDS

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

_HINT = "Is the folder shared with this node?"
_LONGEST_MESSAGE = 4000
"""Characters of what the verification, a program of the node's, printed last."""


@click.command("node", hidden=True, short_help="Verify this node, for a run of a fleet.")
@click.option("--run", required=True, help="The run.")
@click.option("--node", "name", required=True, help="The node, as the scheduler calls it.")
@click.option("--job", required=True, help="The job.")
@click.option(
    "--folder",
    required=True,
    type=EXISTING_FOLDER,
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
    from envbuilder.fleet import folder as folders, judge
    from envbuilder.fleet.slurm import given_gpus

    seen = _detected(load_settings())
    with TemporaryDirectory(prefix="envbuilder-") as scratch:
        path = Path(scratch) / "report.json"
        # -P: no file of the folder shadows a module.
        verify = (sys.executable, "-P", "-m", "envbuilder", "verify", *arguments)
        done = process.run(
            (*verify, "--output", str(path)),
            timeout=limit,
            on_stdout=console.message,
            on_stderr=console.message,
        )
        report = _read(path, judge.LARGEST)
    result = judge.Result(
        run=run,
        job=job,
        node=name,
        host=socket.gethostname(),
        exit_code=None if done.timed_out else done.returncode,
        message=done.last_words[-_LONGEST_MESSAGE:],
        seconds=done.seconds,
        detected=seen,
        gpus=given_gpus(os.environ),
        report=report,
    )
    files.save(folders.result_path(folder, name, job), judge.encode(result), BuildError, _HINT)
    if result.exit_code is None:
        return VERIFY_FAILED
    return result.exit_code


def _detected(settings: Settings) -> Detected:
    """Detect this node, and the profile that fits it."""
    from envbuilder.host import probe
    from envbuilder.profiles import choice
    from envbuilder.project import variants

    host = probe.host()
    try:
        profile = choice.choose(variants.library(settings), settings, host).profile.name
    except EnvbuilderError:
        profile = None
    return Detected(
        profile=profile,
        accelerators=tuple(printable(gpu.name, 100) for gpu in host.gpus[:64]),
        cpu=printable(host.cpu.model_name or "", 100),
    )


def _read(path: Path, largest: int) -> dict[str, Any] | None:
    """Return the report that was just written; None if there is none, or not a whole one."""
    try:
        report = msgspec.json.decode(files.read(path, largest))
    except (OSError, ValueError):
        return None
    if isinstance(report, dict):
        return report
    return None


def _name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return the name of an attempt or a node, which becomes part of the names of files."""
    try:
        return shares.name(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _host(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return the name or the address of a host."""
    if not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}", value):
        raise click.BadParameter(f"{value!r} is not the name or the address of a host", ctx, param)
    return value


@click.command("join", hidden=True, short_help="Do this node's part of a training across nodes.")
@profile_option
@environment_option
@click.option(
    "--backend", type=click.Choice(tuple(BACKENDS)), help="venv or conda.  [default: venv]"
)
@click.option(
    "--python",
    "executable",
    type=EXISTING_FILE,
    help="Use this interpreter as it is, instead of an environment of envbuilder's.",
)
@click.option(
    "--folder",
    required=True,
    type=EXISTING_FOLDER,
    help="Folder that all nodes see.",
)
@click.option(
    "--attempt",
    required=True,
    metavar="NAME",
    callback=_name,
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
    metavar="NAME",
    callback=_name,
    envvar="SLURMD_NODENAME",
    default=socket.gethostname,
    help="What reports call this node.  [default: as Slurm does, else the host's name]",
)
@click.option(
    "--master-address",
    required=True,
    metavar="HOST",
    callback=_host,
    help="Where node 0 is reached.",
)
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
    type=FILE,
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
    written = console.Place("--output", output, console.has_keys("schema", "attempt", "nodes"))
    if node_rank == 0:
        written.require()
    outcome = parallel.join(
        parallel.Place(
            nodes=nodes,
            number=node_rank,
            name=node_name,
            address=master_address,
            port=master_port,
            folder=folder.absolute(),
            attempt=attempt,
            limit_seconds=limit,
        ),
        Request(profile=profile, backend=backend),
        executable,
        load_settings(),
        console.progress(),
    )
    if node_rank == 0:
        result = parallel.Result(
            **msgspec.structs.asdict(outcome), attempt=attempt, nodes=nodes, schema=1
        )
        written.write(lambda: console.as_json(result) + "\n")
    for reason in outcome.reasons:
        console.message(reason)
    return 0 if outcome.status == "passed" else VERIFY_FAILED
