"""The measures of the code, on a package that is small enough to count by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.support.repositories import lay

PROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["top", "left | right"]
"""
TOP = '''"""A docstring is no statement."""
from envbuilder.left import low

def passes(a, *, b):
    """Call another function with its own arguments."""
    return low.work(a, b)

def drops(a, b):
    return low.work(a, 1)
'''
LEFT = """
from envbuilder.top import high

def work(a, b):
    return a + b
"""


@pytest.fixture(scope="module")
def rooms(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("rooms", repository / "tools/rooms.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    texts = {
        "pyproject.toml": PROJECT,
        "envbuilder/__init__.py": "",
        "envbuilder/top/high.py": TOP,
        "envbuilder/left/low.py": LEFT,
        "tests/test_top.py": "assert True\n",
        "docs/page.md": "three words here\n",
        "docs/commands.md": "generated\n",
    }
    return lay(tmp_path, texts)


def test_measures_of_a_small_package(rooms: Any, checkout: Path) -> None:
    measures, forbidden = rooms.measure(checkout)
    assert measures == {
        "product statements": 8,
        "test statements": 1,
        "modules": 3,
        "lines of the longest module": 9,
        "import statements, %": 25.0,
        "imports across rooms": 2,
        "arrows between rooms": 2,
        "one-caller modules": 2,
        "pass-through functions": 1,
        "circles": 1,
        "upward imports": 1,
        "words of docs": 3,
        "left": 3,
        "top": 5,
    }
    assert forbidden == {
        "circles": [["envbuilder.left.low", "envbuilder.top.high"]],
        "upward": ["envbuilder.left.low imports envbuilder.top.high"],
    }


def test_a_measure_needs_a_budget_and_a_budget_a_measure(rooms: Any) -> None:
    assert rooms.excess({"a": 2, "b": 1}, {"a": 2, "b": 1}) == []
    assert rooms.excess({"a": 3, "b": 1}, {"a": 2, "c": 1}) == [
        "a: 3, and its budget is 2",
        "b: no budget",
        "c: a budget of nothing",
    ]
