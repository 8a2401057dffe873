"""`envbuilder check`: check a project's locks, for CI and pre-commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.commands.options import json_option, load_settings
from envbuilder.core import console
from envbuilder.core.errors import INVALID, EnvbuilderError, Hint, InvalidError, SignatureError
from envbuilder.core.settings import Settings
from envbuilder.locks import compare, entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import library, lock as profile_lock
from envbuilder.profiles.profile import load, search_path
from envbuilder.project import variants

_USABLE = frozenset({"locked", "claimed"})
_REFUSED = frozenset({"unlocked", "impossible", "unsigned"})
"""States of a lock that running `envbuilder lock` again would not change."""


class State(Struct, frozen=True, kw_only=True):
    """The state of the lock for one environment on one profile, and the lock's problems."""

    environment: str
    profile: str
    state: str
    """One of `locked`, `claimed`, `unlocked`, `missing`, `damaged`, `unsigned` and
    `impossible`. A lock is `unsigned` if the configuration requires a signature that it lacks."""
    problems: tuple[str, ...]
    hint: str = ""
    """Advice on how to solve the problem, if running `envbuilder lock` is not enough."""
    failed: bool
    """Whether this lock makes the check fail. The lock of a profile that the project does not list
    may be `impossible` or `unlocked`, unless all locks are unusable."""


@click.command("check")
@click.argument("names", nargs=-1, metavar="[PROFILE]…")
@json_option
def command(names: tuple[str, ...], as_json: bool) -> int:
    """Check that every lock of the project is fresh, and has the hardware's own framework.

    With PROFILE, check that these profiles' own locks are fresh.

    Needs no network, and builds nothing. Exit code 2 if a lock is missing, stale, damaged or
    impossible, if the framework was replaced by another build, or if a package is missing, required
    by nothing, or comes from a source that the profile does not name.

    \b
    Examples:
      envbuilder check
      envbuilder check --json
      envbuilder check cpu mine
    """
    settings = load_settings()
    if names:
        return _check_profiles(names, settings, as_json=as_json)
    every = tuple(entries.of_project(settings))
    locks = variants.library(settings)
    states = [_state(entry, locks) for entry in every]
    if entries.failed((False, state.state in _USABLE) for state in states):
        states = [replace(state, failed=True) for state in states]
    failed = any(state.failed for state in states)
    extra = tuple(entries.unused_locks(settings))
    notes = tuple(_notes(every, settings))
    if as_json:
        files = [{"file": unused.path.name, "why": unused.why} for unused in extra]
        report = {"locks": states, "needless": files, "notes": notes}
        console.data({"schema": 1, "failed": failed, **report})
        return INVALID if failed else 0
    usable = [e for e, state in zip(every, states, strict=True) if state.state in _USABLE]
    reasons = entries.reasons(usable)
    for entry, state in zip(every, states, strict=True):
        _print(state, entry, reasons.get(entry.label, ""))
    for unused in extra:
        removal = (
            "`envbuilder lock` removes the lock"
            if unused.excluded
            else "remove the lock if no other machine has one"
        )
        console.result(f"– {unused.path.parent.name}/{unused.path.name} is not needed")
        console.result(f"    {unused.why}: {removal}")
    for note in notes:
        console.result(f"note: {note}")
    if any(state.failed and state.state not in _REFUSED for state in states):
        console.hints([Hint("Run", ("lock",))])
    return INVALID if failed else 0


def _check_profiles(names: Sequence[str], settings: Settings, *, as_json: bool) -> int:
    """Print whether the lock of each named profile is fresh, and return the exit code.

    Raise `InvalidError` if the current folder is in a project.
    """
    if settings.definition is not None:
        raise InvalidError(
            "inside a project, 'check' takes no profiles, because it checks all locks together",
            Hint("Run", ("check",)),
        )
    locks = variants.library(settings)
    states: list[dict[str, Any]] = []
    for name in names:
        states += _profile_states(name, locks)
    if as_json:
        console.data({"schema": 1, "locks": states})
    else:
        for state in states:
            label = state["profile"] + (" (conda)" if "backend" in state else "")
            stale = "; ".join(state["stale"]) or "fresh"
            console.result(f"{label:<19} {state['state']:<9} {stale}")
    return INVALID if any(state["stale"] for state in states) else 0


