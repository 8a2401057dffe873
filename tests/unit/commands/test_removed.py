"""Commands and options that were removed: refused with 2, and with what to do instead."""

from __future__ import annotations

import pytest

from envbuilder import cli
from envbuilder.commands import removed

ROWS = {
    **{
        f"{name} {option}": why
        for name, of in removed.INSTEAD.items()
        for option, why in of.items()
    },
    **removed.COMMANDS,
}


@pytest.mark.parametrize(("words", "instead"), ROWS.items())
@pytest.mark.parametrize("arguments", [[], ["manifests", "--json"]])
def test_what_was_removed_is_2_and_says_what_to_do_instead(
    words: str, instead: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*words.split(), *arguments])
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    assert f"`{words}` was removed: {instead}" in captured.err
