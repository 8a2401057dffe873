"""Man pages and completions are those of the commands as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder import cli
from tools import project_schema, refresh_shell_files, schemas


def test_the_files_are_fresh(repository: Path) -> None:
    folder = repository / "share"
    present = {
        p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8")
        for p in folder.rglob("*")
        if p.is_file()
    }
    made = {**refresh_shell_files.files(), project_schema.FILE.name: project_schema.schema()}
    made |= {f"envbuilder/{name}": text for name, text in schemas.texts().items()}
    assert present == made, "run: make docs"


def test_every_command_has_a_page_and_is_completed() -> None:
    files = refresh_shell_files.files()
    for name in cli.COMMANDS:
        assert f"man/man1/envbuilder-{name}.1" in files
        for shell, text in files.items():
            assert shell.startswith("man/") or f"{name}" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (".PP", r"\&.PP"),
        ("'quoted", r"\&'quoted"),
        ("--json", r"\-\-json"),
        ("a\\b", r"a\eb"),
        ("threads …", r"threads \[u2026]"),
    ],
)
def test_no_text_is_a_request_or_an_escape(text: str, escaped: str) -> None:
    assert refresh_shell_files._roff(text) == escaped


def test_examples_keep_their_lines() -> None:
    text = "First\nparagraph.\n\n\b\nExamples:\n  one\n  two\n"
    assert list(refresh_shell_files._description(text)) == [
        "First paragraph.",
        ".PP",
        ".nf",
        "Examples:",
        "  one",
        "  two",
        ".fi",
    ]


def test_commands_that_only_envbuilder_starts_are_not_shown() -> None:
    names = dict(refresh_shell_files.commands())
    assert "envbuilder fleet verify" in names
    assert "envbuilder fleet node" not in names


def test_hidden_options_are_not_completed() -> None:
    """They are for programs that envbuilder writes, and must not be found by chance."""
    for name, text in refresh_shell_files.files().items():
        assert "connection-file" not in text, name
