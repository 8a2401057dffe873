"""`envbuilder check`: check a project's locks, for CI and pre-commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct

from envbuilder.commands.options import json_option
from envbuilder.core import console
from envbuilder.core.errors import INVALID, InvalidError
from envbuilder.packages import configuration
from envbuilder.profiles import lock as profile_lock

if TYPE_CHECKING:
    from envbuilder.locks.projects import Entry


class State(Struct, frozen=True, kw_only=True):
    """An environment on one profile, and what is wrong with its lock."""

    environment: str
    profile: str
    state: str
    """`locked`, `claimed`, `unlocked`, `missing`, `damaged`, or `impossible`."""
    problems: tuple[str, ...]
    failed: bool
    """Whether that fails the check; a profile that the project does not list may be impossible."""


@click.command("check", short_help="Check a project's locks; for CI and pre-commit.")
@json_option
def command(as_json: bool) -> int:
    """Check that every lock of the project is fresh, and has its hardware's own build of PyTorch.

    Needs no network, and builds nothing. Exit code 2 if a lock is missing, stale or damaged, or if
    PyTorch was replaced by another build.

    \b
    Examples:
      envbuilder check
      envbuilder check --json
    """
    from envbuilder.locks import projects

    states = [_state(entry) for entry in projects.entries(configuration.load())]
    failed = any(state.failed for state in states)
    if as_json:
        console.data({"schema": 1, "failed": failed, "locks": states})
    else:
        for state in states:
            label = f"{state.environment}.{state.profile}"
            mark = "✗" if state.failed else "✓" if not state.problems else "–"
            console.result(f"{mark} {label:<24} {state.state}")
            for problem in state.problems:
                console.result(f"    {problem}")
        if failed:
            console.result("Run: envbuilder lock")
    return INVALID if failed else 0


def _state(entry: Entry) -> State:
    from envbuilder.locks import conda, own_build, resolve

    def state(name: str, problems: tuple[str, ...], *, failed: bool) -> State:
        return State(
            environment=entry.environment,
            profile=entry.origin.name,
            state=name,
            problems=problems,
            failed=failed,
        )

    if entry.variant is None:
        assert entry.problem is not None, "either it or a variant"
        return state("impossible", (entry.problem.message,), failed=entry.required)
    if not entry.path.is_file():
        return state("missing", ("it is not locked",), failed=True)
    try:
        lock = profile_lock.load(entry.path)
    except InvalidError as error:
        return state("damaged", (error.message,), failed=True)
    stale = resolve.check(entry.variant, lock)
    foreign = tuple(own_build.objections(entry.variant, lock, entry.origin_lock))
    problems = (*stale, *foreign, *conda.problems(entry.variant, entry.path))
    if lock.state == "unlocked" and not problems:
        return state("unlocked", (lock.reason,), failed=entry.required)
    return state(lock.state, problems, failed=bool(problems))
