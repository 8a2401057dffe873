"""Options that were removed: refused with 2, and with what to do instead."""

from __future__ import annotations

import pytest

from envbuilder import cli
from envbuilder.commands import removed

ROWS = [(name, option) for name, options in removed.INSTEAD.items() for option in options]


@pytest.mark.parametrize(("name", "option"), ROWS)
def test_a_removed_option_is_2_and_says_what_to_do_instead(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*name.split(), option])
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    assert f"`{name} {option}` was removed: {removed.INSTEAD[name][option]}" in captured.err
