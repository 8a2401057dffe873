"""The first envbuilder.yaml of a folder: which file it lists, and the program to run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import settings
from envbuilder.core.project_file import Definition, RequirementFile
from envbuilder.project import first_file

HEAD = """\
# What this project needs on any hardware. The framework comes from the profile of each machine.
# To add packages: envbuilder add NAME. After other changes: envbuilder lock
"""
TAIL = """\
# framework: jax  # or tensorflow; by default what the packages require, else torch
# profiles: [cpu, cuda]  # the hardware to support; without it, all
# python: "3.12"
"""
PYPROJECT = """\
[project]
name = "thing"
version = "1"
dependencies = ["rich"]
[project.optional-dependencies]
train = ["lightning"]
viz = ["matplotlib"]
[dependency-groups]
dev = ["pytest"]
"""
SHAPES = {
    "nothing": (
        {},
        """\
requirements: []  # such as [einops, "rich>=13"]
# requirements_from: [requirements.txt]
""",
    ),
    "a script with requirements": (
        {
            "requirements.txt": "rich\n",
            "requirements-dev.txt": "pytest\n",
            "requirements/gpu.txt": "x\n",
            "train.py": "",
        },
        """\
requirements_from:
  - requirements.txt
  # - requirements-dev.txt
  # - requirements/gpu.txt
""",
    ),
    "a package with extras": (
        {"pyproject.toml": PYPROJECT, "requirements.txt": "-e .\n"},
        """\
requirements_from:
  - pyproject.toml
  # - {file: pyproject.toml, extras: [train, viz], groups: [dev]}
  # - requirements.txt
""",
    ),
    "uv": (
        {"pyproject.toml": PYPROJECT, "uv.lock": "version = 1\n"},
        """\
requirements_from:
  - uv.lock
  # - {file: uv.lock, extras: [train, viz], groups: [dev]}
""",
    ),
    "a lock of pip": (
        {"pyproject.toml": "[project]\ndependencies = []\n", "pylock.toml": ""},
        "requirements_from:\n  - pylock.toml\n",
    ),
    "conda": (
        {"environment.yml": "dependencies: [numpy]\n", "pyproject.toml": "[tool.ruff]\n"},
        "requirements_from:\n  - environment.yml\n",
    ),
    "nothing but groups": (
        {"pyproject.toml": "[dependency-groups]\ntrain = ['rich']\n'a b' = []\n"},
        "requirements_from:\n  - {file: pyproject.toml, groups: [train]}\n",
    ),
    "lists that are not the main one": (
        {"requirements-dev.txt": "", "requirements/base.txt": ""},
        """\
requirements: []  # such as [einops, "rich>=13"]
# requirements_from: [requirements-dev.txt, requirements/base.txt]
""",
    ),
}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def started(folder: Path) -> str:
    chosen = next(iter(first_file.sources(folder)), None)
    return first_file.first_text(chosen, first_file.others(folder, chosen))


def definition(text: str) -> Definition:
    read = settings.decoded(text, Path("envbuilder.yaml"))[1]
    assert read is not None
    return read


@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_for_a_shape_of_project(tmp_path: Path, shape: str) -> None:
    files, expected = SHAPES[shape]
    lay(tmp_path, files)
    text = started(tmp_path)
    assert text == HEAD + expected + TAIL
    assert len(text.splitlines()) <= 15
    definition(text)


def test_the_best_file_comes_first_and_the_others_follow(tmp_path: Path) -> None:
    names = ["environment.yaml", "pylock.toml", "requirements.txt", "uv.lock"]
    lay(tmp_path, {"pyproject.toml": PYPROJECT, **dict.fromkeys(names, "")})
    files = [source.main.file for source in first_file.sources(tmp_path)]
    assert files == [
        *("uv.lock", "pylock.toml", "pyproject.toml", "requirements.txt", "environment.yaml")
    ]


def test_a_file_that_cannot_be_read_is_a_source(tmp_path: Path) -> None:
    """Its reader says what is wrong with it."""
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert first_file.sources(tmp_path) == (
        first_file.Source(main=RequirementFile(file="pyproject.toml")),
    )


def test_few_names_are_mentioned_and_none_can_add_a_line(tmp_path: Path) -> None:
    extras = "".join(f"x{number} = []\n" for number in range(20))
    text = f"[project]\ndependencies = []\n[project.optional-dependencies]\n{extras}"
    lay(tmp_path, {"pyproject.toml": text + '"a\\nb: c" = []\n'})
    for number in range(20):
        (tmp_path / f"requirements-{number}\nrequirements: [evil].txt").write_text("")
        (tmp_path / f"requirements-{number:02}.txt").write_text("")
    lines = started(tmp_path).splitlines()
    assert "  # - {file: pyproject.toml, extras: [x0, x1, x2, x3, x4]}" in lines
    assert [line for line in lines if line.startswith("  # - requirements")] == [
        f"  # - requirements-{number:02}.txt" for number in range(5)
    ]
    assert len(lines) <= 15


@given(
    st.none() | st.sampled_from(["requirements.txt", "uv.lock"]),
    st.lists(st.from_regex(r"\A[a-z0-9._ ,#{}\[\]&-]{1,20}\.txt\Z"), max_size=9),
)
def test_whatever_is_mentioned_changes_nothing(name: str | None, mentioned: list[str]) -> None:
    chosen = first_file.Source(main=RequirementFile(file=name)) if name else None
    text = first_file.first_text(chosen, mentioned)
    assert definition(text).requirements_from == ((name,) if name else ())
    assert len(text.splitlines()) <= 15


# The program of a folder

GUARD = 'def main(): ...\n\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"train.py": ""}, ("train.py",)),
        (
            {"train.py": "", "test_train.py": GUARD, "setup.py": "", "conftest.py": ""},
            ("train.py",),
        ),
        ({"train.py": GUARD, "model.py": "", "data.py": ""}, ("train.py",)),
        ({"train.py": GUARD, "evaluate.py": GUARD}, ()),
        ({"a.py": "", "b.py": ""}, ()),
        ({"thing/__main__.py": "", "thing/model.py": ""}, ("-m", "thing")),
        ({"thing/__main__.py": "", "helper.py": ""}, ("-m", "thing")),
        ({"thing/__main__.py": "", "train.py": GUARD}, ()),
        ({"one/__main__.py": "", "two/__main__.py": ""}, ()),
        ({"not-a-name/__main__.py": ""}, ()),
        ({"thing/train.py": GUARD}, ()),
    ],
)
def test_the_only_candidate(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert first_file.program_arguments(tmp_path) == expected
