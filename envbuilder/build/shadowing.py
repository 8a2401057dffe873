"""Warn before `run` and `shell` if the user's variables shadow the environment's frameworks.

Both commands leave the user's variables unchanged; the warnings name those that shadow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import printable
from envbuilder.payload.origins import FRAMEWORK_LIBRARY, FRAMEWORKS, RUNTIME_LIBRARY
from envbuilder.payload.start import DRIVER_FOLDERS, below

if TYPE_CHECKING:
    from collections.abc import Iterator

HOOKS = frozenset({"sitecustomize", "usercustomize"})
"""Modules that every interpreter imports at startup."""
_LIBRARY = re.compile(rf"{FRAMEWORK_LIBRARY.pattern}|{RUNTIME_LIBRARY.pattern}")


class Facts(Struct, frozen=True, kw_only=True):
    """The user's variables, and the folders in them with the names of their entries."""

    environ: Mapping[str, str]
    modules: Mapping[str, Sequence[str]] = {}
    """PYTHONPATH's folders, in order."""
    libraries: Mapping[str, Sequence[str]] = {}
    """LD_LIBRARY_PATH's and DYLD_LIBRARY_PATH's folders, in order."""


def look(environ: Mapping[str, str]) -> Facts:
    """List the folders that variables name; one that cannot be read counts as empty."""

    def listed(value: str) -> dict[str, tuple[str, ...]]:
        return {folder: _names(Path(folder)) for folder in value.split(os.pathsep) if folder}

    libraries = (environ.get(name, "") for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"))
    return Facts(
        environ=environ,
        modules=listed(environ.get("PYTHONPATH", "")),
        libraries=listed(os.pathsep.join(filter(None, libraries))),
    )


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in os.scandir(folder)))
    except (OSError, ValueError):
        return ()


def warnings(facts: Facts) -> Iterator[str]:
    """Yield one line for each variable or folder that shadows the environment; pure."""
    environ = facts.environ
    for folder, names in facts.modules.items():
        modules = _modules(names, FRAMEWORKS | HOOKS)
        if modules:
            yield f"PYTHONPATH: {_at(folder)} holds {modules}, used before the environment's own"
    if environ.get("PYTHONHOME"):
        folder = _at(environ["PYTHONHOME"])
        yield f"PYTHONHOME={folder} is where Python's standard library is taken from"
    for name in ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES"):
        if environ.get(name):
            yield f"{name}={_at(environ[name])} is loaded into every program"
    for folder, names in facts.libraries.items():
        matches = sorted(name for name in names if _LIBRARY.match(name))
        if matches and not any(below(folder, drivers) for drivers in DRIVER_FOLDERS):
            more = f" and {len(matches) - 1} more" if len(matches) > 1 else ""
            library = f"{printable(matches[0], 80)}{more}"
            yield f"library path: {_at(folder)} holds {library}, used before the environment's own"


def _modules(entries: Sequence[str], names: frozenset[str]) -> str:
    """Return the modules of these names in a folder: packages, files, extension modules."""
    modules = {
        entry.partition(".")[0] for entry in entries if entry.endswith((".py", ".pyc", ".so"))
    }
    modules |= {entry for entry in entries if "." not in entry}
    return ", ".join(sorted(modules & names))


def _at(path: str) -> str:
    return printable(path, 200)
