"""`envbuilder remove`: remove packages from the project."""

from __future__ import annotations

import click

from envbuilder.commands import project_change
from envbuilder.commands.options import environment_option, load_settings


@click.command("remove", short_help="Remove packages from the project, and lock it.")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@environment_option
@click.option("--no-lock", is_flag=True, help="Only edit envbuilder.yaml.")
def command(names: tuple[str, ...], no_lock: bool) -> int:
    """Remove packages from `requirements:` of envbuilder.yaml, and lock the project.

    Comments and order of the others stay. A package that comes from a file, such as
    requirements.txt, is to be removed there: the file and the line are named.

    \b
    Examples:
      envbuilder remove einops
      envbuilder remove --environment notebooks jupyterlab
    """
    from envbuilder.project import edit
    from envbuilder.project.requirement_files import read

    settings = load_settings()
    text, path = project_change.read(settings)
    change = edit.removed(
        text, path, settings.environment, names, project=path.parent, read=read.read
    )
    return project_change.apply(change, path, settings, lock=not no_lock)
