"""A lock of the user's own that is used instead of the shipped one, and how the two differ."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.profiles import library
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import load as load_profile

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.profiles.lock import File, Lock

SHIPPED = resources.profiles_dir()
LOCK = profile_lock.load(SHIPPED / "locks" / "cpu.json")
CPU = load_profile("cpu", (SHIPPED,))
WAY_BACK = "to return to that one, remove the file"


def with_versions(**versions: str) -> Lock:
    """The shipped lock with other versions of some packages."""

    def moved(file: File) -> File:
        version = versions.get(file.name)
        name = f"{file.name}-{version}-py3-none-any.whl"
        return replace(file, version=version, file=name) if version else file

    targets = (replace(t, files=tuple(map(moved, t.files))) for t in LOCK.targets)
    return replace(LOCK, targets=tuple(targets))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A lock of the user's own for `cpu`."""
    path = tmp_path / "locks" / "cpu.json"
    path.parent.mkdir()
    shutil.copy(SHIPPED / "locks" / "cpu.json", path)
    return path


def test_which_lock_hides_which(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    hidden = library.hidden_lock(CPU, folders)
    assert hidden == (LOCK, own)
    assert hidden.sentence(LOCK) == (
        f"{own} is used instead of the lock that came with envbuilder, which is the same;"
        f" {WAY_BACK}"
    )
    assert hidden.sentence(None).endswith(f"the lock that came with envbuilder; {WAY_BACK}")
    assert library.hidden_lock(CPU, (SHIPPED,)) is None
    assert library.hidden_lock(load_profile("mps", (SHIPPED,)), folders) is None


def test_a_shipped_lock_that_does_not_fit_is_not_missed(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    other = replace(CPU, requirements=("torch==2.12.0+cpu",))
    assert library.hidden_lock(other, folders) is None
    assert library.matching_shipped(replace(CPU, name="mine"), folders) is None


@pytest.mark.parametrize(
    ("versions", "words", "preferable"),
    [
        ({}, "is the same", False),
        ({"jinja2": "1"}, "is newer: jinja2 ", True),
        ({"jinja2": "x"}, "is newer: jinja2 ", True),
        ({"jinja2": "99"}, "is older: jinja2 ", False),
        ({"jinja2": "1", "sympy": "99"}, "differs: jinja2 ", False),
        ({"torch": "99"}, "is older: torch 2.13.0+cpu", True),
        ({"torch": "2.12.0+cpu", "sympy": "99"}, "differs: torch 2.13.0+cpu, sympy ", True),
        (dict.fromkeys(("jinja2", "sympy", "networkx", "mpmath"), "0"), " more", True),
    ],
)
def test_how_they_differ(versions: dict[str, str], words: str, preferable: bool) -> None:
    other = with_versions(**versions)
    assert words in library.comparison(LOCK, other)
    assert library.is_preferable(LOCK, other) is preferable


def test_other_bytes_of_the_same_versions() -> None:
    other = replace(LOCK, reason="")
    assert library.comparison(LOCK, other) == "has the same versions"
    assert not library.is_preferable(LOCK, other)


def test_what_a_build_says_of_it(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    library = Library(folders)
    library.usable_lock(CPU)
    assert library.notes == ()
    own.write_text(profile_lock.dump(with_versions(jinja2="1")))
    library = Library(folders)
    library.usable_lock(CPU)
    (note,) = library.notes
    assert "which is newer: jinja2" in note
    assert note.endswith(WAY_BACK)


@pytest.mark.parametrize("stale", [True, False])
def test_a_lock_that_cannot_be_used_names_the_way_back(own: Path, stale: bool) -> None:
    text = profile_lock.dump(replace(LOCK, inputs="0" * 64)) if stale else "{"
    own.write_text(text)
    library = Library((own.parent.parent, SHIPPED))
    for _ in range(2):
        with pytest.raises(InvalidError) as raised:
            library.usable_lock(CPU)
        assert raised.value.hint.endswith(
            f"; to return to the lock that came with envbuilder, remove {own}"
        )
        assert raised.value.hint.count("return") == 1
