"""Programs that the engines' clients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from envbuilder.core import process


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    """Programs on PATH: the start of a command line → exit code, stdout, stderr."""
    known: dict[str, tuple[int, str, str]] = {}

    def which(program: str) -> str | None:
        on_path = any(line.split()[0] == program for line in known)
        return f"/usr/bin/{program}" if on_path else None

    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        line = " ".join(argv)
        code, out, err = next(known[k] for k in known if line.startswith(k))
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout=out, stderr=err, seconds=0
        )

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
        return process.Completed(
            argv=(), returncode=returncode, stdout="", stderr=stderr, seconds=1, timed_out=late
        )

    monkeypatch.setattr(process, "run", run)
    return calls
