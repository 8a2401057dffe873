"""Which framework a project is for."""

from __future__ import annotations

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition
from envbuilder.project import framework
from envbuilder.project.requirement_files.listed import Line


def lines(*texts: str) -> tuple[Line, ...]:
    return tuple(Line(text, f"requirements.txt:{n}") for n, text in enumerate(texts, 1))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], ("torch", "")),
        (["einops", "rich>=13"], ("torch", "")),
        (["torch>=2", "rich"], ("torch", "requirements.txt:1 requires torch")),
        (["rich", "jax[cuda12]>=0.4"], ("jax", "requirements.txt:2 requires jax")),
        (["flax", "optax"], ("jax", "requirements.txt:1 requires flax")),
        (["tensorflow-gpu"], ("tensorflow", "requirements.txt:1 requires tensorflow-gpu")),
        (["keras>=3"], ("tensorflow", "requirements.txt:1 requires keras")),
        # What is required counts before what packages are made for: keras has several backends.
        (["keras", "jax"], ("jax", "requirements.txt:2 requires jax")),
        (["keras", "torch"], ("torch", "requirements.txt:2 requires torch")),
        # Nor does what is for machines that no profile is for.
        (['jax; sys_platform == "win32"', "torch"], ("torch", "requirements.txt:2 requires torch")),
        (
            ['tensorflow<2; python_version < "3.8"', "flax"],
            ("jax", "requirements.txt:2 requires flax"),
        ),
        (['jax; platform_machine == "arm64"'], ("jax", "requirements.txt:1 requires jax")),
    ],
)
def test_requirements_show_the_framework(listed: list[str], expected: tuple[str, str]) -> None:
    assert framework.of(Definition(), lines(*listed)) == expected


def test_what_the_project_states_decides() -> None:
    stated = Definition(framework="jax")
    assert framework.of(stated, lines("torch", "tensorflow")) == (
        "jax",
        "envbuilder.yaml says so",
    )


@pytest.mark.parametrize("listed", [["torch", "jax"], ["flax", "torchvision"], ["keras", "optax"]])
def test_two_frameworks_are_a_question(listed: list[str]) -> None:
    with pytest.raises(InvalidError, match="and a profile has one framework") as caught:
        framework.of(Definition(), lines(*listed))
    for number, name in enumerate(listed, 1):
        assert f"{name}, requirements.txt:{number}" in caught.value.message
    assert "framework: " in caught.value.hint
