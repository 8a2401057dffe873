"""What a command runs in is neither removed nor replaced until the last of its processes ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from envbuilder.builds.backends import in_use
from envbuilder.builds.backends.integrity import MARKER
from envbuilder.core.errors import BuildError


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / MARKER).touch()
    return folder


def is_free(prefix: Path) -> bool:
    try:
        with in_use.replacing(prefix):
            return True
    except BuildError:
        return False


def test_commands_share_what_nothing_may_replace(prefix: Path) -> None:
    held = [in_use.hold(prefix), in_use.hold(prefix)]
    assert None not in held
    del held[0]
    assert not is_free(prefix)
    held.clear()
    assert is_free(prefix)


def test_what_is_not_there_is_free_and_cannot_be_held(tmp_path: Path) -> None:
    assert in_use.hold(tmp_path) is None
    assert is_free(tmp_path)


def test_a_lock_that_is_passed_on_outlives_its_object_at_a_number_that_shells_leave_alone(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = list[int]()
    duplicate = fcntl.fcntl

    def record(descriptor: int, command: int, lowest: int) -> None:
        passed.append(duplicate(descriptor, command, lowest))

    monkeypatch.setattr(fcntl, "fcntl", record)
    held = in_use.hold(prefix)
    assert held
    held.pass_on()
    del held
    (descriptor,) = passed
    assert descriptor >= 64
    assert os.get_inheritable(descriptor)
    assert not is_free(prefix)
    os.close(descriptor)
    assert is_free(prefix)


def test_what_was_removed_while_a_command_waited_is_not_there(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (prefix / MARKER).unlink())
    assert in_use.hold(prefix) is None


def test_a_file_system_without_locks_stops_nobody(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert in_use.hold(prefix)
    assert is_free(prefix)
