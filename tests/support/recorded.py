"""Functions that keep what they were called with."""

from __future__ import annotations

from typing import Any

import pytest


class Recorded:
    """A function that keeps what it was called with, and returns one value."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.calls: list[Any] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append(arguments)
        self.options.append(options)
        return self.value


def replaced(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any) -> Recorded:
    """Replace a function of a module by one that returns `value`."""
    recorded = Recorded(value)
    monkeypatch.setattr(module, name, recorded)
    return recorded
