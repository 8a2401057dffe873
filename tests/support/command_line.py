"""Run the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from envbuilder import cli

FILE = Path("envbuilder.yaml")
"""The file of a project, for who stands in its folder."""


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> int:
    """Return the exit code of `envbuilder ARGUMENTS`."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    return int(ended.value.code or 0)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    """Return how `envbuilder ARGUMENTS` ended."""
    code = run(*arguments)
    return Ended(code, *capsys.readouterr())


Command = Callable[..., Ended]


@pytest.fixture
def envbuilder(capsys: pytest.CaptureFixture[str]) -> Command:
    """`envbuilder(*arguments, code=0)`: what a command printed that had to end with this code."""

    def command(*arguments: str, code: int = 0) -> Ended:
        ended = printed(capsys, *arguments)
        assert ended.code == code, ended
        return ended

    return command
