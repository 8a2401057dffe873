"""Run the confirmed repairs: the only part of the doctor that changes the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.doctor.problem import Repair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.doctor.problem import Problem

_SECONDS = 60.0


class Done(Struct, frozen=True, kw_only=True):
    """A repair that was run."""

    repair: Repair
    error: str = ""
    """Why it failed; empty if it succeeded."""


def offered(problems: Sequence[Problem], *, may: bool) -> tuple[Repair, ...]:
    """Return the repairs of some problems, each once; none unless `may`."""
    repairs = (p.repair for p in problems if p.repair is not None)
    return tuple(dict.fromkeys(repairs)) if may else ()


def as_run(argv: Sequence[str], *, root: bool) -> tuple[str, ...]:
    """Return the command as this user must run it: as it is for root, else with sudo."""
    # -n: never prompt for a password, since the run may be unattended.
    return tuple(argv) if root else ("sudo", "-n", *argv)


def apply(repair: Repair, *, root: bool) -> str:
    """Run a repair's commands until one fails; return why it failed, or an empty string."""
    for argv in repair.commands:
        command = as_run(argv, root=root)
        try:
            done = process.run(command, timeout=_SECONDS)
        except (ToolError, OSError) as error:
            return str(error)
        if done.timed_out:
            return f"{process.quoted(command)} did not end within {_SECONDS:g} seconds"
        if done.returncode != 0:
            return done.last_words or f"exit status {done.returncode}"
    return ""
