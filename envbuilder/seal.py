"""The seal of a native environment: what was in it when its build ended.

The list of its files lies in the environment, and the list's digest in the marker, so that
verification can say which file was changed, added or removed since.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envbuilder import tree
from envbuilder.errors import VerifyError

if TYPE_CHECKING:
    from pathlib import Path

MARKER = "envbuilder.json"
"""In a prefix: says that envbuilder made it, from what, and how it was when it was made."""
OWN = "lib/envbuilder"
"""Below a prefix: the payload, the preloaded libraries and the list of files."""
FILES = f"{OWN}/files.jsonl"
OURS = frozenset({MARKER, FILES})
HOST_BOUND = frozenset({"pyvenv.cfg", "bin/python"})
"""What names the host's interpreter; all else is the same wherever it is built."""
SHOWN = 3
"""Changed files that a message names."""


def close(prefix: Path, facts: dict[str, Any]) -> None:
    """Write down what a finished environment holds, with these facts about it in its marker."""
    (prefix / FILES).parent.mkdir(parents=True, exist_ok=True)
    found = tree.read(prefix, OURS)
    (prefix / FILES).write_text(tree.dump(found))
    portable = tree.digest(e for e in found if e.path not in HOST_BOUND)
    marker = {**facts, "digest": portable, "tree": tree.digest(found)}
    (prefix / MARKER).write_text(json.dumps(marker, indent=1) + "\n")


def marker(prefix: Path) -> dict[str, Any]:
    """What an environment says of itself; empty where envbuilder did not finish one there."""
    try:
        found = json.loads((prefix / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def require_unchanged(prefix: Path) -> None:
    """`VerifyError` where an environment does not hold what it held after its build."""
    hint = (
        f"Build it anew: add --rebuild to envbuilder build. To check it as it is: envbuilder verify"
        f" --python {prefix / 'bin' / 'python'}"
    )
    try:
        found = tree.read(prefix, OURS)
    except OSError as error:
        message = f"{error.filename}: cannot be read: {error.strerror}"
        raise VerifyError(
            f"the environment was changed after the build: {message}", hint
        ) from error
    if tree.digest(found) == marker(prefix).get("tree"):
        return
    try:
        before = tree.parse((prefix / FILES).read_text())
    except (OSError, ValueError):
        before = ()
    changed = tree.differences(before, found) if before else ()
    named = ", ".join(map(str, changed[:SHOWN])) or f"its list of files ({FILES})"
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    raise VerifyError(f"{prefix} was changed after the build: {named}{more}", hint)
