"""`init` writes one file, never over another, and says what it could not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.commands import init
from tests.support.command_line import run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_what_it_wrote_and_what_comes_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "requirements.txt").write_text("rich>=13\ntorch>=2\n")
    (folder / "train.py").write_text("")
    assert run("init") == 0
    assert {path.name for path in folder.iterdir()} == {
        *("envbuilder.yaml", "requirements.txt", "train.py")
    }
    text = (folder / "envbuilder.yaml").read_text()
    out = capsys.readouterr().out
    assert all(f"  {line}\n" in out for line in text.splitlines())
    assert out.endswith("Next:\n  envbuilder lock\n  envbuilder run -- python train.py\n")
    assert "Not for" not in out


def test_the_result_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "--json") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result == {
        "schema": 1,
        "file": str(folder / "envbuilder.yaml"),
        "text": (folder / "envbuilder.yaml").read_text(),
        "unread": [],
        "notes": [init._NOTHING],
        "impossible": [],
        "next": ["envbuilder lock", "envbuilder run -- python …"],
    }


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("poetry.lock", "", "poetry export"),
        ("pyproject.toml", "[project]\ndynamic = ['dependencies']\n", "a build computes dependen"),
        ("requirements-dev.txt", "rich\n", "under requirements_from: requirements-dev.txt"),
    ],
)
def test_what_it_does_not_read_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, words: str
) -> None:
    (folder / file).write_text(text)
    assert run("init") == 0
    assert "requirements: []" in (folder / "envbuilder.yaml").read_text()
    out = capsys.readouterr().out
    assert words in out
    assert "envbuilder add NAME" in out


def test_a_file_is_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "envbuilder.yaml").write_text("not: [valid\n")
    assert run("init") == 2
    assert (folder / "envbuilder.yaml").read_text() == "not: [valid\n"
    err = capsys.readouterr().err
    assert f"{folder / 'envbuilder.yaml'}: exists already" in err.replace("\n", "")
    assert "envbuilder add NAME" in err


def test_nor_a_link_that_leads_nowhere(folder: Path) -> None:
    (folder / "envbuilder.yaml").symlink_to("elsewhere.yaml")
    assert run("init") == 2
    assert not (folder / "elsewhere.yaml").exists()


def test_profiles_with_another_torch_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "requirements.txt").write_text("torch==1.13.1\n")
    assert run("init") == 0
    out = capsys.readouterr().out
    assert (folder / "envbuilder.yaml").exists()
    assert "Not for zendnn: requirements.txt:1: torch==1.13.1: profile 'zendnn' has torch" in out
    assert "Not for xpu: requirements.txt:1: torch==1.13.1: profile 'xpu' has PyTorch" in out
    assert "Not for cpu" not in out
    assert "xpu-ipex" not in out, "it is opt-in"
    assert out.count("Allow that version, or leave the line out") == 1


def test_a_file_that_cannot_be_read_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text("[project\n")
    (folder / "requirements.txt").write_text("rich\n")
    assert run("init") == 0
    assert "  - requirements.txt\n" in (folder / "envbuilder.yaml").read_text()
    out = capsys.readouterr().out
    assert "Could not be read, and is left out:\n  pyproject.toml:1: not valid TOML" in out


def test_if_no_file_can_be_read_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text("[project\n")
    (folder / "requirements.txt").write_text("hg+https://host/a#egg=a\n")
    assert run("init") == 2
    assert not (folder / "envbuilder.yaml").exists()
    err = capsys.readouterr().err
    assert "pyproject.toml:1: not valid TOML" in err
    assert "requirements.txt:1: hg+https://host/a#egg=a: only git repositories" in err
