"""`envbuilder shell`: open a shell inside an environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envbuilder.build.request import Request
from envbuilder.commands.access_options import access_options
from envbuilder.commands.options import environment_options
from envbuilder.commands.run import enter

if TYPE_CHECKING:
    from envbuilder.build.access import Access

_STARTS = {
    "bash": """\
export ENVBUILDER_PATH="$PATH"
exec {sh} --rcfile /dev/fd/3 -i 3<<'END'
[ ! -f ~/.bashrc ] || . ~/.bashrc
PATH="$ENVBUILDER_PATH:$PATH"
unset ENVBUILDER_PATH
exec 3<&-
END""",
    "fish": """\
export ENVBUILDER_PATH="$PATH"
exec {sh} -i -C 'set -gx PATH (string split : -- $ENVBUILDER_PATH) $PATH; set -e ENVBUILDER_PATH'\
""",
}
"""How to start some shells so that PATH is right after they have read their startup files."""


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

    \b
    Examples:
      envbuilder shell --profile cpu --backend venv
      envbuilder shell --backend docker -p 8000
    """
    enter(
        Request(profile=profile, backend=backend, python=python, base_image=base_image),
        _interactive(os.environ.get("SHELL", "/bin/sh")),
        given,
    )


def _interactive(shell: str) -> tuple[str, ...]:
    """Return a command that starts the user's own shell, or sh, which every image has.

    The startup files of bash and fish may put other folders first on PATH (pyenv's and conda's do),
    and with them another Python: the environment's folders are put first again.
    """
    if not shell.replace("/", "").isalnum():
        return ("/bin/sh", "-i")
    start = _STARTS.get(shell.rpartition("/")[2], "exec {sh} -i").format(sh=shell)
    return ("/bin/sh", "-c", f"if [ -x {shell} ]; then\n{start}\nfi\nexec /bin/sh -i")
