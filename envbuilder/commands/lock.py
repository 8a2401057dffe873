"""`envbuilder lock`: resolve a profile to exact files with hashes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from envbuilder.commands.options import json_option, profile_option
from envbuilder.core import console
from envbuilder.core.errors import INVALID, InvalidError
from envbuilder.core.files import save
from envbuilder.packages import configuration
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import load as load_profile
from envbuilder.profiles.profile import names as profile_names
from envbuilder.profiles.profile import search_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.core.settings import Settings
    from envbuilder.locks.availability.files import Summary
    from envbuilder.packages.conda.lock import Lock as CondaLock
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


_TARGET = re.compile(r"[a-z0-9/]+ with Python [0-9.]+: ")
"""What begins the reason of a lock if one target decided it."""


@click.command("lock", short_help="Resolve a profile to exact files with hashes.")
@profile_option
@click.option("--check", is_flag=True, help="Only check that the lock is fresh; needs no network.")
@click.option(
    "--online",
    is_flag=True,
    help="With --check: also check that every locked file can still be downloaded unchanged.",
)
@click.option(
    "--bundle",
    "bundles",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --online: a bundle to search for files that are gone.",
)
@click.option("--audit", is_flag=True, hidden=True)  # removed; hidden for one release
@click.option(
    "--backend",
    type=click.Choice(["conda"]),
    help="Lock the packages of this backend's channels instead of the wheels.",
)
@click.option("--upgrade", is_flag=True, help="Move to the newest versions the profile allows.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the lock. Without it: next to envbuilder.yaml, or your configuration folder.",
)
@json_option
def command(
    profile: str | None,
    check: bool,
    online: bool,
    bundles: tuple[Path, ...],
    audit: bool,
    backend: str | None,
    upgrade: bool,
    output_dir: Path | None,
    as_json: bool,
) -> int:
    """Resolve a profile to exact files with sha256, for each of its platforms and Pythons.

    Without --profile, resolves every profile. Locks that came with envbuilder are not changed: a
    new one is written next to your envbuilder.yaml or into your configuration folder, which is
    searched first.

    \b
    Examples:
      envbuilder lock --check
      envbuilder lock --check --online --profile cpu
      envbuilder lock --profile cpu
      envbuilder lock --profile cuda --upgrade
      envbuilder lock --profile cuda --backend conda
    """
    settings = configuration.load()
    folders = search_path(settings.project, settings.config_dir)
    names = (profile,) if profile else profile_names(folders)
    if audit:
        raise InvalidError(
            "`lock --audit` was removed: scanners read envbuilder's SBOM and know more",
            "Run: envbuilder sbom --profile NAME --output sbom.cdx.json, then grype"
            " sbom:sbom.cdx.json, trivy sbom sbom.cdx.json or osv-scanner scan -L sbom.cdx.json",
        )
    if (online and not check) or (bundles and not online):
        raise click.UsageError("--online belongs to --check, and --bundle to --online")
    if backend:
        if check:
            raise click.UsageError("--backend conda cannot be combined with --check")
        return _lock_conda(profile, folders, settings, output_dir, upgrade=upgrade)
    if check:
        availability = _ask(names, folders, settings, bundles) if online else None
        return _check(names, folders, availability, as_json)
    return _lock(_entries(profile, settings, output_dir), settings, upgrade=upgrade)


class _Entry(NamedTuple):
    """A lock to make."""

    label: str
    profile: Profile | InvalidError
    """The error if the profile cannot be combined with the project."""
    origin: tuple[Profile, Lock] | None
    """Of a project's variant, the profile itself and its lock."""
    earlier: Path | None
    """The lock so far."""
    path: Path
    required: bool
    """Whether it was requested by name."""


