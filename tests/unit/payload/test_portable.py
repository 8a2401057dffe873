"""The payload runs in anybody's interpreter: Python 3.8 syntax, standard library, torch late."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import envbuilder.payload

FILES = sorted(Path(envbuilder.payload.__file__).parent.rglob("*.py"))

NEWER_ARGUMENTS = {"slots", "kw_only", "strict", "cancel_futures", "ignore_cleanup_errors"}
NEWER_METHODS = {"readlink", "removeprefix", "removesuffix", "is_relative_to", "bit_count"}
"""Than Python 3.8, on what has no name of its own: `os.readlink` is older."""


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def text(request: pytest.FixtureRequest) -> str:
    """The text of each module."""
    path: Path = request.param
    return path.read_text()


def test_syntax_is_that_of_python_3_8(text: str) -> None:
    ast.parse(text, feature_version=(3, 8))


def test_no_argument_and_no_method_is_newer_than_python_3_8(text: str) -> None:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    used = {keyword.arg for call in calls for keyword in call.keywords}
    assert not used & NEWER_ARGUMENTS
    methods = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    called = {method.attr for method in methods if ast.unparse(method.value) != "os"}
    assert not called & NEWER_METHODS


def test_annotations_are_not_evaluated(text: str) -> None:
    # Without this an annotation such as "X | Y" would be an error in Python 3.8.
    assert "from __future__ import annotations" in text


def test_only_the_standard_library_is_imported_at_the_top(text: str) -> None:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_imports_of_its_own_are_relative(text: str) -> None:
    assert "envbuilder." not in "\n".join(
        line for line in text.splitlines() if line.lstrip().startswith(("import", "from"))
    )
