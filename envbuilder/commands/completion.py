"""`envbuilder completion`: print the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from envbuilder.core import console


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      source <(envbuilder completion bash)
      envbuilder completion fish > ~/.config/fish/completions/envbuilder.fish
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    console.document(kind(root, {}, "envbuilder", "_ENVBUILDER_COMPLETE").source())
