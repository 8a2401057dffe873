"""The command that starts a shell: its path and its prompt are arguments, never script."""

from __future__ import annotations

import pytest

from envbuilder.commands import run

NAME = "(envbuilder default.cpu) "


@pytest.mark.parametrize("shell", ["/bin/bash", "/usr/bin/zsh", "/usr/bin/fish", "/bin/sh", "nu"])
def test_shell_and_prompt_are_arguments(shell: str) -> None:
    program, option, script, zero, first = run.shell_command(shell, NAME)
    assert (program, option, zero, first) == ("/bin/sh", "-c", shell, NAME)
    assert NAME not in script
    assert script.startswith('if [ -x "$0" ]')
    assert script.endswith("exec /bin/sh -i\n")


def test_each_known_shell_has_its_own_start() -> None:
    scripts = {run.shell_command(s, NAME)[2] for s in ("bash", "zsh", "fish", "sh", "ksh")}
    assert len(scripts) == 4


@pytest.mark.parametrize("shell", ["/bin/ba;touch x;sh", "/bin/$(touch x)", "'", "", "-i"])
def test_a_strange_shell_is_only_an_argument(shell: str) -> None:
    assert run.shell_command(shell, NAME)[2] == run.shell_command("sh", NAME)[2]
