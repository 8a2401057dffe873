"""envbuilder.yaml: a first one, and packages added and removed while all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition, RequirementFile
from envbuilder.project import edit

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


def test_packages_are_added_below_the_others() -> None:
    change = added(TEXT, "einops", "pandas<3,>=2")
    assert change.lines == ("added einops", "added pandas<3,>=2")
    assert change.text == TEXT.replace('>=13"\n', '>=13"\n  - einops\n  - pandas<3,>=2\n')
    assert change.definition.requirements[-1] == "pandas<3,>=2"


def test_a_listed_package_is_replaced_in_its_place() -> None:
    change = added(TEXT, "NumPy>=2", "rich[jupyter]>=13")
    assert change.lines == ("numpy>=1.26 → NumPy>=2",)
    assert change.text == TEXT.replace("numpy>=1.26 ", "NumPy>=2 ")


def test_packages_are_removed_by_any_spelling_of_their_names() -> None:
    change = removed(TEXT, "Rich", "numpy", "rich")
    assert change.lines == ("removed rich[jupyter]>=13", "removed numpy>=1.26")
    assert "requirements: []  # sorted by importance\n\n# Those" in change.text


def test_an_environment_has_a_list_of_its_own() -> None:
    change = added(TEXT, "ipykernel", environment="notebooks")
    assert change.text == TEXT.replace("[jupyterlab]", "[jupyterlab, ipykernel]")
    assert removed(change.text, "jupyterlab", environment="notebooks").text == TEXT.replace(
        "[jupyterlab]", "[ipykernel]"
    )


def test_companions_of_torch_can_be_added() -> None:
    assert added("", "torchvision").text == "requirements:\n  - torchvision\n"


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("torch", "torch comes from the profile of the hardware"),
        ("Torch==2.0", "torch comes from the profile of the hardware"),
        ("jax[cuda12]", "jax comes from the profile of the hardware"),
        ("tensorflow-gpu", "tensorflow-gpu comes from the profile of the hardware"),
        ("a @ https://host/a.whl", "a URL; only packages from an index"),
        ("git+https://host/a", "a version control repository"),
        (".", "the project itself"),
        ("-e .", "not a requirement"),
        ("--index-url=https://host", "not a requirement"),
        ("a >= >", "not a requirement"),
        ("a; python_version", "not a requirement"),
        ("a\nb", "not a requirement"),
        ("a; platform_machine == '`id`'", "not a requirement"),
        ("", "not a requirement"),
    ],
)
def test_what_no_lock_can_hold_is_refused(requirement: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        added(TEXT, "einops", requirement)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "environment", "message", "hint"),
    [
        ("numpi", "default", "envbuilder.yaml does not list 'numpi'", "Did you mean 'numpy'?"),
        ("qqq", "default", "envbuilder.yaml does not list 'qqq'", "It lists: numpy, rich."),
        ("torch", "default", "torch comes from the profile", "every environment"),
        (
            *("jupyterlab", "default", "environment 'notebooks' does"),
            "Run: envbuilder remove jupyterlab --environment notebooks",
        ),
        ("numpy", "notebooks", "environment 'default' does", "Run: envbuilder remove numpy"),
    ],
)
def test_a_package_that_is_not_listed(name: str, environment: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidError) as caught:
        removed(TEXT, name, environment=environment)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_package_of_a_file_is_to_be_removed_there(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n\nPandas>=2\n")
    with pytest.raises(InvalidError) as caught:
        removed("requirements_from: [requirements.txt]\n", "pandas", project=tmp_path)
    assert caught.value.message == "pandas is listed in requirements.txt:3, not in envbuilder.yaml"


def test_an_environment_that_is_missing() -> None:
    with pytest.raises(InvalidError, match="has no environment 'gpu'"):
        added(TEXT, "einops", environment="gpu")


def test_a_package_that_is_listed_twice_is_left_to_the_user() -> None:
    text = "requirements: [\"a<2; python_version < '3.12'\", a>=2]\n"
    with pytest.raises(InvalidError, match="a is listed 2 times"):
        added(text, "a>=3")
    assert removed(text, "a").text == "requirements: []\n"


def test_a_form_that_cannot_be_edited_is_left_to_the_user() -> None:
    with pytest.raises(InvalidError) as caught:
        removed("requirements:\n-\n  a\n", "a")
    assert caught.value.message.startswith("envbuilder.yaml: ")
    assert "by hand" in caught.value.hint


@given(st.from_regex(r"\A[a-z][a-z0-9]{0,9}(\[[a-z]{1,5}\])?(>=[0-9]{1,3}(,<[0-9]{1,3})?)?\Z"))
def test_adding_and_removing_gives_the_same_text(requirement: str) -> None:
    name = requirement.partition("[")[0].partition(">")[0]
    if name in {"numpy", "rich", "jupyterlab", "torch"}:
        return
    for environment in ("default", "notebooks"):
        text = added(TEXT, requirement, environment=environment).text
        assert text != TEXT
        assert removed(text, name, environment=environment).text == TEXT


def test_a_framework_is_stated_not_listed() -> None:
    with pytest.raises(InvalidError) as raised:
        added("", "jax>=0.4")
    assert raised.value.hint == (
        "Write framework: jax into envbuilder.yaml: then it is in every environment."
    )
    with pytest.raises(InvalidError, match="jax comes from the profile") as raised:
        added("framework: jax\n", "jax>=0.4")
    assert raised.value.hint.startswith("Leave it out: it is in every environment.")


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
