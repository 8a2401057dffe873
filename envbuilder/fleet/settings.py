"""`fleet.yaml`: which nodes are for which profile, and what every job needs on this cluster."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from envbuilder.core import ownership, schema, types
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes.settings import KubernetesSettings

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.fleet.model import Node

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
    *("job-name", "nodelist", "nodes", "ntasks", "ntasks-per-node"),
    *("output", "error", "array", "time", "requeue"),
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
        """Return what a node must be, for messages."""
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
    kubernetes: KubernetesSettings | None = None
    """For `fleet render`."""
    sif: dict[types.Name, types.AbsolutePath] = {}
    """For `fleet verify`: profile → its image in a file that all nodes see and run by Apptainer."""


def read(path: Path) -> FleetSettings:
    """Read a file, which must be the user's own: its lines of shell run in jobs.

    Raises `InvalidError` with file, line, key and suggestion.
    """
    ownership.require_own(path)
    text = schema.read_text(path)
    data = schema.parse_yaml(text, str(path))
    settings = schema.decode(data, FleetSettings, str(path), text)
    for number, rule in enumerate(settings.profiles):
        if not rule.conditions:
            where = schema.place(str(path), text, ["profiles", str(number)])
            raise InvalidError(
                f"{where}: profiles.{number}: it applies to no node",
                "Add feature:, gres: or node: to say which nodes it is for.",
            )
    for number, option in enumerate(settings.sbatch):
        if _is_own(option):
            where = schema.place(str(path), text, ["sbatch", str(number)])
            raise InvalidError(
                f"{where}: sbatch.{number}: envbuilder itself sets {option.partition('=')[0]}",
                "Leave it out; see `envbuilder fleet verify --help`.",
            )
    program = settings.command[0] if settings.command else ""
    if "/" in program and not program.startswith("/"):
        where = schema.place(str(path), text, ["command", "0"])
        raise InvalidError(
            f"{where}: command.0: {program} is not an absolute path",
            "Jobs start in another folder: begin it with /.",
        )
    return settings


def _is_own(option: str) -> bool:
    if not option.startswith("--"):
        return option[1] in _OWN_LETTERS
    return re.split(r"[= ]", option[2:])[0] in _OWN
