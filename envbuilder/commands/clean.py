"""`envbuilder clean`."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import click

from envbuilder import console, settings
from envbuilder.backends.venv import MARKER
from envbuilder.options import json_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("clean", short_help="Remove what envbuilder made.")
@click.option("--profile", metavar="NAME", help="Only environments and images of this profile.")
@click.option("--store", is_flag=True, help="Downloads, caches and logs, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def command(profile: str | None, store: bool, dry_run: bool, as_json: bool) -> None:
    """Remove environments and images that carry envbuilder's own marker or label, nothing else.

    \b
    Examples:
      envbuilder clean --dry-run
      envbuilder clean --profile cpu
      envbuilder clean --store
    """
    found = settings.load()
    progress = console.progress()
    folders = list(_environments(found.envs_dir, profile))
    if store and profile is None:
        own = ("store", "datasets", "locate", "uv-resolve", "logs")
        folders += [p for n in own if (p := found.cache_dir / n).is_dir()]
    images = _images(profile, progress)
    removed = [str(f) for f in folders] + list(images)
    if not dry_run:
        for folder in folders:
            shutil.rmtree(folder)
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


def _environments(folder: Path, profile: str | None) -> list[Path]:
    """Prefixes that carry our marker, and what killed builds left."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or not path.is_dir():
            continue
        if path.name.startswith(".") and path.name.endswith(".partial"):
            if profile is None:
                found.append(path)
            continue
        try:
            marker = json.loads((path / MARKER).read_text())
        except (OSError, ValueError):
            continue
        ours = isinstance(marker, dict) and marker.get("made_by") == "envbuilder"
        if ours and (profile is None or marker.get("profile") == profile):
            found.append(path)
    return found


def _images(profile: str | None, progress: console.Progress) -> tuple[str, ...]:
    from envbuilder import engine
    from envbuilder.errors import ToolError

    try:
        return engine.own_images(profile)
    except ToolError as error:
        if engine.configured():
            progress.note(f"images were not looked at: {error.message}")
        return ()
