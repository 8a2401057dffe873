"""Standard streams let no control character of outside text through, whoever prints it."""

from __future__ import annotations

import io

from envbuilder.core import console

HOSTILE = "\x1b[2J\x9b31m\u202e\ud800 https://me:c4nary@host/x\n"


def test_whatever_is_printed_is_escaped() -> None:
    screen = io.StringIO()
    for stream in (console.Results(screen), console.Messages(screen)):
        assert stream.write(HOSTILE) == len(HOSTILE)
        assert all(line.isprintable() for line in screen.getvalue().splitlines())


def test_messages_hold_no_credentials() -> None:
    screen = io.StringIO()
    console.Messages(screen).write(HOSTILE)
    assert "c4nary" not in screen.getvalue()


def test_only_styled_streams_pass_styles_on() -> None:
    screen = io.StringIO()
    for stream in (console.Results(screen), console.Messages(screen), screen):
        console.styled(stream).write("\x1b[1m")
    assert screen.getvalue() == 3 * "\x1b[1m"
