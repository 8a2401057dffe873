"""Each profile and lock is read once a command, whoever needs it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.profiles import library as module
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read from now on."""
    log: list[str] = []
    load_profile, read_lock = module.load_profile, profile_lock.content
    monkeypatch.setattr(
        module,
        "load_profile",
        lambda name, folders: log.append(name) or load_profile(name, folders),
    )
    monkeypatch.setattr(
        profile_lock, "content", lambda path, c: log.append(path.name) or read_lock(path, c)
    )
    return log


def test_a_profile_and_its_lock_are_read_once(reads: list[str]) -> None:
    library = Library((resources.profiles_dir(),))
    profile = library.profile("mps")
    assert library.profile("mps") is profile
    assert library.usable_lock(profile) is library.lock("mps")
    assert library.locks([profile]) == {"mps": library.lock("mps")}
    assert reads == ["mps", "mps.json"]


def test_a_damaged_lock_counts_as_none_until_it_is_needed(tmp_path: Path, reads: list[str]) -> None:
    shutil.copytree(resources.profiles_dir(), tmp_path / "profiles")
    (tmp_path / "profiles" / "locks" / "mps.json").write_text("{")
    library = Library((tmp_path / "profiles",))
    assert library.lock("mps") is None
    for _ in range(2):
        with pytest.raises(InvalidError, match="not a lock"):
            library.usable_lock(library.profile("mps"))
    assert reads == ["mps.json", "mps"]


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    shutil.copytree(resources.profiles_dir(), tmp_path / "profiles")
    (tmp_path / "profiles" / "locks" / "mps.json").unlink()
    library = Library((tmp_path / "profiles",))
    assert library.lock("mps") is None
    with pytest.raises(InvalidError, match="has no lock") as raised:
        library.usable_lock(library.profile("mps"))
    assert "envbuilder lock --profile mps" in raised.value.hint
