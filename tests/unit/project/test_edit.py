"""Packages are added to a project's file and removed from it, and nothing else of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.project import edit
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    return Listed(requirements=(Line("Pandas>=2", f"{file}:3"),))


def added(text: str, *requirements: str, environment: str = "default") -> edit.Change:
    return edit.added(text, FILE, environment, requirements)


def removed(text: str, *names: str, environment: str = "default") -> edit.Change:
    return edit.removed(text, FILE, environment, names, project=Path("/none"), read=read)


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


def test_a_package_of_a_file_is_to_be_removed_there() -> None:
    with pytest.raises(InvalidError) as caught:
        removed("requirements_from: [requirements.txt]\n", "pandas")
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
