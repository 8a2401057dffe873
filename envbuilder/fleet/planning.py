"""Plan a run on Slurm: read `fleet.yaml`, decide what nodes must prove, and write job scripts."""

from __future__ import annotations

import math
import re
import shlex
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import InvalidError, printable
from envbuilder.core.resources import MARK, filled
from envbuilder.fleet import slurm
from envbuilder.fleet.model import Entry, Node, Promise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.profiles.library import Library

FILE = "fleet.yaml"

Label = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/=-]{0,199}\Z",
        description="a node's feature, or label",
    ),
]
ResourceName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(:[A-Za-z0-9][A-Za-z0-9_.-]{0,99})?\Z",
        description="a generic resource, with its type after a colon, such as gpu:h100",
    ),
]
NodePattern = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9*?\[][A-Za-z0-9._*?\[\]-]{0,252}\Z",
        description="a node's name, in which * and ? match any characters, such as epyc*",
    ),
]
SchedulerOption = Annotated[
    str,
    Meta(
        pattern=r"^--?[A-Za-z][^\x00-\x1f\x7f]{0,300}\Z",
        description="an option of sbatch, such as --account=ml",
    ),
]
ShellLine = Annotated[
    str,
    Meta(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]{1,1000}\Z", description="one line of shell"),
]
Argument = Annotated[
    str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,1000}\Z", description="a word of a command")
]
_OWN = (
    "job-name",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "output",
    "error",
    "array",
    "time",
    "requeue",
)
_OWN_LETTERS = "JwNnoeat"


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that specifies the profile to prove for all nodes that meet its conditions."""

    profile: types.Name
    feature: Label | None = None
    gres: ResourceName | None = None
    node: NodePattern | None = None

    @property
    def conditions(self) -> str:
        """The rule's conditions in the form shown to the user."""
        conditions = (("feature", self.feature), ("gres", self.gres), ("node", self.node))
        return ", ".join(f"{name} {value}" for name, value in conditions if value is not None)

    def applies(self, node: Node) -> bool:
        """Return whether a node meets all of the rule's conditions."""
        name, _, kind = (self.gres or "").partition(":")
        return (
            (self.feature is None or self.feature in node.features)
            and (self.node is None or fnmatchcase(node.name, self.node))
            and (
                self.gres is None
                or any(r.name == name and kind in ("", r.type) for r in node.resources)
            )
        )


class FleetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site's settings for its cluster, read from `fleet.yaml`."""

    profiles: tuple[Rule, ...] = ()
    """Rules that decide which profile each node must prove. The first rule that applies to the node
    decides. If there are no rules, each node chooses a profile based on what it detects."""
    sbatch: Annotated[tuple[SchedulerOption, ...], Meta(max_length=50)] = ()
    """Options of sbatch for every job. They become `#SBATCH` lines in the script."""
    setup: Annotated[tuple[ShellLine, ...], Meta(max_length=100)] = ()
    """Lines of shell code that every job runs first, such as `module load python`."""
    command: Annotated[tuple[Argument, ...], Meta(max_length=20)] = ()
    """The command that starts envbuilder on the nodes. The default is the command that starts
    envbuilder on this machine."""
    sif: dict[types.Name, types.AbsolutePath] = {}
    """Paths of image files for `fleet verify`, by profile. All nodes must be able to access these
    files and run them with Apptainer."""


def read_settings(path: Path) -> FleetSettings:
    """Read a site's settings for its cluster from a file.

    The file must belong to the user, because jobs run shell code from it. If a setting is invalid,
    raise an `InvalidError` that names the file, line and key, and makes a suggestion.
    """
    files.require_own(path)
    text = files.read_text(path)
    settings = decoding.decode(decoding.parse_yaml(text, str(path)), FleetSettings, str(path), text)
    for keys, problem, hint in _problems(settings):
        where = decoding.place(str(path), text, keys)
        raise InvalidError(f"{where}: {'.'.join(keys)}: {problem}", hint)
    return settings


