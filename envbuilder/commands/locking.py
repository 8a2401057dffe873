"""Make the locks of profiles, and of a project's environments on each of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from envbuilder.core import console
from envbuilder.core.errors import INVALID, InvalidError
from envbuilder.core.files import save
from envbuilder.core.text import shown
from envbuilder.profiles import lock as profile_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.locks.entries import Entry
    from envbuilder.packages.python.uv import Uv
    from envbuilder.profiles.lock import Lock


_TARGET = re.compile(r"[a-z0-9/]+ with Python [0-9.]+: ")
"""What begins the reason of a lock if one target decided it."""

_AT_ONCE = 2
"""Locks that are resolved side by side. More do not help: uv keeps several cores busy itself."""
_NAME = re.compile(r"[\w.-]+")
_MOST_PLACES = 4
_INSTEAD = (
    "it is used instead of the lock that came with envbuilder; to return to that one,"
    " remove the file"
)


class Outcome(NamedTuple):
    """What came of an entry; nothing is written yet."""

    entry: Entry
    previous: Lock | None
    lock: Lock | None
    """None if the profile cannot be combined with the project."""
    notes: tuple[str, ...] = ()
    """A line for each package that is older than a user may expect."""

    @property
    def obstacle(self) -> str:
        """Why there is no lock to build from; empty if there is one."""
        if isinstance(self.entry.profile, InvalidError):
            return self.entry.profile.message
        reason = self.lock.reason if self.lock and self.lock.state == "unlocked" else ""
        return _TARGET.sub("", reason)

    @property
    def hint(self) -> str:
        """What to do about a profile that cannot be combined with the project."""
        return self.entry.profile.hint if isinstance(self.entry.profile, InvalidError) else ""


def require_locked(names: Iterable[str], entries: Iterable[Entry]) -> None:
    """Raise `InvalidError` for a package that no lock of some entries holds."""
    locks = (profile_lock.previous(e.earlier) for e in entries if names and e.earlier)
    available = {file.name for lock in locks for file in lock.files}
    for name in names:
        from difflib import get_close_matches

        from packaging.utils import canonicalize_name

        if canonicalize_name(name) not in available:
            close = get_close_matches(name, available, n=1)
            raise InvalidError(
                f"--upgrade-package: no lock holds {shown(name)}",
                f"Did you mean '{close[0]}'?" if close else "Add it: envbuilder add NAME",
            )


def resolved(
    entries: Iterable[Entry], settings: Settings, *, upgrade: bool, packages: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """Resolve locks, a few at a time; one that cannot be made does not stop the others."""
    import sysconfig
    from concurrent import futures
    from functools import partial

    from envbuilder.core import parallel, process
    from envbuilder.packages.python import upstream

    # Of two threads that are the first to ask for one, CPython 3.11 gives None to the second.
    sysconfig.get_config_vars()
    entries = tuple(entries)
    progress = console.progress()
    make = partial(_resolved, settings, upgrade, packages, upstream.Pages().read, progress.note)
    with (
        progress.task(_task(entries), len(entries)) as task,
        parallel.pool(_AT_ONCE, lambda: process.kill(process.running())) as pool,
    ):
        jobs = [pool.submit(make, entry) for entry in entries]
        for job in futures.as_completed(jobs):
            job.result()
            task.advance(1)
    return tuple(job.result() for job in jobs)


def _task(entries: Sequence[Entry]) -> str:
    return f"resolve {entries[0].label if len(entries) == 1 else f'{len(entries)} locks'}"


def _resolved(
    settings: Settings,
    upgrade: bool,
    packages: Sequence[str],
    read: Callable[[str], bytes],
    note: Callable[[str], None],
    entry: Entry,
) -> Outcome:
    previous = profile_lock.previous(entry.earlier) if entry.earlier else None
    profile = entry.profile
    if isinstance(profile, InvalidError):
        return Outcome(entry, previous, None)
    from envbuilder.locks import newer, resolve

    notes: list[str] = []

    def inspect(lock: Lock, uv: Uv) -> None:
        if upgrade or packages:
            notes.extend(newer.unmoved(profile, lock, uv, entry.places, packages))
        else:
            notes.extend(newer.unexpected(profile, lock, uv, previous))

    lock = resolve.resolve(
        *(profile, settings, previous, upgrade, note),
        origin=entry.origin,
        upgrade_packages=packages,
        inspect=inspect,
        read=read,
    )
    return Outcome(entry, previous, lock, tuple(notes))


def settle(outcomes: Iterable[Outcome]) -> int:
    """Write the locks that changed, and print what came of each; return the exit code.

    A profile that nobody requires by name may fail, but not all of them.
    """
    worst, usable = 0, False
    failures: dict[str, list[str]] = {}
    hints: list[str] = []
    places: dict[str, list[str]] = {}
    details: dict[str, list[str]] = {}
    for outcome in outcomes:
        entry, previous, lock, _ = outcome
        usable = usable or not outcome.obstacle
        if lock is None:
            failures.setdefault(outcome.obstacle, []).append(entry.label)
            hints.append(outcome.hint)
            worst = INVALID if entry.required else worst
            continue
        if lock.state == "unlocked" and previous is not None and previous.state != "unlocked":
            stays = f"the lock in {entry.earlier} is kept"
            console.result(f"{entry.label}: cannot be locked now; {stays}: {outcome.obstacle}")
            for place in _places(entry, outcome.obstacle):
                console.result(f"  {place}")
            worst = INVALID
            continue
        text = profile_lock.dump(lock)
        present = _present(entry, text)
        if present is None:
            write(entry.path, text)
        if lock.state == "unlocked" and entry.environment:
            failures.setdefault(outcome.obstacle, []).append(entry.label)
            places[outcome.obstacle] = _places(entry, outcome.obstacle)
        else:
            _report(entry, lock, present)
            hides = [_INSTEAD] if entry.shipped and entry.shipped != present else []
            details[entry.label] = [*_details(outcome, lock), *hides]
        worst = INVALID if lock.state == "unlocked" and entry.required else worst
    _print_grouped(details)
    for reason, labels in failures.items():
        console.result(f"{', '.join(labels)}: cannot be locked: {reason}")
        for place in places.get(reason, ()):
            console.result(f"  {place}")
    for hint in dict.fromkeys(hints):
        console.result(hint)
    return INVALID if failures and not usable else worst


def _places(entry: Entry, reason: str) -> list[str]:
    """Return where the user wrote the requirements whose packages a reason names."""
    return [
        f"{where}: {requirement}"
        for requirement, where in entry.places.items()
        if (name := _NAME.match(requirement))
        and re.search(rf"(?<![\w.-]){re.escape(name[0])}(?![\w.-])", reason)
    ][:_MOST_PLACES]


def _present(entry: Entry, text: str) -> Path | None:
    """Return the file that has this text already; a shipped lock is not copied."""
    path = entry.earlier
    if path is None or path not in {entry.path, entry.shipped}:
        return None
    return path if path.read_text(encoding="utf-8") == text else None


def _report(entry: Entry, lock: Lock, present: Path | None) -> None:
    """Print what a lock holds now, and where it is."""
    state = f"{lock.state}, unchanged" if present else lock.state
    counts = f"{len(lock.targets)} targets, {len(lock.files)} files"
    console.result(f"{entry.label}: {state}, {counts} → {present or entry.path}")
    if lock.state == "unlocked":
        console.result(f"  {lock.reason}")


def _details(outcome: Outcome, lock: Lock) -> list[str]:
    """Return what moved in a lock, what did not, which targets it lacks, and which hashes."""
    from envbuilder.locks import changes

    missing = [f"not for {target}: {why}" for target, why in lock.missing.items()]
    unread = [
        f"{name}: its server gives no part of it, so it was not compared with other wheels"
        for name in sorted({file.basename for file in lock.files if file.unread})
    ]
    moved = changes.lines(outcome.previous, lock)
    return [*moved, *outcome.notes, *missing, *unread, *changes.claims(lock)]


def _print_grouped(details: Mapping[str, Sequence[str]]) -> None:
    """Print each line once, with the locks that it holds for."""
    from envbuilder.locks import changes

    for heading, lines in changes.grouped(details).items():
        if heading:
            console.result(heading)
        for line in lines:
            console.result(f"  {line}")


def write(path: Path, text: str) -> None:
    """Write a lock. Raises `InvalidError`."""
    hint = "Name another folder with --output-dir."
    save(path, text.encode(), InvalidError, hint, "the lock")


def remove_needless(settings: Settings) -> None:
    """Remove the locks that the project's file rules out."""
    from envbuilder.locks.needless import needless

    for each in needless(settings):
        if each.excluded:
            try:
                each.path.unlink()
            except OSError as error:
                raise InvalidError(
                    f"{each.path}: cannot be removed: {error.strerror or error}"
                ) from error
            console.result(f"removed {each.path}: {each.why}")
