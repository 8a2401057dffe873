"""Importing a framework: not where that may never end, and not without a limit.

ROCm builds of torch 2.13 hang while they are imported on a machine without ``/dev/kfd``
(pytorch#189110). So the device nodes are examined before, by the standard library alone.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import stat
from pathlib import Path
from typing import Any

from ..report import CheckError
from .accelerators import ACCELERATORS, Accelerator

SECONDS = 600
"""Limit of an import; from a cold disk, or over a network, that of a large build takes a minute."""

PHASE = "import"
"""The phase of a run in which that happens; if it was the last one, that is what hung."""

HUNG = "Timeout ("
"""What the watchdog writes to stderr before it ends the process (``faulthandler``)."""

_STDERR = 2


def torch_for(accelerator: str) -> Any:
    """Import torch, where that can end."""
    require_nodes(accelerator)
    return limited("torch")


def limited(name: str) -> Any:
    """Import a module, and end this process if that takes longer than the limit.

    A thread would not do: what hangs may hold the interpreter's lock.
    """
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=_STDERR)
    try:
        return importlib.import_module(name)
    finally:
        faulthandler.cancel_dump_traceback_later()


def require_nodes(accelerator: str) -> None:
    """Raise CheckError if a device node is missing that the accelerator or this torch needs."""
    missing = obstacle(accelerator)
    if missing:
        raise CheckError(missing)


def obstacle(accelerator: str) -> str:
    """Return the sentence of that error; empty if nothing is missing."""
    for row in ACCELERATORS.values():
        if row.nodes and (row.name == accelerator or _installed(row)):
            problem = next(filter(None, map(_problem, map(Path, row.nodes))), "")
            if problem:
                return (
                    f"{problem}; torch is not imported, since a build for {row.name} may then hang"
                    f" for ever. {row.remedy}"
                )
    return ""


def _installed(row: Accelerator) -> bool:
    """Return whether the torch that would be imported is a build for this accelerator."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a broken installation, or a module without a spec
        return False
    origin = spec.origin if spec else None
    return origin is not None and (Path(origin).parent / row.part).exists()


def _problem(node: Path) -> str:
    try:
        status = node.stat()
    except OSError as error:
        return f"{node} cannot be used ({error.strerror or 'not found'})"
    if not stat.S_ISCHR(status.st_mode):
        return f"{node} is no device"
    if not os.access(node, os.R_OK | os.W_OK):
        return f"{node} may not be opened by this user; its group is {status.st_gid}"
    return ""