def _entries(name: str | None, settings: Settings, output_dir: Path | None) -> Iterator[_Entry]:
    """Yield the locks to make: of one profile or all; in a project, of each of its environments."""
    folders = search_path(settings.project, settings.config_dir)
    if settings.definition is None:
        for each in (name,) if name else profile_names(folders):
            earlier = profile_lock.path_for(each, folders)
            path = _place(each, settings, output_dir)
            yield _Entry(each, load_profile(each, folders), None, earlier, path, bool(name))
        return
    from envbuilder.locks import projects

    for entry in projects.entries(settings, name):
        yield _Entry(
            label=entry.label,
            profile=entry.variant or cast("InvalidError", entry.problem),
            origin=(entry.origin, entry.origin_lock) if entry.origin_lock else None,
            earlier=entry.path if entry.path.is_file() else None,
            path=output_dir / entry.path.name if output_dir else entry.path,
            required=entry.required,
        )


def _lock(entries: Iterable[_Entry], settings: Settings, *, upgrade: bool) -> int:
    """Make locks; one that cannot be made does not stop the others."""
    from envbuilder.locks import resolve
    from envbuilder.packages.python import wheel_conflicts
    from envbuilder.packages.store import Store

    progress = console.progress()
    worst = 0
    failures: dict[str, list[str]] = {}
    hints: list[str] = []
    for entry in entries:
        if isinstance(entry.profile, InvalidError):
            failures.setdefault(entry.profile.message, []).append(entry.label)
            hints.append(entry.profile.hint)
            worst = INVALID if entry.required else worst
            continue
        previous = profile_lock.previous(entry.earlier) if entry.earlier else None
        with progress.task(f"resolve {entry.label}"):
            lock = resolve.resolve(
                *(entry.profile, settings, previous, upgrade, progress.note), origin=entry.origin
            )
        for target in lock.targets:
            # Only wheels that are in the store already; the others are checked before use.
            wheel_conflicts.require_compatible(target.files, target.python, Store.of(settings))
        if lock.state == "unlocked" and previous is not None and previous.state != "unlocked":
            kept = f"the lock in {entry.earlier} is kept"
            console.result(f"{entry.label}: cannot be locked now; {kept}: {lock.reason}")
            worst = INVALID
            continue
        text = profile_lock.dump(lock)
        same = entry.earlier == entry.path and entry.path.read_text(encoding="utf-8") == text
        if not same:
            _write(entry.path, text)
        if lock.state == "unlocked" and entry.origin:
            failures.setdefault(_TARGET.sub("", lock.reason), []).append(entry.label)
        else:
            _report(entry, previous, lock, same=same)
        worst = INVALID if lock.state == "unlocked" and entry.required else worst
    for reason, labels in failures.items():
        console.result(f"{', '.join(labels)}: cannot be locked: {reason}")
    for hint in dict.fromkeys(hints):
        console.result(hint)
    return worst


def _report(entry: _Entry, previous: Lock | None, lock: Lock, *, same: bool) -> None:
    """Print what a lock holds now, and what it has not."""
    from envbuilder.locks import changes

    state = f"{lock.state}, unchanged" if same else lock.state
    counts = f"{len(lock.targets)} targets, {len(lock.files)} files"
    console.result(f"{entry.label}: {state}, {counts} → {entry.path}")
    for line in changes.lines(previous, lock):
        console.result(f"  {line}")
    for target, why in lock.missing.items():
        console.result(f"  not for {target}: {why}")
    if lock.reason:
        console.result(f"  {lock.reason}")


def _lock_conda(
    name: str | None,
    folders: tuple[Path, ...],
    settings: Settings,
    output_dir: Path | None,
    *,
    upgrade: bool,
) -> int:
    """Solve and lock a profile's conda packages; without a name, those of every profile."""
    from envbuilder.packages.conda import lock as conda_lock
    from envbuilder.packages.conda import solve

    progress = console.progress()
    names = (name,) if name else profile_names(folders)
    for profile in (load_profile(n, folders) for n in names):
        if name is None and "conda" not in profile.backends:
            continue
        previous = None if upgrade else conda_lock.find(profile.name, folders)
        with progress.task(f"solve {profile.name}"):
            lock = solve.lock(profile, settings, previous, progress.note)
        path = _place(profile.name, settings, output_dir).with_suffix(".conda.json")
        _write(path, conda_lock.dump(lock))
        count = sum(len(t.packages) for t in lock.targets)
        console.result(
            f"{profile.name}: locked, {len(lock.targets)} targets, {count} conda packages → {path}"
        )
    return 0


