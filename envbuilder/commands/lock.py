"""`envbuilder lock`."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder import atomic, console, lockfile, profiles, settings
from envbuilder.errors import INVALID, InvalidError, ToolError
from envbuilder.options import json_option, profile_option


@click.command("lock", short_help="Resolve a profile to exact files with hashes.")
@profile_option
@click.option("--check", is_flag=True, help="Only say whether the lock is fresh; needs no network.")
@click.option("--audit", is_flag=True, help="Look every pin up in a database of vulnerabilities.")
@click.option("--upgrade", is_flag=True, help="Move to the newest versions the profile allows.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the lock. Without it: beside envbuilder.yaml, or your configuration folder.",
)
@json_option
def command(
    profile: str | None,
    check: bool,
    audit: bool,
    upgrade: bool,
    output_dir: Path | None,
    as_json: bool,
) -> int:
    """Resolve a profile to exact files with sha256, for each of its platforms and Pythons.

    Without --profile, every profile. Locks that came with envbuilder are not changed: a new one is
    written beside your envbuilder.yaml or into your configuration folder, which is looked up first.

    \b
    Examples:
      envbuilder lock --check
      envbuilder lock --audit --profile cpu
      envbuilder lock --profile cpu
      envbuilder lock --profile cuda --upgrade
    """
    found = settings.load()
    folders = profiles.search_path(found.project, found.config_dir)
    names = (profile,) if profile else profiles.names(folders)
    if check and audit:
        raise click.UsageError("--check needs no network, --audit does: ask one at a time")
    if check:
        return _check(names, folders, as_json)
    if audit:
        return _audit(names, folders, found, as_json)
    from envbuilder import resolve

    progress = console.progress()
    worst = 0
    for name in names:
        chosen = profiles.load(name, folders)
        old = lockfile.path_for(name, folders)
        previous = lockfile.load(old) if old else None
        with progress.task(f"resolve {name}"):
            lock = resolve.resolve(chosen, found, previous, upgrade, progress.note)
        path = _place(name, found, output_dir)
        if lock.state == "unlocked" and previous is not None and previous.state != "unlocked":
            click.echo(f"{name}: cannot be locked now, the lock in {old} stays: {lock.reason}")
            worst = INVALID
            continue
        _write(path, lockfile.dump(lock))
        files = sum(len(t.files) for t in lock.targets)
        click.echo(f"{name}: {lock.state}, {len(lock.targets)} targets, {files} files → {path}")
        if lock.reason:
            click.echo(f"  {lock.reason}")
        worst = INVALID if lock.state == "unlocked" and profile else worst
    return worst


def _check(names: tuple[str, ...], folders: tuple[Path, ...], as_json: bool) -> int:
    from envbuilder import resolve

    states = []
    for name in names:
        profile = profiles.load(name, folders)
        path = lockfile.path_for(name, folders)
        if path is None:
            states.append({"profile": name, "state": "missing", "stale": ["there is no lock"]})
            continue
        lock = lockfile.load(path)
        reasons = list(resolve.check(profile, lock))
        states.append(
            {"profile": name, "state": lock.state, "stale": reasons, "reason": lock.reason}
        )
    if as_json:
        import json

        click.echo(json.dumps({"schema": 1, "locks": states}))
    else:
        for state in states:
            stale = "; ".join(state["stale"])
            click.echo(f"{state['profile']:<14} {state['state']:<9} {stale or 'fresh'}")
    return INVALID if any(s["stale"] for s in states) else 0


def _audit(
    names: tuple[str, ...], folders: tuple[Path, ...], found: settings.Settings, as_json: bool
) -> int:
    import msgspec

    from envbuilder import osv
    from envbuilder.audit import audit, table

    locks = {}
    for name in names:
        path = lockfile.path_for(name, folders)
        if path is not None:
            locks[name] = [f for t in lockfile.load(path).targets for f in t.files]
    if not any(locks.values()):
        raise InvalidError(f"no lock of {', '.join(names)} names a file", "Run: envbuilder lock")
    with console.progress().task("look up known vulnerabilities"):
        result = audit(locks, osv.Database(found))
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        click.echo("\n".join(table(result)))
    if result.unchecked and not result.vulnerabilities:
        pins = f"{len(result.unchecked)} of {len(result.unchecked) + result.checked} pins"
        raise ToolError(f"{pins} could not be checked for known vulnerabilities", osv.HINT)
    return result.exit_code


def _place(name: str, found: settings.Settings, output_dir: Path | None) -> Path:
    folder = output_dir or (found.project or found.config_dir) / "profiles" / "locks"
    return folder / f"{name}.json"


def _write(path: Path, text: str) -> None:
    hint = "Name another folder with --output-dir."
    atomic.save(path, text.encode(), InvalidError, hint, "the lock")