def _problems(settings: FleetSettings) -> Iterator[tuple[list[str], str, str]]:
    """Yield the location of each mistake in the settings, with its description and a suggestion.

    Only mistakes that the types do not catch are reported. A location is a list of keys.
    """
    for number, rule in enumerate(settings.profiles):
        if not rule.conditions:
            hint = "Add feature:, gres: or node: to name the rule's nodes."
            yield ["profiles", str(number)], "the rule applies to no node", hint
    for number, option in enumerate(settings.sbatch):
        name = re.split(r"[= ]", option.removeprefix("--"))[0]
        if name in _OWN if option.startswith("--") else option[1] in _OWN_LETTERS:
            problem = f"envbuilder itself sets {option.partition('=')[0]}"
            hint = "Remove this option: see `envbuilder fleet verify --help`."
            yield ["sbatch", str(number)], problem, hint
    program = ""
    if settings.command:
        program = settings.command[0]
    if "/" in program and not program.startswith("/"):
        hint = "Begin the path with /, because jobs start in another folder."
        yield ["command", "0"], f"{program} is not an absolute path", hint


def promised(
    nodes: Iterable[Node], settings: FleetSettings, profile: str | None
) -> tuple[tuple[Promise, ...], tuple[Entry, ...]]:
    """Return the promises of the nodes that get a job, and the table rows of all other nodes.

    If `profile` is given, every node must prove that profile, regardless of the settings.
    """
    promises: list[Promise] = []
    left_out: list[Entry] = []
    for node in nodes:
        promise = _promise(node, settings, profile)
        if promise is None:
            left_out.append(
                Entry(node=node.name, outcome="unmapped", detail="no rule in fleet.yaml matches it")
            )
        elif node.usable:
            promises.append(promise)
        else:
            left_out.append(
                Entry(
                    node=node.name,
                    outcome="drained",
                    promised=promise.profile or "",
                    why=promise.why,
                    detail=f"{node.state}: {node.reason or 'no reason is stated'}",
                )
            )
    return tuple(promises), tuple(left_out)


def _promise(node: Node, settings: FleetSettings, profile: str | None) -> Promise | None:
    """Return what a node must prove.

    Return None if there are rules but none of them applies to the node.
    """
    gpus = sum(r.count for r in node.resources if r.name == "gpu")
    if profile is not None:
        return Promise(node=node.name, profile=profile, why="--profile", gpus=gpus)
    for rule in settings.profiles:
        if rule.applies(node):
            return Promise(node=node.name, profile=rule.profile, why=rule.conditions, gpus=gpus)
    if settings.profiles:
        return None
    return Promise(node=node.name, why="what it detects", gpus=gpus)


SAFE_FOLDER = r"^/[A-Za-z0-9._/@+=,~-]*\Z"
"""Pattern for folder names that an `#SBATCH` line can contain without quotes."""
_START_SECONDS = 120
"""Seconds to add to a job's time limit, for its setup and for reporting a timeout."""
_PASSED_ON = re.compile(
    r"PATH|HOME|LANG|LC_ALL"
    r"|ENVBUILDER_(CACHE_DIR|DATA_DIR|CONFIG_DIR|SHARED_STORE|BASE_IMAGE|TRUSTED_FOLDERS)"
)
"""Pattern for the names of the variables that are passed on to jobs. All other variables are
omitted, because other users may be able to read the folder that contains the scripts."""


class Common(Struct, frozen=True, kw_only=True):
    """The settings that all jobs of a run share."""

    run: str
    folder: str
    """The folder of the run, whose path is the same on all nodes."""
    command: tuple[str, ...]
    """The command that starts envbuilder on a node."""
    arguments: tuple[str, ...]
    """Arguments to pass to `envbuilder verify` on each node."""
    project: str | None
    """The folder that contains the run's `envbuilder.yaml`, or None outside a project. The path of
    the folder is the same on all nodes."""
    sif: dict[str, str]
    """Paths of image files, by profile."""
    variables: dict[str, str]
    options: tuple[str, ...]
    """Options to pass to sbatch."""
    setup: tuple[str, ...]
    limit_seconds: int
    """Maximum duration of a verification in seconds."""


class Plan(Struct, frozen=True, kw_only=True):
    """The plan of a run: which nodes must prove what, and how long each job may take."""

    run: str
    quick: bool
    limit_seconds: int
    promises: tuple[Promise, ...]
    left_out: tuple[Entry, ...]


class Request(Struct, frozen=True, kw_only=True):
    """The command-line options of a run."""

    profile: str | None
    """The profile that every node must prove, or None to follow the settings."""
    patterns: tuple[str, ...]
    """Patterns for the names of the nodes to verify. Empty for all nodes."""
    arguments: tuple[str, ...]
    """Arguments to pass to `envbuilder verify` on each node."""
    quick: bool
    limit_seconds: int