def _check(
    names: tuple[str, ...],
    folders: tuple[Path, ...],
    availability: Summary | None,
    as_json: bool,
) -> int:
    from envbuilder.locks import resolve

    states: list[dict[str, Any]] = []
    for name in names:
        profile = load_profile(name, folders)
        path = profile_lock.path_for(name, folders)
        if path is None:
            states.append({"profile": name, "state": "missing", "stale": ["there is no lock"]})
            continue
        lock = profile_lock.load(path)
        reasons = list(resolve.check(profile, lock))
        states.append(
            {"profile": name, "state": lock.state, "stale": reasons, "reason": lock.reason}
        )
    states += [_state_of_conda(*pair, folders) for pair in _conda_locks(names, folders)]
    if as_json:
        result: dict[str, Any] = {"schema": 1, "locks": states}
        if availability is not None:
            result["online"] = availability
        console.data(result)
    else:
        for state in states:
            stale = "; ".join(state["stale"])
            of = " (conda)" if state.get("backend") else ""
            console.result(f"{state['profile'] + of:<19} {state['state']:<9} {stale or 'fresh'}")
        if availability is not None:
            from envbuilder.locks.availability.files import table

            for line in table(availability):
                console.result(line)
    if any(s["stale"] for s in states):
        return INVALID
    return availability.exit_code if availability is not None else 0


def _conda_locks(names: tuple[str, ...], folders: tuple[Path, ...]) -> list[tuple[str, CondaLock]]:
    """Return the conda locks that exist; shipped profiles have none."""
    from envbuilder.packages.conda import lock as conda_lock

    pairs = ((name, conda_lock.find(name, folders)) for name in names)
    return [(name, lock) for name, lock in pairs if lock is not None]


def _state_of_conda(name: str, lock: CondaLock, folders: tuple[Path, ...]) -> dict[str, Any]:
    from envbuilder.packages.conda import lock as conda_lock

    fresh = lock.inputs == conda_lock.inputs_digest(load_profile(name, folders))
    stale = [] if fresh else ["the profile changed after the lock was made"]
    return {"profile": name, "backend": "conda", "state": "locked", "stale": stale, "reason": ""}


def _ask(
    names: tuple[str, ...],
    folders: tuple[Path, ...],
    settings: Settings,
    bundles: tuple[Path, ...],
) -> Summary:
    """Return the availability of every file and base image in some locks."""
    from envbuilder.bundle.read import opened
    from envbuilder.locks.availability import base_images, files

    bundled = {}
    for path in bundles:
        with opened(path) as reader:
            bundled[path.name] = frozenset(m.sha256 for m in reader.manifest.members)
    paths = filter(None, (profile_lock.path_for(name, folders) for name in names))
    locks = [profile_lock.load(path) for path in paths]
    progress = console.progress()
    conda_locks = [lock for _, lock in _conda_locks(names, folders)]
    return files.summary(
        (
            *files.check(files.pins(locks, conda_locks), settings, progress, bundled),
            *base_images.check(base_images.pins(locks), settings, progress, bundled),
        )
    )


def _place(name: str, settings: Settings, output_dir: Path | None) -> Path:
    folder = output_dir or (settings.project or settings.config_dir) / "profiles" / "locks"
    return folder / f"{name}.json"


def _write(path: Path, text: str) -> None:
    hint = "Name another folder with --output-dir."
    save(path, text.encode(), InvalidError, hint, "the lock")