def _profile_states(name: str, locks: library.Library) -> Iterator[dict[str, Any]]:
    """Yield the state of a profile's lock and, if the profile has one, of its conda lock."""
    folders = locks.folders
    profile = load(name, folders)
    path = profile_lock.path_for(name, folders)
    if path is None:
        yield {"profile": name, "state": "missing", "stale": ["there is no lock"]}
    else:
        lock = profile_lock.load(path)
        stale = [*compare.check(profile, lock)]
        if not stale and (refusal := _refusal(path, locks)):
            stale = [refusal.message]
        yield {"profile": name, "state": lock.state, "stale": stale, "reason": lock.why}
    of_conda = conda_lock.find(name, library.Library(folders))  # shipped profiles have none
    if of_conda is not None:
        fresh = of_conda.inputs == conda_lock.inputs_digest(profile)
        stale = [] if fresh else ["the profile changed after the lock was made"]
        yield {"profile": name, "backend": "conda", "state": "locked", "stale": stale, "reason": ""}


def _print(state: State, entry: entries.Entry, reason: str) -> None:
    label = ".".join(filter(None, (state.environment, state.profile)))
    mark = "–" if state.problems else "✓"
    if state.failed:
        mark = "✗"
    release = ", ".join(entry.release)
    console.result(f"{mark} {label:<24} {state.state:<10} {release}".rstrip())
    for problem in filter(None, (*state.problems, state.hint, reason)):
        for line in problem.splitlines():
            console.result(f"    {line}")


def _notes(every: Iterable[entries.Entry], settings: Settings) -> Iterator[str]:
    """Yield a note for each profile whose shipped lock is overridden by one of the user's locks."""
    folders = search_path(settings.project, settings.config_dir)
    origins = {entry.name: entry.origin for entry in every if entry.origin}
    for profile, lock in origins.values():
        hidden = library.hidden_lock(profile, folders)
        if hidden is not None and hidden.lock != lock:
            yield hidden.sentence


def _state(entry: entries.Entry, locks: library.Library) -> State:
    state = partial(State, environment=entry.environment, profile=entry.name)
    if isinstance(entry.profile, InvalidError):
        reasons = (entry.profile.message,)
        return state(
            state="impossible", problems=reasons, hint=entry.profile.hint, failed=entry.required
        )
    if entry.earlier is None:
        return state(state="missing", problems=("not locked yet",), failed=True)
    try:
        lock = profile_lock.load(entry.path)
    except InvalidError as error:
        return state(state="damaged", problems=(error.message,), failed=True)
    problems = (
        *filter(None, [compare.decided_again(lock, entry.decided)]),
        *compare.check(entry.profile, lock),
        *compare.foreign_files(entry.profile, lock, compare.own_lock(entry.origin)),
        *entries.conda_problems(entry.profile, entry.path),
    )
    if problems:
        problems += (*compare.edited(lock, entry.decided),)
    if lock.obstacle and not problems:
        return state(state="unlocked", problems=(lock.obstacle.printed(),), failed=entry.required)
    if not problems and (refusal := _refusal(entry.path, locks)):
        state = partial(state, state="unsigned", problems=(refusal.message,), hint=refusal.hint)
        return state(failed=True)
    failed = bool(problems)
    problems += tuple(f"not for {target}: {why.printed()}" for target, why in lock.missing.items())
    return state(state=lock.state, problems=problems, failed=failed)


def _refusal(path: Path, locks: library.Library) -> EnvbuilderError | None:
    """Return the error if the lock at `path` lacks a required signature, otherwise None."""
    try:
        locks.require_signature(path, profile_lock.content(path, ("lock",)))
    except (InvalidError, SignatureError) as error:
        return error
    return None
