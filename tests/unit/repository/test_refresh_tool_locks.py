"""`tools/refresh_tool_locks.py` writes what changed, and nothing if a tool cannot be locked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import jupyter
from envbuilder.core import resources
from envbuilder.core.errors import BuildError
from envbuilder.locks import resolve
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Lock, Reason
from tools import refresh_tool_locks as refresh


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of JupyterLab in a copy of the shipped profiles."""
    shutil.copytree(resources.profiles_dir(), tmp_path / "profiles")
    monkeypatch.setattr(resources, "profiles_dir", lambda: tmp_path / "profiles")
    monkeypatch.setattr(refresh, "TOOLS", (jupyter.NAME,))
    return tmp_path / f"profiles/tools/locks/{jupyter.NAME}.json"


def newer(lock: Lock) -> Lock:
    """The same lock with another JupyterLab."""
    targets = []
    for target in lock.targets:
        files = tuple(
            replace(f, version="99.0", file="jupyterlab-99.0-py3-none-any.whl")
            if f.name == "jupyterlab"
            else f
            for f in target.files
        )
        targets.append(replace(target, files=files))
    return replace(lock, targets=tuple(targets))


def resolved(monkeypatch: pytest.MonkeyPatch, result: Any) -> list[tuple[Any, ...]]:
    """What `resolve` was called with; it returns the result or raises it."""
    calls = []

    def fake(*arguments: Any) -> Any:
        calls.append(arguments)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(resolve, "resolve", fake)
    return calls


def test_an_unchanged_lock_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = profile_lock.load(path)
    calls = resolved(monkeypatch, lock)
    assert refresh.main([]) == 0
    assert [call[2:] for call in calls] == [(lock, False)]
    assert capsys.readouterr().out == ""


def test_a_newer_one_is_written_and_what_moved_is_printed(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = newer(profile_lock.load(path))
    calls = resolved(monkeypatch, lock)
    assert refresh.main(["--upgrade"]) == 0
    assert calls[0][3] is True
    assert profile_lock.load(path) == lock
    assert "→ 99.0\nwrote " in capsys.readouterr().out


@pytest.mark.parametrize("why", ["an error", "unlocked"])
def test_what_cannot_be_locked_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    text = path.read_text()
    lock = profile_lock.load(path)
    failed = BuildError("no index") if why == "an error" else None
    resolved(
        monkeypatch,
        failed or replace(lock, state="unlocked", obstacle=Reason(text="no wheel"), targets=()),
    )
    assert refresh.main([]) == 4
    assert path.read_text() == text
    assert capsys.readouterr().err.startswith("error: jupyter: no ")
