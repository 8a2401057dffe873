"""Progress on a terminal: what is known only later is shown from then on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from envbuilder.core import console


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    made = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(console, "rich_console", lambda **options: made)
    return screen


def test_a_share_is_shown_once_the_total_is_known(terminal: io.StringIO) -> None:
    with console.RichProgress().task("epoch 1") as task:
        shown: Any = task
        shown._bar.refresh()
        assert "%" not in terminal.getvalue()
        task.update(1, 4, "loss 0.123")
        shown._bar.refresh()
    assert "epoch 1, loss 0.123" in terminal.getvalue()
    assert "25%" in terminal.getvalue()
