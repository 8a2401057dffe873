"""envbuilder.yaml: packages are added and removed while all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.core.types import canonical
from envbuilder.project import environment_changes, environments

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


def added(
    text: str, *requirements: str, environment: str = "default"
) -> environment_changes.Change:
    return environment_changes.added(text, FILE, environment, requirements)


def removed(
    text: str, *names: str, environment: str = "default", project: Path = Path("/none")
) -> environment_changes.Change:
    return environment_changes.removed(text, FILE, environment, names, project=project)


FLOW = TEXT.replace("[jupyterlab]", "[jupyterlab, ipykernel]")
FROM_PROFILE = "comes from the profile"
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
    assert {*more} <= {*environments.merged(change.definition, environment).requirements}


def test_other_spellings_are_understood_and_said() -> None:
    change = added("", "cv2", "PIL>=9", "tqdm=4.66", "torch", "'pandas<3',", "torchvision")
    understood = ("opencv-python-headless", "pillow", "tqdm==4.66.*", "pandas<3", "torchvision")
    assert change.definition.requirements == understood
    assert [note.partition(":")[0] for note in change.notes[:3]] == ["cv2", "PIL>=9", "tqdm=4.66"]
    assert change.notes[1] == "PIL>=9: taken as pillow in any version."
    assert change.notes[3].startswith(f"torch {FROM_PROFILE}")
    assert "framework_version" in change.notes[3]
    assert change.notes[4].endswith("whose release follows PyTorch's")


@pytest.mark.parametrize("text", ["{}", "'{}',", '"{}"', " {} "])
def test_a_marker_keeps_its_quotes(text: str) -> None:
    for line in ("attrs; python_version < '3.12'", 'attrs; python_version < "3.12"'):
        assert added("", text.format(line)).definition.requirements == (line,)


def test_condas_spelling_is_a_package_only_if_a_table_says_so() -> None:
    for text in ("mpi=1.0=openmpi", "gromacs=2025.4"):
        name = text.partition("=")[0]
        with pytest.raises(InvalidError, match=f"match conda's {name}, and one") as error:
            added("", text)
        assert f"{name}==VERSION" in error.value.hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("einop", "einops"),
        ("nunpy", "numpy"),
        ("docx", "python-docx"),
        ("Py-YAML", "pyyaml"),
    ],
)
def test_a_name_that_is_nearly_another_is_asked_about(name: str, meant: str) -> None:
    with pytest.raises(InvalidError, match=f"probably a misspelling of {meant}") as caught:
        added(TEXT, name)
    assert [hint.command for hint in caught.value.hints] == [
        ("add", meant),
        ("add", "--exact", canonical(name)),
    ]
    assert environment_changes.added(TEXT, FILE, "default", [name], exact=True).lines == (
        f"added {name}",
    )
    listed = f"requirements: [{name}]\n"
    assert added(listed, f"{name}>=1").lines, "it is listed already"


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


@pytest.mark.parametrize(
    ("before", "requirement", "message", "hint"),
    [
        (TEXT, "Torch==2.0", f"torch {FROM_PROFILE}", 'Write framework_version: "2.0" into'),
        ("framework: jax\n", "jax>=0", f"jax {FROM_PROFILE}", "Remove it, since every env"),
        (
            TEXT,
            "jax[cuda12]",
            f"jax {FROM_PROFILE}",
            "Write framework: jax into envbuilder.yaml, so that every environment contains it.",
        ),
        (
            TEXT,
            "a @ https://host/a.whl",
            "a URL, but only packages from an index",
            "requirements.txt",
        ),
        (
            TEXT,
            "python=3.11.4",
            "be listed as a package",
            'Write python: "3.11" into envbuilder.yaml',
        ),
        (TEXT, "python", "be listed as a package", 'Write python: "3.12" into envbuilder.yaml'),
        (TEXT, ".", "a local path", "requirements_from"),
        *(
            (TEXT, text, "not a requirement", "such as rich>=13")
            for text in ("-e .", "--index-url=https://host", "a >= >", "a; python_version", "a\nb")
        ),
        (TEXT, "", "not a requirement", "such as rich>=13"),
        (TWICE, "a>=3", "a is listed 2 times", "yourself"),
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
            "It lists: numpy, rich.",
        ),
        (TEXT, "qqq", "default", "envbuilder.yaml does not list 'qqq'", "It lists: numpy, rich."),
        (TEXT, "torch", "default", "torch comes from the profile", "every environment"),
        (
            TEXT,
            "jupyterlab",
            "default",
            "environment 'notebooks' does",
            "Run: envbuilder remove --environment notebooks jupyterlab",
        ),
        (TEXT, "numpy", "gpu", "has no environment 'gpu'", "It has: default, notebooks."),
        (
            "requirements_from: [requirements.txt]\n",
            "pandas",
            "default",
            "pandas is listed in requirements.txt:3, not in envbuilder.yaml",
            "Remove it there",
        ),
        (
            "requirements_from: [environment.yml]\n",
            "samtools",
            "default",
            "samtools is listed in environment.yml:1, not in envbuilder.yaml",
            "Remove it there",
        ),
        ("requirements:\n-\n  a\n", "a", "default", "envbuilder.yaml: ", "yourself"),
    ],
)
def test_what_cannot_be_removed(
    before: str, name: str, environment: str, message: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n\nPandas>=2\n")
    (tmp_path / "environment.yml").write_text("dependencies: [samtools]\n")
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
        text = environment_changes.added(TEXT, FILE, environment, [requirement], exact=True).text
        assert text != TEXT
        assert removed(text, name, environment=environment).text == TEXT
