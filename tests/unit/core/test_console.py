"""What is printed: outside text cannot act on a terminal, and progress shows what is known."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from envbuilder.core import console
from envbuilder.core.errors import EnvbuilderError, Hint

HOSTILE = "\x1b[2J\x9b31m\u202e\u2028\ud800\r\nFORGED https://me:c4nary@host/x"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")  # on a dumb one nothing is drawn
    made = console._escaping_console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(console, "rich_console", lambda **options: made)
    return screen


def test_a_share_is_shown_once_the_total_is_known(terminal: io.StringIO) -> None:
    with console.RichProgress().task("epoch 1") as task:
        shown: Any = task
        shown.bar.refresh()
        assert "%" not in terminal.getvalue()
        task.update(1, 4, "loss 0.123")
        shown.bar.refresh()
    assert "epoch 1, loss 0.123" in terminal.getvalue()
    assert "25%" in terminal.getvalue()


def test_a_finished_task_leaves_a_line_with_its_time(terminal: io.StringIO) -> None:
    with console.RichProgress().task("x" * 60, 4) as task:
        task.update(1, 4, "loss 0.123")
    *drawn, last = terminal.getvalue().splitlines()
    assert re.search(r"· x{60}: \d+\.\d s$", last)
    for line in drawn:
        assert len(line.rpartition("\x1b[2K")[2]) <= 80


def test_one_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.result(HOSTILE)
    console.message(HOSTILE)
    console.PlainProgress().note(HOSTILE)
    with console.PlainProgress().task(HOSTILE):
        pass
    out, err = capsys.readouterr()
    for line in (out + err).splitlines():
        assert line.isprintable()
        assert "c4nary" not in line
        assert not line.startswith("FORGED")
    assert (out.count("\n"), err.count("\n")) == (1, 3)


def test_endless_text_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("x" * 1_000_000)
    console.error("x" * 1_000_000, "y\n" * 1_000_000)
    out, err = capsys.readouterr()
    assert len(out) <= console.LONGEST_LINE + 1
    assert len(err) < 100_000


def test_json_is_the_same_value_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for text in (HOSTILE, HOSTILE.replace("\ud800", "")):
        console.data({"a": [text]})
        out = capsys.readouterr().out
        assert json.loads(out) == {
            "a": [text.replace("me:c4nary", "…").replace("\ud800", "\\ud800")]
        }
        assert out.removesuffix("\n").isprintable()


def test_tables_keep_their_columns_and_show_markup_as_text() -> None:
    screen = io.StringIO()
    out = console._escaping_console(file=screen, force_terminal=True, width=60, color_system=None)
    table = Table()
    table.add_column("name", overflow="fold")
    table.add_column("next")
    table.add_row(HOSTILE, "[/bold] :smile:")
    table.add_row(Text(HOSTILE), Text("b", style="bold"))
    out.print(table)
    out.print(HOSTILE)
    lines = screen.getvalue().splitlines()
    for line in lines:
        assert line.isprintable()
    assert "[/bold] :smile:" in screen.getvalue()
    assert "c4nary" not in screen.getvalue()
    assert len({len(line) for line in lines if line.startswith(("│", "┃"))}) == 1


def test_lines_that_an_error_repeats_are_indented(capsys: pytest.CaptureFixture[str]) -> None:
    console.error(f"failed:\n{HOSTILE}", f"Look at {HOSTILE}")
    lines = capsys.readouterr().err.splitlines()
    assert [line[:2] for line in lines] == ["er", "  ", "  ", "Lo", "  "]
    for line in lines:
        assert line.isprintable()
        assert "c4nary" not in line


def test_errors_break_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"{'word ' * 30}end\nan excerpt"
    hint = "Run `envbuilder lock --profile cpu`."
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    console.error(message, hint)
    whole = capsys.readouterr().err
    assert whole == f"error: {'word ' * 30}end\n  an excerpt\n{hint}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    console.error(message, hint)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 60
    assert "  an excerpt" in lines
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())


def test_a_suggested_command_is_one_whole_line_quoted_for_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = ("bundle", "--profile", ",".join(f"profile{n}" for n in range(1000)), "-o", "my file")
    console.error("failed", [Hint("Make it again", words), Hint("Or not.")])
    assert capsys.readouterr().err.splitlines()[1:] == [
        "Make it again:",
        f"  envbuilder bundle --profile {words[2]} -o 'my file'",
        "Or not.",
    ]


def test_a_suggested_command_cannot_become_a_line_of_its_own() -> None:
    hint = EnvbuilderError("failed", Hint("Run", ("add", f"a\nFORGED{HOSTILE}"))).hints[0]
    (_, command) = console.hint_lines(hint)
    assert command.isprintable()
    assert "c4nary" not in command
    assert str(hint) == f"Run: {command.strip()}"


HOSTILE_TEXT = "\x1b[2J\x9b31m\u202e\ud800 https://me:c4nary@host/x\n"


def test_whatever_is_printed_is_escaped() -> None:
    screen = io.StringIO()
    for stream in (console.Results(screen), console.Messages(screen)):
        assert stream.write(HOSTILE_TEXT) == len(HOSTILE_TEXT)
        for line in screen.getvalue().splitlines():
            assert line.isprintable()
    assert screen.getvalue().count("c4nary") == 1, "messages hold no credentials"


def test_only_styled_streams_pass_styles_on() -> None:
    screen = io.StringIO()
    for stream in (console.Results(screen), console.Messages(screen), screen):
        console.styled(stream).write("\x1b[1m")
    assert screen.getvalue() == 3 * "\x1b[1m"
