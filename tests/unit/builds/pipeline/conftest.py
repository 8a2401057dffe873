"""A plain machine on which nothing is really fetched or executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.builds import execute
from envbuilder.containers.engine import connection, interface
from envbuilder.core import process
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.host import interpreters, model as host, probe
from envbuilder.packages import fetch
from tests.support.pipeline import PLAIN, PYTHON, Said
from tests.support.recorded import replaced


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[host.Host], None]:
    """A plain host with a Python and a compiler, without an engine; `machine(other)` changes it."""

    def become(other: host.Host) -> None:
        replaced(monkeypatch, probe, "host", other)

    become(PLAIN)
    replaced(monkeypatch, interpreters, "find", PYTHON)
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(interface, "configured_docker", lambda: False)
    return become


@pytest.fixture(autouse=True)
def doings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fetched and executed; nothing really is."""
    done: list[str] = []
    monkeypatch.setattr(fetch, "fetch", lambda *args: done.append("fetch") or 0)
    monkeypatch.setattr(execute, "execute", lambda *args: done.append("execute") or True)
    return done


@pytest.fixture
def missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter, no compiler, no engine that answers."""

    def fail(*args: Any, **options: Any) -> Any:
        raise ToolError("nothing is installed")

    monkeypatch.setattr(interpreters, "find", fail)
    monkeypatch.setattr(process, "which", lambda program: None)
    monkeypatch.setattr(connection, "connect", fail)


@pytest.fixture
def missing_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download fails."""

    monkeypatch.setattr(fetch, "fetch", Mock(side_effect=BuildError("cannot be fetched")))
