"""The jobs of a run, as scripts for sbatch: one a node, and one for nodes together. Pure."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from envbuilder.core import types
from envbuilder.core.resources import MARK, filled
from envbuilder.fleet.model import RunId
from envbuilder.fleet.settings import Argument, SchedulerOption, ShellLine

if TYPE_CHECKING:
    from envbuilder.fleet.groups import Members
    from envbuilder.fleet.model import Promise

SAFE_FOLDER = r"^/[A-Za-z0-9._/@+=,~-]*\Z"
"""What a line of `#SBATCH` can hold as it is."""
SUFFIX = ".sbatch"
"""Of a script's name."""
_START_SECONDS = 120
"""What a job gets beyond the verification's limit: for its setup, and to report a time-out."""
_LAST_FILES_SECONDS = 120
"""What nodes together get beyond that: the first one waits for the others' last files."""


class Common(Struct, frozen=True, kw_only=True):
    """What all jobs of a run, or all of its groups' jobs, have in common.

    It is read again with the plan of a run, and nothing of it may end a line of a script.
    """

    run: RunId
    folder: Annotated[str, Meta(pattern=SAFE_FOLDER)]
    """Of the run; the same path on all nodes."""
    command: tuple[Argument, ...]
    """Starts envbuilder on a node."""
    arguments: tuple[Argument, ...]
    """For `envbuilder verify` on each node, or for `envbuilder fleet join`."""
    project: Annotated[str, Meta(pattern=r"^/[^\x00-\x1f\x7f]*\Z")] | None = None
    """Folder with the `envbuilder.yaml` that the run is for; the same path on all nodes."""
    sif: dict[types.Name, types.AbsolutePath] = {}
    """Profile → the file with its image."""
    variables: dict[Annotated[str, Meta(pattern=r"^[A-Z_]{1,100}\Z")], str]
    options: tuple[SchedulerOption, ...]
    """For sbatch."""
    setup: tuple[ShellLine, ...]
    limit_seconds: Annotated[int, Meta(ge=1)]
    """How long a verification, or a training together, may take."""


def job_name(run: str) -> str:
    """Return the name that all jobs of a run have, and no other job."""
    return f"envbuilder-{run}"


def time_limit(limit_seconds: int) -> int:
    """Return the minutes that Slurm gives a job; it counts in minutes."""
    return math.ceil((limit_seconds + _START_SECONDS) / 60)


def group_time_limit(limit_seconds: int) -> int:
    """Return the minutes that Slurm gives a job of nodes together."""
    return time_limit(limit_seconds + _LAST_FILES_SECONDS)


def text(promise: Promise, common: Common) -> str:
    """Return the script for one node."""
    facts = {
        "promise": promise,
        "name": promise.node,
        "nodes": [promise.node],
        "gpus": promise.gpus,
        "minutes": time_limit(common.limit_seconds),
        "arguments": shlex.join(_arguments(promise, common)),
    }
    return _filled("verify", facts, common)


def group_text(members: Members, common: Common) -> str:
    """Return the script for nodes that train together."""
    profile = ("--profile", members.profile) if members.profile else ()
    facts = {
        "name": members.name,
        "nodes": members.nodes,
        "gpus": members.gpus,
        "profile": members.profile,
        "minutes": group_time_limit(common.limit_seconds),
        "arguments": shlex.join((*profile, *common.arguments)),
    }
    return _filled("train", facts, common)


def _filled(template: str, facts: dict[str, object], common: Common) -> str:
    shared = {"mark": MARK, "common": common, "job_name": job_name(common.run)}
    shared["command"] = shlex.join(common.command)
    return filled(f"fleet/{template}.sbatch.j2", {**facts, **shared})


def _arguments(promise: Promise, common: Common) -> tuple[str, ...]:
    profile = ("--profile", promise.profile) if promise.profile else ()
    image = common.sif.get(promise.profile or "")
    # Each of several GPUs is proven, and all together, where that is possible.
    devices = ("--devices", "all") if promise.gpus_to_prove > 1 else ()
    return (*profile, *(("--sif", image) if image else ()), *devices, *common.arguments)
