"""`envbuilder shell`."""

from __future__ import annotations

import os

import click

from envbuilder.commands.run import enter
from envbuilder.options import Request, environment_options


@click.command("shell", short_help="Open a shell inside an environment.")
@environment_options
def command(
    profile: str | None, backend: str | None, python: str | None, base_image: str | None
) -> None:
    """Open an interactive shell inside the environment, with the flags that its device needs.

    \b
    Example:
      envbuilder shell --profile cpu --backend venv
    """
    # An image is sure to have only sh; natively people expect their own.
    own = os.environ.get("SHELL", "/bin/sh")
    enter(
        Request(profile=profile, backend=backend, python=python, base_image=base_image),
        ("/bin/sh", "-c", f"if [ -x {own} ]; then exec {own} -i; else exec /bin/sh -i; fi")
        if own.replace("/", "").isalnum()
        else ("/bin/sh", "-i"),
    )
