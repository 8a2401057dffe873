"""The payload runs in anybody's interpreter: Python 3.9 syntax, standard library, torch late."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import envbuilder.payload

FILES = sorted(Path(envbuilder.payload.__file__).parent.rglob("*.py"))

NEWER_THAN_3_9 = {"slots", "kw_only", "strict"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_syntax_is_that_of_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), str(path), feature_version=(3, 9))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_keyword_argument_is_newer_than_python_3_9(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    used = {keyword.arg for call in calls for keyword in call.keywords}
    assert not used & NEWER_THAN_3_9


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_annotations_are_not_evaluated(path: Path) -> None:
    # Without this an annotation such as "X | Y" would be an error in Python 3.9.
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
