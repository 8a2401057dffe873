"""`envbuilder add`: add packages to the project."""

from __future__ import annotations

import click

from envbuilder.commands import project_change
from envbuilder.commands.options import environment_option, load_settings


@click.command("add", short_help="Add packages to the project, and lock it.")
@click.argument("requirements", nargs=-1, required=True, metavar="REQUIREMENT…")
@environment_option
@click.option("--no-lock", is_flag=True, help="Only edit envbuilder.yaml.")
def command(requirements: tuple[str, ...], no_lock: bool) -> int:
    """Add packages to `requirements:` of envbuilder.yaml, and lock the project.

    A requirement is a package and perhaps versions, extras and a marker (PEP 508); for a package
    that is listed already, it replaces the line. Comments and order stay. Other packages keep their
    versions. If it cannot be locked for any profile, nothing is changed.

    \b
    Examples:
      envbuilder add einops "rich>=13"
      envbuilder add --environment notebooks jupyterlab
      envbuilder add --no-lock torchvision
    """
    from envbuilder.project import edit

    settings = load_settings()
    text, path = project_change.read(settings)
    change = edit.added(text, path, settings.environment, requirements)
    return project_change.apply(change, path, settings, lock=not no_lock)
