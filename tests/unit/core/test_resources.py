"""Templates are compiled once and kept beside their sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import jinja2.compiler
import pytest

from envbuilder.core import resources

TEMPLATE = "a.j2"


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder with one template, from which a new process would render."""
    (tmp_path / TEMPLATE).write_text("# {{ mark }}\n")
    monkeypatch.setattr(resources, "folder", lambda _: tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    yield tmp_path
    resources._environment.cache_clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the templates that were compiled."""
    names: list[str] = []
    real = jinja2.compiler.CodeGenerator

    class Generator(real):  # type: ignore[misc,valid-type]
        def __init__(self, environment: jinja2.Environment, name: str, *rest: str) -> None:
            names.append(name)
            super().__init__(environment, name, *rest)

    monkeypatch.setattr(jinja2.Environment, "code_generator_class", Generator)
    return names


def fill() -> str:
    """Render in what is like a new process."""
    resources._environment.cache_clear()
    return resources.filled(TEMPLATE, {"mark": "made here"})


def test_a_template_is_compiled_once(templates: Path, compiled: list[str]) -> None:
    assert fill() == fill() == "# made here\n"
    assert compiled == [TEMPLATE]
    (templates / TEMPLATE).write_text("{{ mark }}!\n")
    assert fill() == "made here!\n"
    for path in (templates / "__pycache__").iterdir():
        path.write_bytes(b"no bytecode")
    assert fill() == "made here!\n"


@pytest.mark.parametrize("why", ["no folder can be made", "the interpreter keeps none"])
def test_what_cannot_be_kept_is_compiled_again(
    templates: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no folder can be made":
        refused = PermissionError(13, "Permission denied")
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=refused))
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert fill() == fill() == "# made here\n"
    assert compiled == [TEMPLATE, TEMPLATE]
    assert not (templates / "__pycache__").is_dir()
