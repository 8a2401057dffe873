"""`fleet.yaml`: which nodes are for which profile, and what every job needs on this cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.model import Entry, Node, Promise

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
        description="a node's name, where * and ? stand for others, such as epyc*",
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
    """Nodes that all conditions hold for are to prove a profile."""

    profile: types.Name
    feature: Label | None = None
    gres: ResourceName | None = None
    node: NodePattern | None = None

    @property
    def conditions(self) -> str:
        """Return the conditions in words."""
        named = (("feature", self.feature), ("gres", self.gres), ("node", self.node))
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)

    def applies(self, node: Node) -> bool:
        """Return whether a node fulfills all conditions."""
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
    """What a site says of its cluster."""

    profiles: tuple[Rule, ...] = ()
    """The first rule that applies decides. Without any, each node decides by what it detects."""
    sbatch: Annotated[tuple[SchedulerOption, ...], Meta(max_length=50)] = ()
    """Options for every job, as `#SBATCH` lines."""
    setup: Annotated[tuple[ShellLine, ...], Meta(max_length=100)] = ()
    """Shell that every job runs first, such as `module load python`."""
    command: Annotated[tuple[Argument, ...], Meta(max_length=20)] = ()
    """How nodes start envbuilder; without it, as it was started here."""
    sif: dict[types.Name, types.AbsolutePath] = {}
    """For `fleet verify`: profile → its image in a file that all nodes see and run by Apptainer."""


def read(path: Path) -> FleetSettings:
    """Read a file, which must be the user's own: its lines of shell run in jobs.

    Raises `InvalidError` with file, line, key and suggestion.
    """
    files.require_own(path)
    text = files.read_text(path)
    settings = decoding.decode(decoding.parse_yaml(text, str(path)), FleetSettings, str(path), text)
    for keys, problem, hint in _problems(settings):
        where = decoding.place(str(path), text, keys)
        raise InvalidError(f"{where}: {'.'.join(keys)}: {problem}", hint)
    return settings


def _problems(settings: FleetSettings) -> Iterator[tuple[list[str], str, str]]:
    """Yield the place of each mistake that the types allow, the mistake and a suggestion."""
    for number, rule in enumerate(settings.profiles):
        if not rule.conditions:
            hint = "Add feature:, gres: or node: to say which nodes it is for."
            yield ["profiles", str(number)], "it applies to no node", hint
    for number, option in enumerate(settings.sbatch):
        name = re.split(r"[= ]", option.removeprefix("--"))[0]
        if name in _OWN if option.startswith("--") else option[1] in _OWN_LETTERS:
            problem = f"envbuilder itself sets {option.partition('=')[0]}"
            hint = "Leave it out; see `envbuilder fleet verify --help`."
            yield ["sbatch", str(number)], problem, hint
    program = ""
    if settings.command:
        program = settings.command[0]
    if "/" in program and not program.startswith("/"):
        hint = "Jobs start in another folder: begin it with /."
        yield ["command", "0"], f"{program} is not an absolute path", hint


def promised(
    nodes: Iterable[Node], settings: FleetSettings, profile: str | None
) -> tuple[tuple[Promise, ...], tuple[Entry, ...]]:
    """Return the promises of nodes, and the rows of those that get no job.

    `profile` is promised of every node, whatever the settings say.
    """
    promises = list[Promise]()
    left_out = list[Entry]()
    for node in nodes:
        promise = _promise(node, settings, profile)
        if promise is None:
            text = "no rule in the settings is for it"
            left_out.append(Entry(node=node.name, outcome="unmapped", detail=text))
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
    """Return a node's promise; None if the settings have rules, and none is for it."""
    gpus = sum(r.count for r in node.resources if r.name == "gpu")
    if profile is not None:
        return Promise(node=node.name, profile=profile, why="--profile", gpus=gpus)
    for rule in settings.profiles:
        if rule.applies(node):
            return Promise(node=node.name, profile=rule.profile, why=rule.conditions, gpus=gpus)
    if settings.profiles:
        return None
    return Promise(node=node.name, why="what it detects", gpus=gpus)
