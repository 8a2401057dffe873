"""The measures of the code, on a package that is small enough to count by hand."""

from __future__ import annotations

import ast
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
        "profiles/a.yaml": "a: 1\n",
        "profiles/locks/a.json": "{}\n",
    }
    return lay(tmp_path, texts)


def test_measures_of_a_small_package(rooms: Any, checkout: Path) -> None:
    measures, forbidden = rooms.measure(checkout)
    assert {name: n for name, n in measures.items() if not name.startswith("style: ")} == {
        "nodes of product": 27,
        "nodes of tests": 2,
        "nodes of tools and benchmarks": 0,
        "long text, characters": 0,
        "templates and profiles, bytes": 5,
        "modules": 3,
        "long modules without a reason": 0,
        "imports across rooms": 2,
        "arrows between rooms": 2,
        "one-caller modules": 2,
        "pass-through functions": 1,
        "circles": 1,
        "upward imports": 1,
        "words of docs": 3,
        "left": 8,
        "top": 19,
    }
    assert forbidden == {
        "circles": [["envbuilder.left.low", "envbuilder.top.high"]],
        "upward": ["envbuilder.left.low imports envbuilder.top.high"],
        "long": [],
    }


@pytest.mark.parametrize(
    ("packed", "unpacked"),
    [
        ("a, b = x, y", "a = x\nb = y"),
        ("a = x if y else z", "if y:\n    a = x\nelse:\n    a = z"),
        ("a = [f(x) for x in y if x]", "a = []\nfor x in y:\n    if x:\n        a.append(f(x))"),
    ],
)
def test_packing_makes_no_code_lighter(rooms: Any, packed: str, unpacked: str) -> None:
    light, heavy = (rooms.weight(rooms.counted(ast.parse(text))) for text in (packed, unpacked))
    assert light >= heavy - 4


def test_docstrings_annotations_and_names_of_arguments_weigh_nothing(rooms: Any) -> None:
    plain = "def f(a):\n    return g(a)"
    explained = 'def f(a: dict[str, int]) -> list[int]:\n    """Say it."""\n    return g(name=a)'
    weights = [rooms.weight(rooms.counted(ast.parse(text))) for text in (plain, explained)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a, b = x, y", "parallel"),
        ("f(*(a, b))", "starred"),
        ("a = x if y else z", "conditional"),
        ("a = [x for x in y]", "comprehensions"),
        ("a = [x if y else (1 if z else 2) for x in y]", "nested"),
    ],
)
def test_style_is_counted_for_a_thousand_statements(rooms: Any, text: str, name: str) -> None:
    assert rooms.style([ast.parse(text)])[f"style: {name}"] >= 1000
    assert rooms.style([ast.parse("a = x\nf(a, *b)")])[f"style: {name}"] == 0


def test_a_long_module_gives_its_reason(rooms: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    for docstring, listed in (("Text.", ["m"]), ("Text.\n\nLong because it is a table.", [])):
        path.write_text(f'"""{docstring}"""\n' + "a = 1\n" * 601)
        assert rooms.long_modules({"m": path}, {"m": ast.parse(path.read_text())}) == listed


def test_a_measure_needs_a_budget_and_a_budget_a_measure(rooms: Any) -> None:
    assert rooms.excess({"a": 2, "b": 1}, {"a": 2, "b": 1}) == []
    assert rooms.excess({"a": 3, "b": 1}, {"a": 2, "c": 1}) == [
        "a: 3, and its budget is 2",
        "b: no budget",
        "c: a budget of nothing",
    ]


def test_only_weight_and_style_are_held_strictly(rooms: Any) -> None:
    measures = {"nodes of product": 101, "style: nested": 101, "words of docs": 101, "core": 102}
    over = rooms.excess(measures, dict.fromkeys(measures, 100))
    assert [line.split(":")[0] for line in over] == ["nodes of product", "style", "core"]
