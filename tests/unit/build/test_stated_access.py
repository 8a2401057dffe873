"""What a project's file gives the commands of its environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.build import stated_access
from envbuilder.build.access import NOTHING
from envbuilder.core.errors import InvalidError
from envbuilder.packages import configuration

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.access import Access

TEXT = """\
python_path: [src]
environments:
  test:
    python_path:
      - src
      - tests/lib
  wrong:
    python_path:
      - no/such
"""


def stated(folder: Path, text: str = TEXT, environment: str = "default") -> Access:
    (folder / "envbuilder.yaml").write_text(text)
    settings = configuration.load({"ENVBUILDER_CONFIG_DIR": str(folder / "c")}, folder)
    return stated_access.of(replace(settings, environment=environment))


def test_python_imports_from_folders_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "tests" / "lib").mkdir(parents=True)
    assert stated(tmp_path).python_path == (tmp_path / "src",)
    both = (tmp_path / "src", tmp_path / "tests" / "lib")
    assert stated(tmp_path, environment="test").python_path == both
    with pytest.raises(InvalidError, match=r"envbuilder.yaml:9: python_path: 'no/such' is not"):
        stated(tmp_path, environment="wrong")


def test_a_folder_without_a_project_gives_nothing(tmp_path: Path) -> None:
    assert stated(tmp_path, "profile: cpu\n") is NOTHING
