"""envbuilder.yaml: a first one, and packages added and removed while all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition, RequirementFile
from envbuilder.project import edit, environments

FILE = Path("envbuilder.yaml")
TEXT = """\
# What the lab trains.
profile: cpu
requirements:  # sorted by importance
  - numpy>=1.26   # arrays
  - "rich[jupyter]>=13"

# Those without a GPU.
environments:
  notebooks:
    requirements: [jupyterlab]
"""


def added(text: str, *requirements: str, environment: str = "default") -> edit.Change:
    return edit.added(text, FILE, environment, requirements)


def removed(
    text: str, *names: str, environment: str = "default", project: Path = Path("/none")
) -> edit.Change:
    return edit.removed(text, FILE, environment, names, project=project)


FLOW = TEXT.replace("[jupyterlab]", "[jupyterlab, ipykernel]")
TWICE = "requirements: [\"a<2; python_version < '3.12'\", a>=2]\n"


@pytest.mark.parametrize(
    ("before", "environment", "more", "changes", "after"),
    [
        (
            TEXT,
            "default",
            ("einops", "pandas<3,>=2"),
            ("added einops", "added pandas<3,>=2"),
            TEXT.replace('>=13"\n', '>=13"\n  - einops\n  - pandas<3,>=2\n'),
        ),
        # A listed package is replaced in its place.
        (
            TEXT,
            "default",
            ("NumPy>=2", "rich[jupyter]>=13"),
            ("numpy>=1.26 → NumPy>=2",),
            TEXT.replace("numpy>=1.26 ", "NumPy>=2 "),
        ),
        (TEXT, "notebooks", ("ipykernel",), ("added ipykernel",), FLOW),
        # Companions of a framework can be listed.
        (
            "",
            "default",
            ("torchvision",),
            ("added torchvision",),
            "requirements:\n  - torchvision\n",
        ),
    ],
)
def test_added_packages(
    before: str, environment: str, more: tuple[str, ...], changes: tuple[str, ...], after: str
) -> None:
    change = added(before, *more, environment=environment)
    assert (change.text, change.lines, change.before) == (after, changes, before)
    listed = environments.merged(change.definition, environment).requirements
    assert {*more} <= {*listed}


@pytest.mark.parametrize(
    ("before", "environment", "names", "changes", "part"),
    [
        (
            TEXT,
            "default",
            ("Rich", "numpy", "rich"),
            ("removed rich[jupyter]>=13", "removed numpy>=1.26"),
            "requirements: []  # sorted by importance\n\n# Those",
        ),
        (FLOW, "notebooks", ("jupyterlab",), ("removed jupyterlab",), "requirements: [ipykernel]"),
        (
            TWICE,
            "default",
            ("a",),
            ("removed a>=2", "removed a<2; python_version < '3.12'"),
            "requirements: []",
        ),
    ],
)
def test_packages_are_removed_by_any_spelling_of_their_names(
    before: str, environment: str, names: tuple[str, ...], changes: tuple[str, ...], part: str
) -> None:
    change = removed(before, *names, environment=environment)
    assert change.lines == changes
    assert part in change.text


FROM_PROFILE = "comes from the profile of the hardware"
IN_EVERY = "Leave it out: it is in every environment. See: envbuilder profiles"


@pytest.mark.parametrize(
    ("before", "requirement", "message", "hint"),
    [
        (TEXT, "torch", f"torch {FROM_PROFILE}", IN_EVERY),
        (TEXT, "Torch==2.0", f"torch {FROM_PROFILE}", IN_EVERY),
        ("framework: jax\n", "jax>=0.4", f"jax {FROM_PROFILE}", IN_EVERY),
        (
            *(TEXT, "jax[cuda12]", f"jax {FROM_PROFILE}"),
            "Write framework: jax into envbuilder.yaml: then it is in every environment.",
        ),
        (TEXT, "tensorflow-gpu", f"tensorflow-gpu {FROM_PROFILE}", "Write framework: tensorflow"),
        (TEXT, "a @ https://host/a.whl", "a URL; only packages from an index", "name==1.0"),
        (TEXT, "git+https://host/a", "a version control repository", "released version"),
        (TEXT, ".", "the project itself", "requirements_from"),
        *(
            (TEXT, text, "not a requirement", "such as rich>=13")
            for text in ("-e .", "--index-url=https://host", "a >= >", "a; python_version", "a\nb")
        ),
        (TEXT, "a; platform_machine == '`id`'", "not a requirement", "such as rich>=13"),
        (TEXT, "", "not a requirement", "such as rich>=13"),
        (TWICE, "a>=3", "a is listed 2 times", "by hand"),
    ],
)
def test_what_cannot_be_added(before: str, requirement: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidError) as caught:
        added(before, "einops", requirement)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("before", "name", "environment", "message", "hint"),
    [
        (
            TEXT,
            "numpi",
            "default",
            "envbuilder.yaml does not list 'numpi'",
            "Did you mean 'numpy'?",
        ),
        (TEXT, "qqq", "default", "envbuilder.yaml does not list 'qqq'", "It lists: numpy, rich."),
        (TEXT, "torch", "default", "torch comes from the profile", "every environment"),
        (
            *(TEXT, "jupyterlab", "default", "environment 'notebooks' does"),
            "Run: envbuilder remove jupyterlab --environment notebooks",
        ),
        (TEXT, "numpy", "notebooks", "environment 'default' does", "Run: envbuilder remove numpy"),
        (TEXT, "numpy", "gpu", "has no environment 'gpu'", "It has: default, notebooks."),
        (
            "requirements_from: [requirements.txt]\n",
            *("pandas", "default"),
            "pandas is listed in requirements.txt:3, not in envbuilder.yaml",
            "Remove it there",
        ),
        ("requirements:\n-\n  a\n", "a", "default", "envbuilder.yaml: ", "by hand"),
    ],
)
def test_what_cannot_be_removed(
    before: str, name: str, environment: str, message: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n\nPandas>=2\n")
    with pytest.raises(InvalidError) as caught:
        removed(before, name, environment=environment, project=tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint


@given(st.from_regex(r"\A[a-z][a-z0-9]{0,9}(\[[a-z]{1,5}\])?(>=[0-9]{1,3}(,<[0-9]{1,3})?)?\Z"))
def test_adding_and_removing_gives_the_same_text(requirement: str) -> None:
    name = requirement.partition("[")[0].partition(">")[0]
    if name in {"numpy", "rich", "jupyterlab", "torch"}:
        return
    for environment in ("default", "notebooks"):
        text = added(TEXT, requirement, environment=environment).text
        assert text != TEXT
        assert removed(text, name, environment=environment).text == TEXT


# A first file

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
    chosen = next(iter(edit.sources(folder)), None)
    return edit.first_text(chosen, edit.others(folder, chosen))


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
    files = [source.main.file for source in edit.sources(tmp_path)]
    assert files == [
        *("uv.lock", "pylock.toml", "pyproject.toml", "requirements.txt", "environment.yaml")
    ]


def test_a_file_that_cannot_be_read_is_a_source(tmp_path: Path) -> None:
    """Its reader says what is wrong with it."""
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert edit.sources(tmp_path) == (edit.Source(main=RequirementFile(file="pyproject.toml")),)


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
    chosen = edit.Source(main=RequirementFile(file=name)) if name else None
    text = edit.first_text(chosen, mentioned)
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
    assert edit.program_arguments(tmp_path) == expected
