"""`envbuilder lock`: resolve profiles, and the environments of a project, to exact files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from envbuilder.commands import resolution
from envbuilder.commands.options import load_settings, profile_option
from envbuilder.core import console, types
from envbuilder.core.errors import (
    INVALID,
    EnvbuilderError,
    Hint,
    InvalidError,
    counted,
    shown,
    with_context,
)
from envbuilder.core.files import read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE, Settings
from envbuilder.host import probe
from envbuilder.locks import compare, entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import (
    choice,
    frameworks,
    lock as profile_lock,
    profile as profiles,
    releases,
)
from envbuilder.profiles.library import Library, signature_of
from envbuilder.project import environment_changes, variants

if TYPE_CHECKING:
    from datetime import date, datetime

_NAME = re.compile(r"[\w.-]+")
_MOST_PLACES = 4
"""Maximum number of the project's requirements to show for a single reason."""
_ELSEWHERE = "Name another folder with --output-dir."
_MADE_ANEW = "{} (made again)"
_INSTEAD = "this lock replaces the shipped one, until you remove the file"


@click.command("lock")
@profile_option
@click.option(
    "--backend",
    type=click.Choice(["conda"]),
    help="Lock packages from this backend's channels instead of wheels.",
)
@click.option(
    "--upgrade", is_flag=True, help="Upgrade all packages to the newest versions that fit."
)
@click.option(
    "--upgrade-package",
    "packages",
    metavar="NAME",
    multiple=True,
    help="Upgrade only this package to the newest version that fits the others; may be repeated.",
)
@click.option(
    "--as-of",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Ignore releases after this day, which becomes as_of: in envbuilder.yaml.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the lock. Without it: next to envbuilder.yaml, or your configuration folder.",
)
def command(
    profile: str | None,
    backend: str | None,
    upgrade: bool,
    packages: tuple[str, ...],
    day: datetime | None,
    output_dir: Path | None,
) -> int:
    """Resolve a profile to exact files with sha256, for each of its platforms and Pythons.

    Without --profile, resolves every profile. Shipped locks are not changed: a lock that differs is
    written next to your envbuilder.yaml or into your configuration folder, which is searched first.
    Remove it to use the shipped one again.

    Versions are kept while they fit; --upgrade selects the newest that fit. An unreadable lock is
    replaced. In a project, locks of removed environments and profiles are deleted.

    \b
    Examples:
      envbuilder lock --profile cpu
      envbuilder lock --profile cuda --upgrade
      envbuilder lock --upgrade-package rich
      envbuilder lock --as-of 2023-03-01
      envbuilder lock --profile cuda --backend conda
    """
    settings = load_settings()
    if packages and (backend or upgrade):
        other = "--backend" if backend else "--upgrade, which upgrades all"
        raise click.UsageError(f"--upgrade-package cannot be combined with {other}")
    if day and backend:
        raise click.UsageError("--as-of cannot be combined with --backend")
    change = _dated(settings, day.date()) if day else None
    if change:
        settings = replace(settings, definition=change.definition)
    if backend:
        wanted = _conda_entries(profile, settings, output_dir, requested=True)
        return settle_conda(wanted, settings, upgrade=upgrade, again=True)
    list_entries = partial(entries.entries, settings, profile, output_dir)
    of_conda = _conda_entries(profile, settings, output_dir, requested=False)
    if packages:
        _require_locked(packages, [*list_entries(variants.ANY)], of_conda)
    outcomes = resolution.resolve_all(settings, list_entries, upgrade=upgrade, packages=packages)
    for note in dict.fromkeys(itertools.chain.from_iterable(o.entry.notes for o in outcomes)):
        console.result(f"note: {note}")
    if output_dir or all(outcome.obstacle for outcome in outcomes):
        change = None
    code = write_and_report(outcomes, settings, _ELSEWHERE, change)
    if settings.definition is not None:
        code = max(code, settle_conda(of_conda, settings, upgrade=upgrade, packages=packages))
    if profile is None and output_dir is None:
        _remove_unused(settings)
    _print_unread(settings, outcomes)
    return code


