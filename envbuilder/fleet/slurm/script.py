"""The job that verifies one node, as a script for sbatch. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.resources import MARK
from envbuilder.core.templates import filled

if TYPE_CHECKING:
    from envbuilder.fleet.model import Promise

_START_SECONDS = 120
"""What a job gets beyond the verification's limit: for its setup, and to report a time-out."""


class Common(Struct, frozen=True, kw_only=True):
    """What all jobs of a run have in common."""

    run: str
    folder: str
    """Of the run; the same path on all nodes."""
    command: tuple[str, ...]
    """Starts envbuilder on a node."""
    arguments: tuple[str, ...]
    """For `envbuilder verify` on each node."""
    sif: Mapping[str, str] = {}
    """Profile → the file with its image."""
    variables: Mapping[str, str]
    options: tuple[str, ...]
    """For sbatch."""
    setup: tuple[str, ...]
    limit_seconds: int
    """How long a verification may take."""


def job_name(run: str) -> str:
    """Return the name that all jobs of a run have, and no other job."""
    return f"envbuilder-{run}"


def time_limit(limit_seconds: int) -> int:
    """Return the minutes that Slurm gives a job; it counts in minutes."""
    return math.ceil((limit_seconds + _START_SECONDS) / 60)


def text(promise: Promise, common: Common) -> str:
    """Return the script for one node."""
    return filled(
        "fleet/verify.sbatch.j2",
        {
            "mark": MARK,
            "promise": promise,
            "common": common,
            "job_name": job_name(common.run),
            "minutes": time_limit(common.limit_seconds),
            "command": shlex.join(common.command),
            "arguments": shlex.join(_arguments(promise, common)),
        },
    )


def _arguments(promise: Promise, common: Common) -> tuple[str, ...]:
    profile = ("--profile", promise.profile) if promise.profile else ()
    image = common.sif.get(promise.profile or "")
    # A node with several GPUs is proven with each of them, and with all together.
    devices = ("--devices", "all") if promise.gpus > 1 else ()
    return (*profile, *(("--sif", image) if image else ()), *devices, *common.arguments)
