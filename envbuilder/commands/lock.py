"""`envbuilder lock`: resolve a profile to exact files with hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuilder.commands import conda_locking, locking
from envbuilder.commands.options import json_option, profile_option
from envbuilder.core import console
from envbuilder.core.errors import INVALID, InvalidError
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import load as load_profile
from envbuilder.profiles.profile import names as profile_names
from envbuilder.profiles.profile import search_path

if TYPE_CHECKING:
    from envbuilder.packages.conda.lock import Lock as CondaLock


@click.command("lock", short_help="Resolve a profile to exact files with hashes.")
@profile_option
@click.option("--check", is_flag=True, help="Only check that the lock is fresh; needs no network.")
@click.option(
    "--backend",
    type=click.Choice(["conda"]),
    help="Lock the packages of this backend's channels instead of the wheels.",
)
@click.option("--upgrade", is_flag=True, help="Move to the newest versions that fit.")
@click.option(
    "--upgrade-package",
    "packages",
    metavar="NAME",
    multiple=True,
    help="Move this package only, to the newest version that fits the others; can be repeated.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the lock. Without it: next to envbuilder.yaml, or your configuration folder.",
)
@json_option
def command(
    profile: str | None,
    check: bool,
    backend: str | None,
    upgrade: bool,
    packages: tuple[str, ...],
    output_dir: Path | None,
    as_json: bool,
) -> int:
    """Resolve a profile to exact files with sha256, for each of its platforms and Pythons.

    Without --profile, resolves every profile. Locks that came with envbuilder are not changed: one
    that differs is written next to your envbuilder.yaml or into your configuration folder, which is
    searched first; remove it to return to the other.

    Versions stay while they fit. With --upgrade they move, and what does not says why, and which
    version exists. In a project, locks of environments and profiles that it no longer has are
    removed.

    \b
    Examples:
      envbuilder lock --check
      envbuilder lock --profile cpu
      envbuilder lock --profile cuda --upgrade
      envbuilder lock --upgrade-package rich
      envbuilder lock --profile cuda --backend conda
    """
    from envbuilder.locks import entries

    settings = load_settings()
    folders = search_path(settings.project, settings.config_dir)
    names = (profile,) if profile else profile_names(folders)
    if packages and (check or backend or upgrade):
        other = "--check" if check else "--backend" if backend else "--upgrade, which moves all"
        raise click.UsageError(f"--upgrade-package cannot be combined with {other}")
    if backend:
        if check:
            raise click.UsageError("--backend conda cannot be combined with --check")
        return conda_locking.requested(profile, settings, output_dir, upgrade=upgrade)
    if check:
        if settings.definition is not None:
            raise InvalidError("these are a project's locks", "Run: envbuilder check")
        return _check(names, folders, as_json)
    chosen = list(entries.entries(settings, profile, output_dir))
    locking.require_locked(conda_locking.not_locked(packages, profile, settings), chosen)
    outcomes = locking.resolved(chosen, settings, upgrade=upgrade, packages=packages)
    code = max(
        locking.settle(outcomes),
        conda_locking.needed(profile, settings, output_dir, upgrade=upgrade, packages=packages),
    )
    if profile is None and output_dir is None:
        locking.remove_needless(settings)
    definition = settings.definition
    requires = not definition or definition.requirements_from or any(e.places for e in chosen)
    if settings.project and not requires:
        from envbuilder.project.requirement_files import read

        for line in read.unread(settings.project):
            console.result(f"note: {PROJECT_FILE} requires nothing, and {line}")
    return code


def _check(names: tuple[str, ...], folders: tuple[Path, ...], as_json: bool) -> int:
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
        console.data({"schema": 1, "locks": states})
    else:
        for state in states:
            stale = "; ".join(state["stale"])
            of = " (conda)" if state.get("backend") else ""
            console.result(f"{state['profile'] + of:<19} {state['state']:<9} {stale or 'fresh'}")
    return INVALID if any(s["stale"] for s in states) else 0


def _conda_locks(names: tuple[str, ...], folders: tuple[Path, ...]) -> list[tuple[str, CondaLock]]:
    """Return the conda locks that exist; shipped profiles have none."""
    from envbuilder.packages.conda import lock as conda_lock

    library = Library(folders)
    pairs = ((name, conda_lock.find(name, library)) for name in names)
    return [(name, lock) for name, lock in pairs if lock is not None]


def _state_of_conda(name: str, lock: CondaLock, folders: tuple[Path, ...]) -> dict[str, Any]:
    from envbuilder.packages.conda import lock as conda_lock

    fresh = lock.inputs == conda_lock.inputs_digest(load_profile(name, folders))
    stale = [] if fresh else ["the profile changed after the lock was made"]
    return {"profile": name, "backend": "conda", "state": "locked", "stale": stale, "reason": ""}