def _dated(settings: Settings, day: date) -> environment_changes.Change:
    """Return the change to the project file that sets `as_of` to `day`.

    Raise `InvalidError` if the current folder is not in a project.
    """
    if settings.project is None or settings.definition is None:
        raise InvalidError(
            "--as-of needs a project, but this folder is not in one", Hint("Write one", ("init",))
        )
    path = settings.project / PROJECT_FILE
    return environment_changes.dated(read_text(path), path, day)


def _print_unread(settings: Settings, outcomes: Iterable[resolution.Outcome]) -> None:
    """If the project lists no requirements, print which of its files may contain requirements."""
    definition = settings.definition
    requires = (
        not definition or definition.requirements_from or any(o.entry.places for o in outcomes)
    )
    if settings.project and not requires:
        from envbuilder.project import forms

        for line in forms.unread(settings.project):
            console.result(f"note: {PROJECT_FILE} lists no requirements, but {line}")


def _require_locked(
    names: Sequence[str], chosen: Iterable[entries.Entry], of_conda: Iterable[entries.CondaEntry]
) -> None:
    """Raise `InvalidError` if one of the named packages is not in any lock."""
    from difflib import get_close_matches

    available = set[str]()
    for entry in chosen:
        lock, _ = entries.read_earlier(entry.earlier, profile_lock.load)
        available.update(file.name for file in (lock.files if lock else ()))
    for conda_entry in of_conda:
        available |= entries.conda_names(conda_entry.earlier)
    if not available:
        raise InvalidError("--upgrade-package: nothing is locked yet", Hint("Lock it", ("lock",)))
    for name in names:
        if types.canonical(name) not in available:
            advice: str | Hint = Hint("Add it", ("add", name))
            if close := get_close_matches(name, available, n=1):
                advice = f"Did you mean '{close[0]}'?"
            elif frameworks.of_name(types.canonical(name)):
                advice = "The project is for another framework."
            raise InvalidError(f"--upgrade-package: no lock contains {shown(name)}", advice)


def write_and_report(
    outcomes: Sequence[resolution.Outcome],
    settings: Settings,
    hint: str,
    change: environment_changes.Change | None = None,
) -> int:
    """Write the locks that changed, print the result for each lock, and return the exit code.

    Profiles that are not required may fail, unless all of them fail. A lock may lack some
    platforms, but not this machine's platform. `change` is an edit of the project file that is
    written together with the locks. If a file cannot be written, write nothing and raise
    `InvalidError` with `hint`.
    """
    present = _save(outcomes, hint, change)
    detailed = of_this_machine((outcome.entry for outcome in outcomes), settings)

    def is_detailed(outcome: resolution.Outcome) -> bool:
        return console.VERBOSITY.verbose or outcome.entry.label in detailed

    ordered = sorted(outcomes, key=is_detailed, reverse=True)
    hidden = _print_locks(ordered, present, settings, is_detailed)
    hidden = _print_failures(filter(_is_failure, ordered), is_detailed) or hidden
    if hidden:
        console.hints([Hint("Details for other hardware", ("lock", "--verbose"))])
    usable = [outcome for outcome in outcomes if not outcome.obstacle]
    platform = probe.host().platform
    lacking = [o for o in outcomes if _lacks(o, platform)]
    serving = (outcome.lock for outcome in outcomes if outcome.entry.label in detailed)
    if any(profile_lock.first(lock, platform) for lock in serving):
        lacking = [o for o in lacking if o.entry.required and not o.obstacle]
    if lacking and usable:
        names = ", ".join(outcome.entry.label for outcome in lacking)
        console.result(f"{names} cannot be built on this machine, which is {platform}")
        return INVALID
    failed = entries.failed((o.entry.required, not o.obstacle) for o in outcomes)
    return INVALID if failed or any(outcome.is_kept for outcome in outcomes) else 0


