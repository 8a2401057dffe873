"""Values are remembered in files that are never trusted without their hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.core.files import cached

if TYPE_CHECKING:
    from pathlib import Path


class Source:
    """Counts how often its value is made."""

    def __init__(self, value: dict[str, str]) -> None:
        self.value, self.made = value, 0

    def __call__(self) -> dict[str, str]:
        self.made += 1
        return self.value


def test_a_value_is_made_once(tmp_path: Path) -> None:
    source = Source({"a": "1"})
    for _ in range(3):
        assert cached(tmp_path / "entry", dict[str, str], source) == {"a": "1"}
    assert source.made == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content.replace(b"1", b"2", 1),
        lambda content: content.partition(b"\n")[2],
        lambda content: b"\xff" * 100,
    ],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: object) -> None:
    entry, source = tmp_path / "entry", Source({"a": "1"})
    cached(entry, dict[str, str], source)
    assert callable(damage)
    entry.write_bytes(damage(entry.read_bytes()))
    assert cached(entry, dict[str, str], source) == {"a": "1"}
    assert cached(entry, dict[str, str], source) == {"a": "1"}
    assert source.made == 2


def test_a_value_of_another_type_is_made_again(tmp_path: Path) -> None:
    cached(tmp_path / "entry", list[int], lambda: [1])
    assert cached(tmp_path / "entry", dict[str, str], Source({})) == {}


def test_what_cannot_be_written_is_made_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = Source({"a": "1"})
    for _ in range(2):
        assert cached(tmp_path / "file" / "entry", dict[str, str], source) == {"a": "1"}
    assert source.made == 2
