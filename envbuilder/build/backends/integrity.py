"""The integrity manifest of a native environment: its contents when its build ended.

The list of files is in the environment, and the list's digest in its marker, so that verification
can name the files that were changed, added or removed since.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envbuilder.build.backends import tree_digest
from envbuilder.core.errors import VerifyError
from envbuilder.core.resources import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MARKER = "envbuilder.json"
"""Build metadata in a prefix: that envbuilder made it, from what, and its digests at that time."""
FILES = f"{OWN}/files.jsonl"
OURS = frozenset({MARKER, FILES})
PLACED = f"{OWN}/placed.txt"
"""List of further files that contain the environment's location, one path a line."""
HOST_BOUND = frozenset({"pyvenv.cfg", "bin/python", "venv/pyvenv.cfg"})
"""Host-dependent files: they contain the host interpreter's path or the environment's location, as
do those in PLACED. All others are the same wherever they are built."""
SHOWN = 3
"""Most changed files that a message names."""


def close(prefix: Path, facts: dict[str, Any]) -> None:
    """Write the integrity manifest of a finished environment, and its marker with these facts."""
    (prefix / FILES).parent.mkdir(parents=True, exist_ok=True)
    entries = tree_digest.read(prefix, OURS)
    (prefix / FILES).write_text(tree_digest.dump(entries))
    portable = _portable(prefix, entries)
    marker = {**facts, "digest": portable, "tree": tree_digest.digest(entries)}
    (prefix / MARKER).write_text(json.dumps(marker, indent=1) + "\n")


def portable_digest(prefix: Path) -> str:
    """Return the digest of an environment's files as they are now, without host-dependent files.

    Raises `OSError` if one cannot be read.
    """
    return _portable(prefix, tree_digest.read(prefix, OURS))


def _portable(prefix: Path, entries: Iterable[tree_digest.Entry]) -> str:
    # A list of exceptions that is itself an exception would let any file be changed.
    bound = host_bound(prefix) - {PLACED}
    return tree_digest.digest(e for e in entries if e.path not in bound)


def bind(prefix: Path, paths: Iterable[str]) -> None:
    """Record, before `close`, further files that contain the environment's final location."""
    (prefix / PLACED).parent.mkdir(parents=True, exist_ok=True)
    listed = sorted({*_placed(prefix), *paths})
    (prefix / PLACED).write_text("".join(f"{path}\n" for path in listed))


def host_bound(prefix: Path) -> frozenset[str]:
    """Return the host-dependent files of an environment."""
    return HOST_BOUND.union(_placed(prefix))


def _placed(prefix: Path) -> list[str]:
    try:
        return (prefix / PLACED).read_text().splitlines()
    except FileNotFoundError:
        return []


def marker(prefix: Path) -> dict[str, Any]:
    """Return an environment's build metadata; empty if envbuilder did not finish one there."""
    try:
        metadata = json.loads((prefix / MARKER).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def is_sealed(prefix: Path) -> bool:
    """Return whether the folder is empty or was made by envbuilder, even if changed since."""
    return (prefix / MARKER).is_file() or (prefix / OWN).is_dir() or not any(prefix.iterdir())


def require_unchanged(prefix: Path, python: str, owner: Callable[[str], str]) -> None:
    """Raise `VerifyError` if an environment's contents have changed since its build.

    `python` is its interpreter, below the prefix; `owner` returns the package that a path belongs
    to, or an empty string.
    """
    hint = (
        "Build it again: add --rebuild to envbuilder build. To check it as it is: envbuilder"
        f" verify --python {prefix / python}"
    )
    try:
        entries = tree_digest.read(prefix, OURS)
    except OSError as error:
        message = f"{error.filename}: cannot be read: {error.strerror}"
        raise VerifyError(
            f"the environment was changed after the build: {message}", hint
        ) from error
    if tree_digest.digest(entries) == marker(prefix).get("tree"):
        return
    try:
        before = tree_digest.parse((prefix / FILES).read_text())
    except (OSError, ValueError):
        before = ()
    changed = tree_digest.differences(before, entries) if before else ()
    owners = ((d, owner(d.path)) for d in changed[:SHOWN])
    named = ", ".join(f"{d.path} ({d.how}{f', of {o}' if o else ''})" for d, o in owners)
    named = named or f"its list of files ({FILES})"
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    raise VerifyError(f"{prefix} was changed after the build: {named}{more}", hint)