def _print_locks(
    outcomes: Sequence[resolution.Outcome],
    present: Mapping[Path, Path | None],
    settings: Settings,
    is_detailed: Callable[[resolution.Outcome], bool],
) -> bool:
    """Print the result for each lock, and return whether details were omitted.

    If several locks have the same package changes, print the changes only once. For locks of other
    hardware, omit changes to packages that are specific to that hardware.
    """
    reasons = entries.reasons(outcome.entry for outcome in outcomes if not outcome.obstacle)
    locks = ((o.entry.environment, o.entry.label, o.lock) for o in outcomes if not o.obstacle)
    differing = dict(compare.differences(locks))
    shown = set[str]()
    hidden = False
    for outcome in itertools.filterfalse(_is_failure, outcomes):
        entry = outcome.entry
        lock = outcome.lock
        if outcome.is_kept or lock is None:
            _print_kept(outcome)
            continue
        changes = compare.changes(outcome.previous, lock)
        details = [*filter(None, _details(outcome, lock))]
        _report(outcome, lock, len(changes), present[entry.path], settings)
        _print_indented(filter(None, (reasons.get(entry.label), differing.get(entry.label))))
        if is_detailed(outcome):
            _print_indented(filter(None, (*changes, *details, lock.reason)))
        else:
            _print_indented(compare.moved(change for change in changes if change not in shown))
            hidden = hidden or bool(details) or not shown.issuperset(changes)
        shown.update(changes)
    return hidden


def _is_failure(outcome: resolution.Outcome) -> bool:
    """Return whether there is neither a new nor an existing lock from which to build."""
    lock = outcome.lock
    is_usable = lock is not None and not (lock.state == "unlocked" and outcome.entry.environment)
    return not (is_usable or outcome.is_kept)


def _print_failures(
    outcomes: Iterable[resolution.Outcome], is_detailed: Callable[[resolution.Outcome], bool]
) -> bool:
    """Print the reasons why locks cannot be made, and return whether details were omitted.

    Each reason is printed only once.
    """
    failures: dict[profile_lock.Reason | None, list[resolution.Outcome]] = {}
    hints: list[Hint] = []
    for outcome in outcomes:
        failures.setdefault(outcome.obstacle, []).append(outcome)
        hints += outcome.hints
    hidden = False
    for obstacle, same in failures.items():
        assert obstacle is not None, "there is no lock"
        labels = ", ".join(outcome.entry.label for outcome in same)
        if any(outcome.entry.required or is_detailed(outcome) for outcome in same):
            _print(f"{labels}: cannot be locked: {obstacle.printed(console.width())}")
            _print_indented(_places(same[-1]))
        else:
            _print(f"{labels}: cannot be locked: {obstacle.text}")
            hidden = True
    console.hints(dict.fromkeys(hints))
    return hidden


def of_this_machine(chosen: Iterable[entries.Entry], settings: Settings) -> frozenset[str]:
    """Return the labels of the locks for this machine's hardware.

    Return the labels of all locks if none is for this hardware.
    """
    labels: dict[str, set[str]] = {}
    for entry in chosen:
        labels.setdefault(entry.name, set()).add(entry.label)
    best = None
    with suppress(EnvbuilderError):  # none fits, or the one that would cannot be locked
        library = variants.library(settings)
        host = probe.host()
        best = choice.fitting(library, host)
        best = choice.choose(library, settings, host).profile.name
    return frozenset(labels.get(best or "") or itertools.chain.from_iterable(labels.values()))


def _save(
    outcomes: Iterable[resolution.Outcome], hint: str, change: environment_changes.Change | None
) -> dict[Path, Path | None]:
    """Write the locks that changed, together with the change to the project file.

    Return a mapping from the path of each changed lock to the file that already contained the same
    lock, or to None if there was no such file.
    """
    changing = [outcome for outcome in outcomes if outcome.lock and not outcome.is_kept]
    present = {outcome.entry.path: _present(outcome) for outcome in changing}
    written = {o.entry.path: o.lock for o in changing if o.lock and not present[o.entry.path]}
    entries.save(written, hint, environment_changes.changed_file(change) if change else {})
    if change:
        for line in change.lines:
            console.result(f"{PROJECT_FILE}: {line}")
    for outcome in changing:
        if outcome.unread:
            console.result(_MADE_ANEW.format(outcome.unread))
    return present