def plan(
    run: str,
    nodes: Sequence[Node],
    settings: FleetSettings,
    request: Request,
    library: Library,
) -> Plan:
    """Return the plan for verifying the requested nodes.

    Raise `InvalidError` if there are no nodes, if a pattern matches no node, if a profile that a
    node must prove does not exist, or if image files are given although nodes choose their own
    profile.
    """
    promises, left_out = promised(_chosen(nodes, request.patterns), settings, request.profile)
    if settings.sif and any(promise.profile is None for promise in promises):
        raise InvalidError(
            "sif: no rules assign profiles to nodes",
            "Add profiles: to the same file, or use --profile.",
        )
    if not promises and not left_out:
        raise InvalidError("the scheduler lists no nodes", "To list the nodes, run: sinfo")
    return Plan(
        run=run,
        quick=request.quick,
        limit_seconds=request.limit_seconds,
        promises=tuple(_counted(promise, library) for promise in promises),
        left_out=left_out,
    )


def _chosen(nodes: Sequence[Node], patterns: Sequence[str]) -> Iterator[Node]:
    for pattern in patterns:
        if not any(fnmatchcase(node.name, pattern) for node in nodes):
            raise InvalidError(
                f"--nodes: no node matches {printable(pattern, 60)}",
                "To list the nodes, run: sinfo",
            )
    for node in nodes:
        if not patterns or any(fnmatchcase(node.name, pattern) for pattern in patterns):
            yield node


def _counted(promise: Promise, library: Library) -> Promise:
    """Return a copy of a promise that says how many GPUs the node's verification must cover.

    Only PyTorch can cover several GPUs (`verify --devices`). A CPU profile covers no GPU. A node
    that chooses its own profile must cover as many GPUs as it would with a GPU profile. Otherwise,
    a node that does not detect its GPUs would pass as a CPU node.
    """
    framework = library.framework[0]
    accelerator = ""
    if promise.profile is not None:
        profile = library.profile(promise.profile)
        framework = profile.framework
        accelerator = profile.accelerator
    most = 1
    if framework == "torch":
        most = promise.gpus
    if accelerator == "cpu":
        most = 0
    return replace(promise, covered=min(most, promise.gpus))


def common(
    run: str,
    folder: Path,
    settings: FleetSettings,
    request: Request,
    command: Sequence[str],
    environ: Mapping[str, str],
    project: Path | None = None,
) -> Common:
    """Return the settings that all jobs of a run share.

    `command` is the command that starts envbuilder on the nodes.
    """
    return Common(
        run=run,
        folder=str(folder),
        command=settings.command or tuple(command),
        arguments=request.arguments,
        project=str(project) if project else None,
        sif=settings.sif,
        variables={k: environ[k] for k in sorted(environ) if _PASSED_ON.fullmatch(k)},
        options=settings.sbatch,
        setup=settings.setup,
        limit_seconds=request.limit_seconds,
    )


def time_limit(limit_seconds: int) -> int:
    """Return a job's time limit for Slurm, in whole minutes.

    `limit_seconds` is the maximum duration of the verification.
    """
    return math.ceil((limit_seconds + _START_SECONDS) / 60)


def scripts(plan: Plan, common: Common) -> dict[str, str]:
    """Return the job script for each node that must prove something, by node name."""
    return {promise.node: _node_script(promise, common) for promise in plan.promises}


def _node_script(promise: Promise, common: Common) -> str:
    profile = ("--profile", promise.profile) if promise.profile else ()
    image = common.sif.get(promise.profile or "")
    # Each of several GPUs is proven, and all together, where that is possible.
    devices = ("--devices", "all") if promise.gpus_to_prove > 1 else ()
    options = (*profile, *(("--sif", image) if image else ()), *devices, *common.arguments)
    return filled(
        "fleet/verify.sbatch.j2",
        {
            "mark": MARK,
            "common": common,
            "job_name": slurm.job_name(common.run),
            "command": shlex.join(common.command),
            "promise": promise,
            "minutes": time_limit(common.limit_seconds),
            "arguments": shlex.join(options),
        },
    )


def arguments(*, quick: bool = False, python: Path | None = None) -> tuple[str, ...]:
    """Return the options for `envbuilder verify` that are the same on all nodes."""
    words = ["--quick"] if quick else []
    if python:
        words += ["--python", str(python)]
    return tuple(words)
