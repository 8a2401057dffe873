"""Reports are read at the door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.verify import run
from envbuilder.verify.report import regression
from tests.support.reports import whole, written


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "damaged"),
        (b'"\\ud800"', "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"{}", "malformed"),
        (json.dumps({"schema": 3}).encode(), "a newer envbuilder has schema 3, expected 2"),
        (json.dumps(whole(device__used="cuda")).encode(), "contradicts itself"),
        (b" " * (decoding.LARGEST + 1), "larger than 16 MiB"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=said) as caught:
        regression.read(path)
    assert str(path) in caught.value.message


def test_an_older_report_is_called_older_and_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{"schema": 1, "torch": {}}')
    with pytest.raises(InvalidError) as caught:
        regression.read(path)
    assert caught.value.message == (
        f"{path}: the report of an earlier envbuilder has schema 1, expected 2"
    )
    assert caught.value.hint == "Verify again with this envbuilder."


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path("/dev/zero")):
        with pytest.raises(InvalidError, match=str(path)):
            regression.read(path)


def test_what_acts_on_a_terminal_goes_no_further_than_the_door(tmp_path: Path) -> None:
    """JSON escapes C0 alone: a raw C1 or bidirectional character would be in every copy."""
    name = "A\x9b2JB\u202eC\u200bD é"
    path = written(tmp_path / "report.json", device__name=name)
    assert regression.read(path).report.device.name == "A?2JB?C?D é"
    stored = run.as_stored({"name": name, name: ["\x1b\n", 1.5, None]}, "")
    assert stored == {"name": "A?2JB?C?D é", "A?2JB?C?D é": ["\x1b\n", 1.5, None]}
