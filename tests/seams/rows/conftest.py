"""A world for each row, whose index is filled once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.index import Index
from tests.seams.rows import World, fill
from tools.ignored_options import VARIABLE


@pytest.fixture(scope="session")
def filled(uv_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index with its wheels; it is served by nobody."""
    index = Index(tmp_path_factory.mktemp("filled") / "index")
    fill(index, uv_wheel)
    return index


@pytest.fixture
def world(
    filled: Index, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world of its own."""
    index = Index(tmp_path / "index")
    shutil.copytree(filled.folder, index.folder, copy_function=os.link)
    with index.served():
        world = World(tmp_path / "world", index)
        world.made = tmp_path_factory.getbasetemp() / "made"
        if VARIABLE in os.environ:
            for name in (VARIABLE, "PYTEST_CURRENT_TEST"):
                world.variables[name] = os.environ[name]
        yield world
