"""Resolve the locks of a command.

If packages need another Python version or another release of the framework, the locks are resolved
again with that version or release.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from envbuilder.core import console, process, types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Reason
from envbuilder.project.lines import Line
from envbuilder.project.variants import ReleaseOptions

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.locks import entries
    from envbuilder.locks.blockers import Diagnosis
    from envbuilder.locks.chooser import Way

    Listed = Callable[[ReleaseOptions], Iterable[entries.Entry]]

_AT_ONCE = 4
"""Maximum number of locks to resolve in parallel, which saves time because uv mostly waits for the
index."""
_PATIENCE = 5.0
"""Time in seconds that the other threads have to remove their files after one thread has failed and
the uv processes of the others have been killed."""


class Outcome(NamedTuple):
    """The result of resolving one entry, before any file is written."""

    entry: entries.Entry
    previous: profile_lock.Lock | None
    lock: profile_lock.Lock | None
    """The new lock, or None if the profile cannot be combined with the project."""
    unread: str = ""
    """The reason why the existing lock could not be read; empty if it could be read."""

    @property
    def is_kept(self) -> bool:
        """Whether the existing lock is kept because no usable lock can be made now."""
        if self.lock is None or self.lock.state != "unlocked":
            return False
        return bool(self.unread) or (
            self.previous is not None and self.previous.state != "unlocked"
        )

    @property
    def obstacle(self) -> Reason | None:
        """The reason why there is no usable lock, or None if there is a usable lock.

        The reason does not include the target to which it applies.
        """
        if isinstance(self.entry.profile, InvalidError):
            return Reason(text=self.entry.profile.message)
        if self.lock is None or self.lock.obstacle is None:
            return None
        return replace(self.lock.obstacle, target="")

    @property
    def problem(self) -> str:
        """The text of the obstacle, or an empty string if there is no obstacle."""
        return self.obstacle.printed() if self.obstacle else ""

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Advice if the profile cannot be combined with the project, otherwise empty."""
        return self.entry.profile.hints if isinstance(self.entry.profile, InvalidError) else ()


def resolve_all(
    settings: Settings,
    list_entries: Listed,
    *,
    upgrade: bool = False,
    packages: Sequence[str] = (),
    report: Callable[[str], object] = console.result,
    diagnosis: Diagnosis | None = None,
) -> tuple[Outcome, ...]:
    """Resolve all entries and return the outcomes, without writing any files.

    `list_entries` returns the entries for the releases and Python versions that are passed to it.
    If packages have wheels only for another Python version, or need another release of the
    framework, choose that version or release, report the choice, and resolve the affected entries
    again. `diagnosis` contains what the command has already learned from indexes.
    """
    from envbuilder.locks import target_wheels
    from envbuilder.locks.blockers import Diagnosis

    keep: Literal["usable", "none"] = "usable"
    if upgrade:
        keep = "none"
    upgraded = frozenset(map(types.canonical, packages))
    with (
        nullcontext(diagnosis) if diagnosis else Diagnosis(settings) as learned,
        # uv reports its indexes while the entries are read.
        process.beside(lambda: learned.memory),
    ):
        choosing = ReleaseOptions(target_wheels.Hashes(settings, learned.read), keep, upgraded)
        resolve = partial(
            resolved,
            settings=settings,
            diagnosis=learned,
            upgrade=upgrade,
            packages=packages,
        )
        outcomes = resolve([*list_entries(choosing)])
        for environment, way in _ways(outcomes, settings, learned):
            other = choosing._replace(
                pythons={environment: (Line(f"=={way.python}.*", ""),)},
                required={environment: way.release} if way.release else {},
            )
            later = _moved(outcomes, list_entries(other), resolve)
            if sum(bool(o.obstacle) for o in later) < sum(bool(o.obstacle) for o in outcomes):
                for line in _reasons(way):
                    report(line)
                return later
        return outcomes


_MOST_WAYS = 3
"""Maximum number of alternative choices of release and Python to try."""


