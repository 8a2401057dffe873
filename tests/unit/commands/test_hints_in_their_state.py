"""Commands that messages suggest, run where they were suggested: none leads back to its message."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import printed
from tests.unit.commands.test_hints import refusal

COMMAND = re.compile(r"^  envbuilder (.*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"[A-Z]{2,}(\.tar)?")
LOCK = "envbuilder.lock/default.cpu.json"
PROJECT = "profiles: [cpu]\npython: '3.11'\nframework_version: '2.13.0'\n"
NOTEBOOKS = f"{PROJECT}environments: {{notebooks: {{requirements: [einops]}}}}\n"
NOT_RUN = {"lock", "add", "remove", "build"}
"""Commands that resolve or build, which integration tests and the machine in tests/seams run."""

STATES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no project: add": ({}, ("add", "einops")),
    "no project: remove": ({}, ("remove", "einops")),
    "no project: check": ({}, ("check",)),
    "no project: lock of a day": ({}, ("lock", "--as-of", "2023-03-01")),
    "no project: workflow": ({}, ("ci", "--provider", "github", "--wheel", "envbuilder.whl")),
    "a project: check PROFILE": ({"envbuilder.yaml": PROJECT}, ("check", "cpu")),
    "not locked: check": ({"envbuilder.yaml": PROJECT}, ("check",)),
    "not locked: build": ({"envbuilder.yaml": PROJECT}, ("build", "--profile", "cpu")),
    "not locked: sbom": ({"envbuilder.yaml": PROJECT}, ("sbom", "--profile", "cpu")),
    "not locked: render": ({"envbuilder.yaml": PROJECT}, ("render", "--profile", "cpu")),
    "damaged lock: sbom": ({"envbuilder.yaml": PROJECT, LOCK: "{"}, ("sbom", "--profile", "cpu")),
    "damaged lock: check": ({"envbuilder.yaml": PROJECT, LOCK: "{"}, ("check",)),
    "listed elsewhere: remove": ({"envbuilder.yaml": NOTEBOOKS}, ("remove", "einops")),
    "nearly a name: add": ({"envbuilder.yaml": PROJECT}, ("add", "einop")),
    "in a file: remove": (
        {"envbuilder.yaml": f"{PROJECT}requirements_from: [r.txt]\n", "r.txt": "einops\n"},
        ("remove", "einops"),
    ),
    "no such command": ({}, ("lokc",)),
    "no such option": ({}, ("detect", "--nosuch")),
    "an option without its value": ({}, ("lock", "--profile")),
    "no Dockerfile: render": ({}, ("render", "--profile", "mps", "--target", "dockerfile")),
    "no such profile": ({}, ("profiles", "cuda13")),
    "no host: detect": ({"h.json": "no host"}, ("detect", "--target-host", "h.json")),
    "no bundle: unbundle": ({"b.tar": "x" * 2000}, ("unbundle", "b.tar")),
    "no report: compare": ({"r.json": "{}"}, ("compare", "r.json")),
    "nothing to run: run": ({"envbuilder.yaml": PROJECT}, ("run",)),
    "nothing to run: watch": ({"envbuilder.yaml": PROJECT}, ("watch",)),
}


@pytest.mark.parametrize("state", STATES)
def test_what_is_suggested_works_where_it_is_suggested(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, command = STATES[state]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    told = printed(capsys, *command)
    message = (told.err or told.out).splitlines()[0]
    for match in COMMAND.finditer(told.out + told.err):
        words = shlex.split(match[1])
        assert refusal(words) == ""
        assert words != list(command)
        if words[0] in NOT_RUN or any(map(PLACEHOLDER.fullmatch, words)):
            continue
        assert message not in "".join(map(str, printed(capsys, *words)[1:]))
