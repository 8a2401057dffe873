"""Write what a run of a fleet showed, and read it again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from envbuilder.core import decoding, files, stamps
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import printable
from envbuilder.fleet.model import LONGEST_REASON, SCHEMA, Entry, Group, Summary

if TYPE_CHECKING:
    from pathlib import Path

NAME = "summary.json"
"""Name of the file in a run's folder."""
_Item = TypeVar("_Item", Entry, Group)
_HINT = f"Name the folder of a finished run, or the file {NAME} in it."


def encode(summary: Summary) -> bytes:
    """Return a summary as the text that `read` reads."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n"


def read(path: Path) -> Summary:
    """Return the summary in a file, or in a run's folder; raise `InvalidError` if it is not valid.

    The file may have been edited, or come from elsewhere: its texts are bounded and freed of
    control characters again.
    """
    file = path / NAME if path.is_dir() else path
    try:
        content = files.read(file, decoding.LARGEST)
    except OSError as error:
        problem = f"{file}: cannot be read: {error.strerror or error}"
        raise InvalidError(problem, _HINT) from error
    try:
        data = decoding.strict_json(content)
        stated = data.get("schema") if isinstance(data, dict) else None
        if isinstance(stated, int) and stated != SCHEMA:
            raise InvalidError(f"{file}: it has schema {stated}, expected {SCHEMA}")
        return _checked(decoding.convert(data, Summary))
    except ValueError as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{file}: not a summary of a fleet: {problem}", _HINT) from error


def _checked(summary: Summary) -> Summary:
    """Return a summary that is safe to show; raise `ValueError` if it contradicts itself."""
    for stamp in (summary.started, summary.finished):
        stamps.parse(stamp)
    nodes = [entry.node for entry in summary.entries]
    if len(set(nodes)) != len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ValueError(f"the node {twice} is in it twice")
    names = {group.name for group in summary.groups}
    if len(names) != len(summary.groups):
        raise ValueError("a group is in it twice")
    strangers = {node for group in summary.groups for node in group.nodes}.difference(nodes)
    if nodes and strangers:
        raise ValueError(f"the node {min(strangers)} is in a group, and not among the nodes")
    if summary.groups and not summary.across:
        raise ValueError("it has groups, although no nodes were to train together")
    return replace(
        summary,
        entries=tuple(_safe(entry, f"the node {entry.node}") for entry in summary.entries),
        groups=tuple(_safe(group, f"the group {group.name}") for group in summary.groups),
    )


def _safe(item: _Item, what: str) -> _Item:
    values = asdict(item)
    for key, value in values.items():
        # JSON's 1e999 is infinite.
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} of {what} is not finite")
    texts = {k: printable(v, LONGEST_REASON) for k, v in values.items() if isinstance(v, str)}
    return replace(item, **texts)
