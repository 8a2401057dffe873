"""The environments of a project, and the files that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition, Environment, RequirementFile
from envbuilder.project import environments
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TEXT = """\
python: "3.12"
requirements:
  - einops

  - rich>=13
environments:
  test:
    requirements:
      - pytest
"""
DEFINITION = Definition(
    python="3.12",
    requirements=("einops", "rich>=13"),
    requirements_from=("requirements.txt",),
    system_packages=("git",),
    environment={"A": "1", "B": "1"},
    files=("src",),
    python_path=("src", "lib"),
    command=("python", "serve.py"),
    ports=(8000,),
    volumes={"models": "/models", "./data": "/data"},
    environments={
        "test": Environment(
            requirements=("pytest",),
            requirements_from=(RequirementFile(file="pyproject.toml", groups=("dev",)),),
            system_packages=("git", "curl"),
            environment={"B": "2"},
            files=("tests", "src"),
            python_path=("tests", "src"),
            command=("pytest",),
            ports=(1, 8000),
            volumes={"models": "/m"},
        ),
        "old": Environment(python="3.11"),
    },
)


def test_another_environment_has_what_the_top_level_has_and_its_own() -> None:
    test = environments.stated(DEFINITION, "test")
    assert test == Environment(
        python="3.12",
        requirements=("einops", "rich>=13", "pytest"),
        requirements_from=("requirements.txt", *DEFINITION.environments["test"].requirements_from),
        system_packages=("git", "curl"),
        environment={"A": "1", "B": "2"},
        files=("src", "tests"),
        python_path=("src", "lib", "tests"),
        command=("pytest",),
        ports=(8000, 1),
        volumes={"models": "/m", "./data": "/data"},
    )
    assert environments.stated(DEFINITION, "old").python == "3.11"
    assert environments.stated(DEFINITION, "old").command == DEFINITION.command
    assert environments.stated(DEFINITION, "default") is DEFINITION
    assert environments.names(DEFINITION) == ("default", "test", "old")


def test_an_environment_that_there_is_not() -> None:
    with pytest.raises(InvalidError, match=r"envbuilder.yaml has no environment 'prod'") as raised:
        environments.stated(DEFINITION, "prod")
    assert raised.value.hint == "It has: default, test, old."


def test_the_contents_name_where_each_line_stands(tmp_path: Path) -> None:
    (tmp_path / "envbuilder.yaml").write_text(TEXT)
    asked = []

    def read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
        asked.append((project, file, tuple(extras), tuple(groups)))
        return Listed(
            requirements=(Line("attrs", f"{file}:1"),),
            constraints=(Line("attrs==1", f"{file}:1"),),
            python=">=3.10" if file == "pyproject.toml" else "",
            conda=(Line("ffmpeg", f"{file}:2"),),
            channels=("conda-forge",),
            included=("./more.txt", "pyproject.toml"),
            notes=("a note",),
        )

    found = environments.contents(DEFINITION, "test", tmp_path, read)
    assert asked == [
        (tmp_path, "requirements.txt", (), ()),
        (tmp_path, "pyproject.toml", (), ("dev",)),
    ]
    assert found.requirements == (
        Line("einops", "envbuilder.yaml:3"),
        Line("rich>=13", "envbuilder.yaml:5"),
        Line("pytest", "envbuilder.yaml:9"),
        Line("attrs", "requirements.txt:1"),
        Line("attrs", "pyproject.toml:1"),
    )
    assert found.pythons == (
        Line("==3.12.*", "envbuilder.yaml:1"),
        Line(">=3.10", "pyproject.toml"),
    )
    assert (len(found.constraints), len(found.conda)) == (2, 2)
    assert (found.channels, found.notes) == (("conda-forge",), ("a note",))
    assert found.read_from == ("more.txt", "pyproject.toml", "requirements.txt")


@pytest.mark.parametrize(("name", "expected"), [("default", ":1"), ("test", ":1"), ("old", ":4")])
def test_the_stated_python_is_one_of_the_statements_with_its_place(
    tmp_path: Path, name: str, expected: str
) -> None:
    text = 'python: "3.12"\nenvironments:\n  test: {}\n  old: {python: "3.11"}\n'
    (tmp_path / "envbuilder.yaml").write_text(text)
    definition = Definition(
        python="3.12",
        requirements_from=("environment.yml",),
        environments={"test": Environment(), "old": Environment(python="3.11")},
    )
    contents = environments.contents(
        definition, name, tmp_path, lambda *_: Listed(python="==3.8.*")
    )
    version = "3.11" if name == "old" else "3.12"
    assert contents.pythons == (
        Line(f"=={version}.*", f"envbuilder.yaml{expected}"),
        Line("==3.8.*", "environment.yml"),
    )
