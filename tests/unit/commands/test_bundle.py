"""`envbuilder bundle` and `unbundle`: what they print, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.bundle.contents import Image, Unpacked
from envbuilder.bundle.format import KINDS
from envbuilder.commands import bundle
from envbuilder.core.settings import Settings
from tests.support.bundles import made_of


def taken(environment: str | None) -> Unpacked:
    manifest = made_of((), environment=environment, profiles=("cpu",))
    nothing: dict[str, Any] = {"new": 0, "present": 0, "written": (), "bases": (), "signed": None}
    return Unpacked(manifest=manifest, digest="0" * 64, differences=(), **nothing)


@pytest.mark.parametrize(
    ("environment", "commands"),
    [
        (None, ["envbuilder verify --profile cpu --backend venv"]),
        ("default", ["envbuilder verify --profile cpu", "envbuilder run --profile cpu -- COMMAND"]),
        (
            "test",
            [
                "envbuilder verify --profile cpu --environment test",
                "envbuilder run --profile cpu --environment test -- COMMAND",
            ],
        ),
    ],
)
def test_the_next_commands_are_those_of_what_was_unpacked(
    environment: str | None, commands: list[str]
) -> None:
    assert [hint.command_line() for hint in bundle._next(taken(environment))] == commands


def test_commands_with_spaces_in_names_are_quoted(tmp_path: Path) -> None:
    base = Image(name="", folder=str(tmp_path / "my bases"), loaded=False)
    last = bundle._next(replace(taken(None), bases=(base,)))[-1]
    assert f"oci:{tmp_path / 'my bases'}" in shlex.split(last.command_line())


def test_the_locks_are_extracted_to_the_project(found: Settings, tmp_path: Path) -> None:
    settings = replace(found, project=tmp_path / "my project")
    words = bundle._extraction(Path("my bundle.tar"), settings)
    assert words[2:5] == ("my bundle.tar", "-C", str(tmp_path / "my project"))
    assert words[-1] == "project/envbuilder.lock"


def test_members_are_counted_in_the_plural_if_needed() -> None:
    members = dict(zip(KINDS, (4, 1, 3, 32, 0, 4, 9), strict=True))
    text = "4 profiles, 1 lock, 3 project files, 32 wheels, 4 dataset files, 9 base image files"
    assert bundle._counts(members) == text
