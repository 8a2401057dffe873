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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_syntax_is_that_of_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_argument_and_no_method_is_newer_than_python_3_8(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    used = {keyword.arg for call in calls for keyword in call.keywords}
    assert not used & NEWER_ARGUMENTS
    methods = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    called = {method.attr for method in methods if ast.unparse(method.value) != "os"}
    assert not called & NEWER_METHODS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_annotations_are_not_evaluated(path: Path) -> None:
    # Without this an annotation such as "X | Y" would be an error in Python 3.8.
    assert "from __future__ import annotations" in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported_at_the_top(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_of_its_own_are_relative(path: Path) -> None:
    assert "envbuilder." not in "\n".join(
        line
        for line in path.read_text().splitlines()
        if line.lstrip().startswith(("import", "from"))
    )
