"""`envbuilder fleet node`: verify one node. It is run by the node's job, not by users."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.commands.options import EXISTING_FOLDER, load_settings
from envbuilder.core import console, files, process
from envbuilder.core.errors import VERIFY_FAILED, BuildError, EnvbuilderError, printable
from envbuilder.fleet.model import Detected

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

_HINT = "Is the folder shared with this node?"
_LONGEST_MESSAGE = 4000
"""Maximum number of characters to keep from the end of the verification's output."""


@click.command("node", hidden=True, short_help="Verify this node, for a run of a fleet.")
@click.option("--run", required=True, help="Id of the run.")
@click.option("--node", "name", required=True, help="The node's name in the scheduler.")
@click.option("--job", required=True, help="Id of the job.")
@click.option(
    "--folder",
    required=True,
    type=EXISTING_FOLDER,
    help="Folder of the run.",
)
@click.option("--limit", required=True, type=click.IntRange(1), help="Time limit in seconds.")
@click.argument("arguments", nargs=-1)
def node(
    run: str, name: str, job: str, folder: Path, limit: int, arguments: tuple[str, ...]
) -> int:
    """Run `envbuilder verify ARGUMENTS` on this node, and write the result to the folder.

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
    """Detect this node's hardware and the profile that fits it."""
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
    """Return the report that was just written to `path`, or None if it is missing or incomplete."""
    try:
        report = msgspec.json.decode(files.read(path, largest))
    except (OSError, ValueError):
        return None
    if isinstance(report, dict):
        return report
    return None
