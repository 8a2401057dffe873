"""`envbuilder clean`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder import console, seal, settings
from envbuilder.errors import BuildError
from envbuilder.oci import scratch
from envbuilder.options import json_option

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("clean", short_help="Remove what envbuilder made.")
@click.option("--profile", metavar="NAME", help="Only environments and images of this profile.")
@click.option("--store", is_flag=True, help="Downloads, caches and logs, too.")
@click.option("--reports", is_flag=True, help="Kept verification reports, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def command(profile: str | None, store: bool, reports: bool, dry_run: bool, as_json: bool) -> None:
    """Remove environments and images that carry envbuilder's own marker or label, nothing else.

    Reports are yours: they stay unless --reports asks for them (with --profile, for those of it).

    \b
    Examples:
      envbuilder clean --dry-run
      envbuilder clean --profile cpu
      envbuilder clean --store
      envbuilder clean --reports --profile cuda
    """
    found = settings.load()
    progress = console.progress()
    if store and profile is not None:
        raise click.UsageError("--store: downloads belong to no profile; leave out --profile")
    paths = [
        path
        for prefix in _environments(found.envs_dir, profile)
        for path in (prefix, *_documents(prefix))
    ]
    if profile is None:
        paths += _leftovers(found.envs_dir, ".*.partial")
        paths += _leftovers(found.cache_dir / "build", "*")
        paths += scratch.left()
        paths += _leftovers(found.cache_dir / "reproduce", "*")
    if store:
        own = ("store", "bases", "layers", "uploads", "datasets", "locate", "uv-resolve", "logs")
        paths += [p for n in own if _is_folder(p := found.cache_dir / n)]
    if reports:
        from envbuilder import history

        paths += [entry.path for entry in history.entries(found.reports_dir, profile)]
    images = _images(profile, progress)
    if images:
        paths += _records(found.records_dir, profile)
    removed = [str(p) for p in paths] + list(images)
    if not dry_run:
        for path in paths:
            _remove(path)
        if images:
            from envbuilder import engine

            engine.remove_images(images)
    if as_json:
        click.echo(json.dumps({"schema": 1, "removed": removed, "dry_run": dry_run}))
        return
    for name in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {name}")
    if not removed:
        click.echo("nothing to remove")


def _environments(folder: Path, profile: str | None) -> Iterator[Path]:
    """Prefixes that carry our marker."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not _is_folder(path) or path.name.startswith("."):
            continue
        marker = seal.marker(path)
        ours = marker.get("made_by") == "envbuilder"
        if ours and (profile is None or marker.get("profile") == profile):
            yield path


def _documents(prefix: Path) -> Iterator[Path]:
    """What `build` wrote beside an environment."""
    from envbuilder import documents

    beside = (Path(f"{prefix}{suffix}") for suffix in documents.SUFFIXES.values())
    return (path for path in beside if path.is_file())


def _records(folder: Path, profile: str | None) -> Iterator[Path]:
    """What was written down of images that are to go."""
    from envbuilder import images

    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if any(profile in {None, record.profile} for record in images.read(path)):
            yield path


def _leftovers(folder: Path, pattern: str) -> Iterator[Path]:
    """Working folders of killed builds; one that is being built in is locked, and stays."""
    from filelock import FileLock

    for path in sorted(folder.glob(pattern)) if folder.is_dir() else ():
        if not _is_folder(path):
            continue
        lock = path.with_name(f"{path.name}.lock")
        if lock.exists():
            try:
                with FileLock(lock, timeout=0):
                    pass
            except OSError:  # a time-out is one, too
                continue
        yield path


def _is_folder(path: Path) -> bool:
    """Whether it is a folder here: a link's target may be anybody's."""
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise BuildError(
            f"{path}: cannot be removed: {error.strerror or error}",
            "Check who owns it and whether something in it is running, then try again.",
        ) from error


def _images(profile: str | None, progress: console.Progress) -> tuple[str, ...]:
    from envbuilder import engine
    from envbuilder.errors import ToolError

    try:
        return engine.own_images(profile)
    except ToolError as error:
        if engine.configured():
            progress.note(f"images were not looked at: {error.message}")
        return ()
