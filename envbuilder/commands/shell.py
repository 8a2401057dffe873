"""`envbuilder shell`: open a shell inside an environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envbuilder.build.request import Request
from envbuilder.commands import shell_start
from envbuilder.commands.access_options import access_options
from envbuilder.commands.options import environment_options, load_settings
from envbuilder.commands.run import enter

if TYPE_CHECKING:
    from envbuilder.build.access import Access


@click.command("shell", short_help="Open a shell inside an environment.")
@environment_options
@access_options
def command(
    profile: str | None,
    backend: str | None,
    python: str | None,
    base_image: str | None,
    given: Access,
) -> None:
    """Open an interactive shell inside the environment, with the flags that its device needs.

    Its prompt begins with the environment's name, unless VIRTUAL_ENV_DISABLE_PROMPT is set.

    \b
    Examples:
      envbuilder shell --profile cpu --backend venv
      envbuilder shell --backend docker -p 8000
    """
    enter(
        load_settings(),
        Request(profile=profile, backend=backend, python=python, base_image=base_image),
        lambda name: shell_start.command(os.environ.get("SHELL", "/bin/sh"), _prompt(name)),
        given,
    )


def _prompt(name: str) -> str:
    """Return the beginning of the prompt; empty if the user wants none, as for a venv."""
    return "" if os.environ.get("VIRTUAL_ENV_DISABLE_PROMPT") else f"(envbuilder {name}) "
