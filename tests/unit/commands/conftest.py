"""The folders of `clean`, and an engine with images."""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path

import pytest

from envbuilder.containers.engine import connection, interface
from envbuilder.core import settings
from envbuilder.core.settings import load as load_settings
from tests.support.cleaning import Labelled, Report
from tests.support.command_line import Command


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Labelled:
    made = Labelled()
    monkeypatch.setattr(connection, "connect", made.connect)
    monkeypatch.setattr(interface, "configured_docker", lambda: made.configured)
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.chdir(tmp_path)
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
