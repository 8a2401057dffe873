"""`envbuilder fleet`: verify every node of a cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands import fleet_node
from envbuilder.commands.options import (
    FILE,
    FOLDER,
    json_option,
    load_settings,
)
from envbuilder.core import console, text
from envbuilder.core.errors import VERIFY_FAILED, InvalidError

if TYPE_CHECKING:
    from envbuilder.fleet.model import Summary


@click.group("fleet")
def command() -> None:
    """Verify every node of a cluster: the promised hardware, the actual hardware and its speed.

    \b
    Examples:
      envbuilder fleet verify --dry-run
      envbuilder fleet verify --quick
    """


command.add_command(fleet_node.node)


_UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Parse a duration of at most a week, such as 90s, 30m or 2h, and return it in seconds.

    Raise `BadParameter` if the duration is malformed or out of range.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smh])", value)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= 7 * 24 * 3600:
        raise click.BadParameter(f"{value!r} is not a time such as 90s, 30m or 2h", ctx, param)
    return seconds


@command.command("verify", short_help="Verify every node of a cluster.")
@click.option(
    "--profile", metavar="NAME", help="Profile promised for every node; overrides fleet.yaml."
)
@click.option(
    "--partition", metavar="NAME", help="Only verify nodes of this partition, and submit to it."
)
@click.option(
    "--nodes", metavar="PATTERN,…", help="Only verify these nodes; * and ? match any characters."
)
@click.option("--quick", is_flag=True, help="Use a small subset of MNIST.")
@click.option(
    "--python",
    "executable",
    type=FILE,
    help="Verify this interpreter on the nodes instead of an environment built by envbuilder.",
)
@click.option(
    "--limit",
    metavar="TIME",
    callback=_seconds,
    default="30m",
    help="Stop a verification after this time.  [default: 30m]",
)
@click.option(
    "--folder",
    type=FOLDER,
    help="New folder, which all nodes must see.  [default: ./fleet-RUN]",
)
@click.option("--dry-run", is_flag=True, help="Write the nodes' scripts without submitting them.")
@json_option
def verify(
    profile: str | None,
    partition: str | None,
    nodes: str | None,
    quick: bool,
    executable: Path | None,
    limit: int,
    folder: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Verify every node of a Slurm cluster with one job each, and compare with what was promised.

    fleet.yaml in this folder assigns profiles to nodes; without it, each node chooses a profile by
    what it detects. The jobs need no accounting. Their scripts, logs and results are in a folder
    that all nodes must see. Ctrl-C cancels only the run's own jobs.

    The exit code is 5 if an examined node was not verified. Nodes that administrators drained, and
    nodes without a rule, are not examined.

    \b
    fleet.yaml:
      profiles:
        - {feature: h100, profile: cuda}
        - {gres: "gpu:xe", profile: xpu}
        - {node: "epyc*", profile: zendnn}
      sbatch: ["--account=ml"]
      setup: ["module load gcc"]
      sif: {cuda: /shared/cuda.sif}

    \b
    Examples:
      envbuilder fleet verify --dry-run
      envbuilder fleet verify --quick
      envbuilder fleet verify --partition gpu --profile cuda --limit 20m
      envbuilder fleet verify --nodes 'epyc*' --folder /shared/fleet-1
    """
    from envbuilder.fleet import folder as folders, model, planning
    from envbuilder.fleet.run import Run
    from envbuilder.fleet.slurm import Slurm
    from envbuilder.project import variants

    if dry_run and as_json:
        raise click.UsageError("--dry-run verifies nothing and cannot be combined with --json")
    progress = console.progress()
    run = model.new_run(text.stamp_now())
    file = Path(planning.FILE)
    settings = planning.read_settings(file) if file.exists() else planning.FleetSettings()
    if settings.sif and executable:
        raise InvalidError(
            "--python cannot be combined with the images under sif: in fleet.yaml",
            "Remove --python, or remove sif: from fleet.yaml.",
        )
    user_settings = load_settings()
    library = variants.library(user_settings)
    if profile is not None:
        profile = library.named(profile).name  # raises before Slurm is asked
    python = executable
    if python is not None and (python.name != str(python) or python.exists()):
        # Jobs start in another folder. Not resolved: the place of a link tells the environment.
        python = python.absolute()
    request = planning.Request(
        profile=profile,
        patterns=tuple(filter(None, (nodes or "").split(","))),
        arguments=planning.arguments(quick=quick, python=python),
        quick=quick,
        limit_seconds=limit,
    )
    client = Slurm(partition)
    folder = (folder or Path(f"fleet-{run}")).absolute()
    folders.require_path(folder)
    # -P: no file of a job's folder shadows a module.
    program = (sys.executable, "-P", "-m", "envbuilder")
    # As they are here, and absolute: jobs start elsewhere, and get no other variables.
    folder_variables = {
        "ENVBUILDER_CACHE_DIR": str(user_settings.cache_dir),
        "ENVBUILDER_CONFIG_DIR": str(user_settings.config_dir),
        "ENVBUILDER_DATA_DIR": str(user_settings.data_dir),
    }
    common = planning.common(
        run,
        folder,
        settings,
        request,
        program,
        {**os.environ, **folder_variables},
        user_settings.project,
    )
    plan = planning.plan(run, client.nodes(), settings, request, library)
    scripts = planning.scripts(plan, common)
    folders.create(folder, scripts)
    if dry_run:
        for name in scripts:
            console.result(str(folders.script(folder, name)))
        return 0
    progress.note(f"run {run}: {folder}")
    return _report(Run(plan, folder, client, progress).finish(), as_json=as_json)


def _report(summary: Summary, *, as_json: bool) -> int:
    """Print the summary of a run, as a table or as JSON, and return the exit code."""
    from envbuilder.fleet import show

    if as_json:
        console.data({"schema": 2, "summary": summary})
    else:
        show.print_table(summary, console.rich_console())
    return 0 if summary.passed else VERIFY_FAILED
