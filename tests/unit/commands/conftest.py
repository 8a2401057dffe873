"""What tests of commands stand on: a folder, and for `clean` its folders and an engine."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from envbuilder.containers.engine import connection, interface
from envbuilder.core import process, settings
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch
from tests.support.cleaning import Labelled, Report
from tests.support.command_line import Command


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test stands in a folder of its own, and the process is not the command's.

    Its guard would end the tests at a later one's signal. Nor is uv asked where packages are.
    """
    monkeypatch.setattr(process, "install_stop_handlers", lambda *, owns_process: None)
    monkeypatch.setattr(fetch, "places", tuple)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Labelled:
    made = Labelled()
    monkeypatch.setattr(connection, "connect", made.connect)
    monkeypatch.setattr(interface, "configured_docker", lambda: made.configured)
    return made


@pytest.fixture
def own() -> settings.Settings:
    """The folders that the command itself will see."""
    return load_settings()


@pytest.fixture
def cleaned(envbuilder: Command) -> Command:
    """`cleaned(*options)`: what `clean` printed, which was not to ask."""
    return functools.partial(envbuilder, "clean", "--yes")


@pytest.fixture
def report(cleaned: Command) -> Report:
    return lambda *options: json.loads(cleaned(*options, "--json").out)
