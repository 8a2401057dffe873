"""What `run` prints before the command: what is being built, or at most the profile's line."""

from __future__ import annotations

import socket

import pytest

from envbuilder.commands.run import _Brief, _is_free
from envbuilder.containers.engine.container import Port
from envbuilder.core.console import PlainProgress

NOTES = ("profile cpu: it fits", "backend venv: no engine answers", "note: slow", "warning: busy")


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def brief(printed: list[str]) -> _Brief:
    progress = _Brief(PlainProgress(printed.append))
    for note in NOTES:
        progress.note(note)
    return progress


def test_one_line_and_warnings_if_there_is_nothing_to_do(brief: _Brief, printed: list[str]) -> None:
    assert printed == []
    brief.release(briefly=True)
    assert printed == ["profile cpu: it fits", "warning: busy"]
    brief.note("warning: PYTHONPATH is set")
    assert printed[-1] == "warning: PYTHONPATH is set"


def test_everything_once_there_is_work(brief: _Brief, printed: list[str]) -> None:
    with brief.task("install"):
        brief.note("note: it takes long")
    brief.release(briefly=True)
    assert printed == [*NOTES, "· install", "note: it takes long"]


def test_everything_if_it_fails(brief: _Brief, printed: list[str]) -> None:
    brief.release()
    assert printed == [*NOTES]


def test_a_stated_port_that_is_in_use_stays_closed(printed: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        busy, free = (Port(outside=s.getsockname()[1], inside=1) for s in (used, other))
        other.close()
        assert _is_free(free, printed.append)
        assert printed == []
        assert not _is_free(busy, printed.append)
    assert printed == [f"warning: port {busy.outside} is in use here, so it is not the container's"]
