"""Run the command line in this process."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from envbuilder import cli


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
