"""Make conda locks, and print what came of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.commands import locking
from envbuilder.core import console
from envbuilder.core.errors import INVALID, InvalidError
from envbuilder.locks import changes, conda, entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.python.indexes import canonical
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import search_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.locks.conda import Entry
    from envbuilder.packages.conda.lock import Lock


def requested(
    name: str | None, settings: Settings, output_dir: Path | None, *, upgrade: bool
) -> int:
    """Solve the conda locks of profiles, in a project of its environments; return the exit code."""
    if settings.definition is not None:
        chosen = conda.of_project(settings, name, output_dir, requested=True)
    else:
        library = Library(search_path(settings.project, settings.config_dir))
        folder = entries.place("any", settings, output_dir).parent
        chosen = conda.of_profiles(library, name, folder)
    return _settle(chosen, settings, upgrade=upgrade, again=True)


def needed(
    name: str | None,
    settings: Settings,
    output_dir: Path | None,
    *,
    upgrade: bool,
    packages: Sequence[str],
) -> int:
    """Solve what a project's environments need from conda channels; return the exit code."""
    if settings.definition is None:
        return 0
    chosen = conda.of_project(settings, name, output_dir, requested=False)
    return _settle(chosen, settings, upgrade=upgrade, packages=packages)


def not_locked(packages: Sequence[str], name: str | None, settings: Settings) -> tuple[str, ...]:
    """Return those of some packages that no conda lock of a project holds."""
    if not packages or settings.definition is None:
        return tuple(packages)
    chosen = conda.of_project(settings, name, None, requested=False)
    locked = {each for entry in chosen for each in conda.names(entry.earlier)}
    return tuple(each for each in packages if canonical(each) not in locked)


def _settle(
    chosen: Iterable[Entry],
    settings: Settings,
    *,
    upgrade: bool,
    packages: Sequence[str] = (),
    again: bool = False,
) -> int:
    """Solve and write locks one by one; a profile that nobody requires by name may fail."""
    from envbuilder.packages.conda import solve

    progress = console.progress()
    worst, total = 0, 0
    failures: dict[tuple[str, str], list[str]] = {}
    with solve.Channels() as channels:
        for entry in chosen:
            total += 1
            try:
                with progress.task(f"solve {entry.label}"):
                    before, lock = conda.solved(
                        *(entry, settings, channels, progress.note),
                        upgrade=upgrade, packages=packages, again=again,
                    )  # fmt: skip
            except InvalidError as error:
                if entry.origin is None:
                    raise
                reason = error.message.removeprefix(f"{entry.profile.name}: ")
                failures.setdefault((reason, error.hint), []).append(entry.label)
                worst = INVALID if entry.required else worst
                continue
            _write(entry, before, lock)
    for (reason, _), labels in failures.items():
        console.result(f"{', '.join(labels)}: conda packages cannot be locked: {reason}")
    for hint in dict.fromkeys(hint for _, hint in failures if hint):
        console.result(hint)
    failed = sum(map(len, failures.values()))
    return INVALID if failed and failed == total else worst


def _write(entry: Entry, before: Lock | None, lock: Lock) -> None:
    """Write a lock if it changed, and print what it holds."""
    text = conda_lock.dump(lock)
    same = entry.earlier == entry.path and entry.path.read_text(encoding="utf-8") == text
    if not same:
        locking.write(entry.path, text)
    for line in _lines(entry, before, lock, same=same):
        console.result(line)


def _lines(entry: Entry, before: Lock | None, lock: Lock, *, same: bool) -> Iterator[str]:
    """Yield what a lock holds now, what moved in it, and what it has not."""
    count = sum(len(target.packages) for target in lock.targets)
    state = "locked, unchanged" if same else "locked"
    counts = f"{len(lock.targets)} targets, {count} conda packages"
    yield f"{entry.label}: {state}, {counts} → {entry.path}"
    after = conda.as_files(entry.profile, lock)
    assert after is not None, "there is a lock"
    for line in changes.lines(conda.as_files(entry.profile, before), after):
        yield f"  {line}"
    for target, why in lock.missing.items():
        yield f"  not for {target}: {why}"
