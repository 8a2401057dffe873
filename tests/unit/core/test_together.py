"""Several files are replaced together, or none is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from tests.support.folders import names_in


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "old").write_bytes(b"before")
    (tmp_path / "old").chmod(0o640)
    return tmp_path / "old"


def test_files_get_their_content_and_keep_their_mode(old: Path) -> None:
    new = old.parent / "folder/new"
    files.replace_all({old: b"after", new: b"first"}, "")
    assert (old.read_bytes(), new.read_bytes()) == (b"after", b"first")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640


@pytest.mark.parametrize("blocked", ["old/x", "closed"])
def test_if_one_cannot_be_written_all_are_as_before(old: Path, blocked: str) -> None:
    """A file that is in the way of a folder is met at once, a folder of the file's name late."""
    (old.parent / "closed").mkdir()
    contents = dict.fromkeys((old.parent / "folder/new", old, old.parent / blocked), b"after")
    with pytest.raises(InvalidError, match=f"{blocked}: cannot be written: ") as caught:
        files.replace_all(contents, "Make room.")
    assert caught.value.hint == "Make room."
    assert old.read_bytes() == b"before"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert names_in(old.parent) == {"old", "closed"}


def test_a_signal_between_two_of_them_leaves_all_as_before(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = old.parent / "new"
    replace = Path.replace

    def replaced(part: Path, path: Path) -> Path:
        if path == new:
            raise KeyboardInterrupt
        return replace(part, path)

    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        files.replace_all({old: b"after", new: b"after"}, "")
    assert old.read_bytes() == b"before"
    assert names_in(old.parent) == {"old"}
