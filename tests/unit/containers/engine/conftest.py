"""Programs that the engines' clients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from envbuilder.core import process
from tests.support.programs import completed

Programs = dict[str, str | tuple[int, str, str]]
"""Exit code 0 and what is printed, or exit code, stdout and stderr."""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Programs on PATH: the start of a command line → what it prints or how it fails."""
    known: Programs = {}

    def which(program: str) -> str | None:
        on_path = any(line.split()[0] == program for line in known)
        return f"/usr/bin/{program}" if on_path else None

    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        line = " ".join(argv)
        answer = next(known[k] for k in known if line.startswith(k))
        return completed(0, answer) if isinstance(answer, str) else completed(*answer)

    monkeypatch.setattr(process, "which", which)
    monkeypatch.setattr(process, "run", run)
    return known


def started(
    monkeypatch: pytest.MonkeyPatch, returncode: int = 0, stderr: str = "", *, late: bool = False
) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """The command lines and options of the programs that are run, which all end this way."""
    calls: list[tuple[Sequence[str], dict[str, Any]]] = []

    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        calls.append((argv, options))
        return completed(returncode, stderr=stderr)._replace(timed_out=late)

    monkeypatch.setattr(process, "run", run)
    return calls
