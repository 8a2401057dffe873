"""The part of a job on its node: detect the hardware, verify, and write the result."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from envbuilder.builds import pipeline
from envbuilder.builds.request import Request
from envbuilder.core import console, files, process
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.settings import Settings
from envbuilder.core.text import printable
from envbuilder.fleet import judge
from envbuilder.fleet.model import Detected
from envbuilder.profiles import choice

_LONGEST_MESSAGE = 4000


def detected(settings: Settings) -> Detected:
    """Detect this node, and the profile that fits it."""
    build = pipeline.begin(Request(), settings, console.progress(), running=True)
    try:
        profile = choice.choose(build.library, settings, build.host).profile.name
    except EnvbuilderError:
        profile = None
    return Detected(
        profile=profile,
        accelerators=tuple(printable(gpu.name, 100) for gpu in build.host.gpus[:64]),
        cpu=printable(build.host.cpu.model_name or "", 100),
    )


def examine(
    settings: Settings,
    *,
    run: str,
    job: str,
    node: str,
    limit: float,
    gpus: int | None,
    arguments: Sequence[str],
) -> judge.Result:
    """Run `envbuilder verify` with these arguments; return the result, whatever it is.

    Verification takes at most `limit` seconds; then it is stopped, and all that it started. `gpus`
    is how many the scheduler says that it gave; None if it says nothing.
    """
    seen = detected(settings)
    with TemporaryDirectory(prefix="envbuilder-") as scratch:
        report = Path(scratch) / "report.json"
        # -P: no file of the folder shadows a module.
        verify = (sys.executable, "-P", "-m", "envbuilder", "verify", *arguments)
        done = process.run(
            (*verify, "--output", str(report)),
            timeout=limit,
            on_stdout=console.message,
            on_stderr=console.message,
        )
        content = _read(report)
    return judge.Result(
        run=run,
        job=job,
        node=node,
        host=socket.gethostname(),
        exit_code=None if done.timed_out else done.returncode,
        message=done.last_words[-_LONGEST_MESSAGE:],
        seconds=done.seconds,
        detected=seen,
        gpus=gpus,
        report=content,
    )


def _read(path: Path) -> dict[str, Any] | None:
    """Return the report that was just written; None if there is none, or not a whole one."""
    try:
        report = msgspec.json.decode(files.read(path, judge.LARGEST))
    except (OSError, ValueError):
        return None
    if isinstance(report, dict):
        return report
    return None