def _ways(
    outcomes: Sequence[Outcome],
    settings: Settings,
    diagnosis: Diagnosis,
) -> Iterator[tuple[str, Way]]:
    """Yield alternative choices for the first environment that cannot be locked.

    Each item consists of the environment's name, and of the Python version and framework release to
    use instead. The best choice comes first.
    """
    from envbuilder.locks.chooser import Chooser

    for outcome in outcomes:
        entry = outcome.entry
        profile = outcome.entry.profile
        obstacle = outcome.obstacle
        if not obstacle or isinstance(profile, InvalidError) or entry.decision is None:
            continue
        if not (obstacle.items or obstacle.proof):
            continue  # a wheel whose hash nobody states, say: other versions do not help
        if entry.decision.why:
            continue  # an exception already is no reason to move all others
        chooser = Chooser(profile, settings, diagnosis, report=console.progress().note)
        ways = chooser.alternatives(entry.decision.python, entry.limits, entry.pythons)
        yield from ((entry.environment, way) for way in itertools.islice(ways, _MOST_WAYS))
        return


def _reasons(way: Way) -> Iterator[str]:
    """Yield sentences that explain why another Python version or framework release was chosen."""
    if way.wheels:
        yield f"Python {way.python} is used, because it has wheels of {', '.join(way.wheels)}"
    if way.release:
        yield f"{way.release.where} needs {way.release.text.replace('==', ' ')}"


def _moved(
    outcomes: Iterable[Outcome],
    chosen: Iterable[entries.Entry],
    resolve: Callable[[Sequence[entries.Entry]], tuple[Outcome, ...]],
) -> tuple[Outcome, ...]:
    """Return the outcomes for `chosen`, the entries after another version or release was chosen.

    Resolve only the entries that this choice affects. For the others, return the earlier outcomes.
    """
    earlier = {outcome.entry.label: outcome for outcome in outcomes}
    chosen = [*chosen]
    moved = [
        entry
        for entry in chosen
        if entry.label not in earlier or entry.decision != earlier[entry.label].entry.decision
    ]
    later = earlier | {outcome.entry.label: outcome for outcome in resolve(moved)}
    return tuple(later[entry.label] for entry in chosen)


def resolved(
    chosen: Sequence[entries.Entry],
    settings: Settings,
    diagnosis: Diagnosis,
    *,
    upgrade: bool,
    packages: Sequence[str] = (),
) -> tuple[Outcome, ...]:
    """Resolve the locks in parallel, and return the outcomes.

    If a lock cannot be made, continue with the others. `diagnosis` is used to find out why a target
    cannot be locked.
    """
    import sysconfig
    from concurrent import futures

    from envbuilder.locks import entries, resolve
    from envbuilder.packages.debian.suite import Suites

    # Of two threads that are the first to ask for one, CPython 3.11 gives None to the second.
    sysconfig.get_config_vars()
    progress = console.progress()
    suites = Suites(settings, progress.note)

    def make(entry: entries.Entry) -> Outcome:
        previous, unread = entries.read_earlier(entry.earlier, profile_lock.load)
        profile = entry.profile
        if isinstance(profile, InvalidError):
            return Outcome(entry, previous, None, unread)
        lock = resolve.resolve(
            profile,
            settings,
            previous,
            upgrade,
            progress.note,
            origin=entry.origin,
            upgrade_packages=packages,
            read=diagnosis.read,
            memory=diagnosis.memory,
            suites=suites,
            explain=partial(diagnosis.blockers, places=entry.places),
            find_outdated=partial(diagnosis.outdated, places=entry.places),
            elsewhere=partial(diagnosis.elsewhere, as_of=profile.resolution.as_of),
        )
        return Outcome(entry, previous, replace(lock, decision=entry.decided), unread)

    if not chosen:
        return ()
    task_name = f"resolve {chosen[0].label if len(chosen) == 1 else f'{len(chosen)} locks'}"
    with (
        progress.task(task_name, len(chosen)) as task,
        process.pool(_AT_ONCE, lambda: process.kill(process.running()), _PATIENCE) as pool,
    ):
        jobs = [pool.submit(make, entry) for entry in chosen]
        for job in futures.as_completed(jobs):
            job.result()
            task.advance(1)
    return tuple(job.result() for job in jobs)