def _print_kept(outcome: resolution.Outcome) -> None:
    """Print why an existing lock is kept."""
    entry = outcome.entry
    stays = f"the lock in {entry.earlier} is kept"
    if outcome.unread:
        stays = f"{outcome.unread}, and the file is kept"
    _print(f"{entry.label}: cannot be locked now, so {stays}: {outcome.problem}")
    _print_indented(_places(outcome))


def _lacks(outcome: resolution.Outcome, platform: types.Platform | None) -> bool:
    """Return whether the lock has no target for `platform` although the profile supports it."""
    profile = outcome.entry.profile
    lock = outcome.lock
    if lock is None or isinstance(profile, InvalidError) or profile_lock.first(lock, platform):
        return False
    return platform in profile.platforms and bool(lock.missing or outcome.obstacle)


def _print_indented(lines: Iterable[str]) -> None:
    for line in lines:
        _print(f"  {line}")


def _print(text: str) -> None:
    for line in text.splitlines():
        console.result(line)


def _places(outcome: resolution.Outcome) -> list[str]:
    """Return the user's requirements for the packages that an obstacle mentions.

    Each requirement is preceded by its location. Return an empty list if the obstacle has items,
    because the items already contain the locations.
    """
    obstacle = outcome.obstacle
    if obstacle is None or obstacle.items:
        return []
    words = str(obstacle)
    return [
        f"{where}: {requirement}"
        for requirement, where in outcome.entry.places.items()
        if (name := _NAME.match(requirement))
        and re.search(rf"(?<![\w.-]){re.escape(name[0])}(?![\w.-])", words)
    ][:_MOST_PLACES]


def _present(outcome: resolution.Outcome) -> Path | None:
    """Return the file that already contains this lock, or None if there is no such file.

    The file may be the shipped lock, which does not need to be copied.
    """
    entry = outcome.entry
    path = entry.earlier
    if path is None or outcome.lock is None or path not in {entry.path, entry.shipped}:
        return None
    return path if _holds(path, outcome.lock) else None


def _holds(path: Path, lock: entries.AnyLock) -> bool:
    """Return whether a file contains exactly this lock."""
    try:
        return path.read_bytes() == entries.content(lock)
    except OSError:
        return False


def _report(
    outcome: resolution.Outcome,
    lock: profile_lock.Lock,
    changed: int,
    present: Path | None,
    settings: Settings,
) -> None:
    """Print a summary of a lock, followed by its obstacle if it has one.

    The summary includes the lock's path, unless the lock is in the project's folder for locks.
    """
    entry = outcome.entry
    profile = entry.profile
    assert not isinstance(profile, InvalidError), "it has a lock"
    words = [*_state(lock.state, present), *entry.release, counted(len(lock.files), "file")]
    words += compare.left_out(profile, entry.places)
    if changed:
        words.append(f"{changed} changed")
    words += [f"not for {target}" for target in lock.missing]
    console.result(f"{entry.label}: {', '.join(words)}{_place(present or entry.path, settings)}")
    _print_indented(compare.other_cuda(profile, entry.places))
    if lock.obstacle:
        _print(f"  {lock.obstacle.printed(console.width())}")
    if entry.shipped and entry.shipped != present:
        console.result(f"  {_INSTEAD}")


def _state(state: str, present: object) -> list[str]:
    return [state, "unchanged"] if present else [state]


def _place(path: Path, settings: Settings) -> str:
    """Return the path of a lock, formatted so that it can be appended to a line of output.

    Return "" if the lock is in the project's folder for locks.
    """
    if settings.project and path.parent == settings.project / LOCKS:
        return ""
    here = Path.cwd()
    return f" → {path.relative_to(here) if path.is_relative_to(here) else path}"


def _details(outcome: resolution.Outcome, lock: profile_lock.Lock) -> Iterator[str]:
    """Yield lines with the details of a lock. Some of the lines may be empty.

    The lines say why the release of the framework differs, why targets are missing, and which
    wheels were not compared with others.
    """
    profile = outcome.entry.profile
    assert not isinstance(profile, InvalidError), "it has a lock"
    yield releases.unknown(profile.framework, profile.release)
    yield compare.decided_again(outcome.previous, lock.decision)
    yield compare.later_day(lock.decision)
    yield compare.in_images(lock)
    for target, reason in lock.missing.items():
        yield f"not for {target}: {reason.printed(console.width() - 2)}"
    for name in sorted({file.basename for file in lock.files if file.unread}):
        yield (
            f"{name}: not compared with other wheels, because its server does not support partial"
            " downloads"
        )


def _remove_unused(settings: Settings) -> None:
    """Remove the locks that the project file rules out, together with their signatures.

    Raise `InvalidError` if a file cannot be removed.
    """
    for unused in entries.unused_locks(settings):
        if not unused.excluded:
            continue
        for path in filter(None, (signature_of(unused.path, ()), unused.path)):
            try:
                path.unlink()
            except OSError as error:
                what = f"{path}: cannot be removed: {error.strerror or error}"
                raise InvalidError(what) from error
            console.result(f"removed {path}: {unused.why}")


# --- conda packages


def _conda_entries(
    name: str | None, settings: Settings, output_dir: Path | None, *, requested: bool
) -> tuple[entries.CondaEntry, ...]:
    """Return the entries for the conda locks to make.

    If `requested` is true (`--backend conda`), return the entries for all conda locks that can be
    made. Otherwise, return only the entries for the conda locks that the project needs.
    """
    if settings.definition is not None:
        return tuple(entries.conda_of_project(settings, name, output_dir, requested=requested))
    if not requested:
        return ()
    library = Library(profiles.search_path(settings.project, settings.config_dir))
    folder = entries.place("any", settings, output_dir).parent
    return tuple(entries.conda_of_profiles(library, name, folder))


def settle_conda(
    chosen: Sequence[entries.CondaEntry],
    settings: Settings,
    *,
    upgrade: bool,
    packages: Sequence[str] = (),
    again: bool = False,
) -> int:
    """Solve and write conda locks one by one, print each result, and return the exit code.

    Profiles that are not required may fail, unless all of them fail.
    """
    from envbuilder.packages.conda import solve

    progress = console.progress()
    solved: list[tuple[bool, bool]] = []
    failures: dict[tuple[str, str], list[str]] = {}
    with solve.Channels() as channels:
        for entry in chosen:
            try:
                with progress.task(f"solve {entry.label}"):
                    before, lock = entries.conda_solved(
                        entry, settings, channels, progress.note,
                        upgrade=upgrade, packages=packages, again=again,
                    )  # fmt: skip
            except InvalidError as error:
                if entry.origin is None:
                    raise with_context(error, entry.profile.name) from None
                failures.setdefault((error.message, error.hint), []).append(entry.label)
                solved.append((entry.required, False))
                continue
            solved.append((entry.required, True))
            _, unread = entries.read_earlier(entry.earlier, conda_lock.load)
            same = entry.earlier == entry.path and _holds(entry.path, lock)
            if not same:
                entries.save({entry.path: lock}, _ELSEWHERE)
            if unread:
                console.result(_MADE_ANEW.format(unread))
            for line in _conda_lines(entry, before, lock, settings, same=same):
                _print(line)
    for (reason, _), labels in failures.items():
        _print(f"{', '.join(labels)}: conda packages cannot be locked: {reason}")
    for hint in dict.fromkeys(hint for _, hint in failures if hint):
        console.result(hint)
    return INVALID if entries.failed(solved) else 0


def _conda_lines(
    entry: entries.CondaEntry,
    before: conda_lock.Lock | None,
    lock: conda_lock.Lock,
    settings: Settings,
    *,
    same: bool,
) -> Iterator[str]:
    """Yield lines that give a conda lock's size, changed packages and missing targets."""
    count = sum(len(target.packages) for target in lock.targets)
    words = (*_state("locked", same), counted(count, "conda package"))
    yield f"{entry.label}: {', '.join(words)}{_place(entry.path, settings)}"
    after = entries.conda_as_files(entry.profile, lock)
    assert after is not None, "there is a lock"
    for line in compare.changes(entries.conda_as_files(entry.profile, before), after):
        yield f"  {line}"
    for target, reason in lock.missing.items():
        yield f"  not for {target}: {reason.printed(console.width() - 2)}"
