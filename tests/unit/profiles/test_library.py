"""Profiles and locks of a command: read once, hidden by the user's own, signed by trusted keys."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core import resources, signatures
from envbuilder.core.errors import InvalidError
from envbuilder.core.signatures import OtherSubjectError, UnknownKeyError, UnsignedError
from envbuilder.profiles import library, lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile, load as load_profile
from tests.support import signing
from tests.support.shipped import shipped_lock

SHIPPED = resources.profiles_dir()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the shipped profiles."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "profiles"))


def of(profile: Profile | str, *folders: Path, trusted: Sequence[str] | None = None) -> Library:
    """The library after the lock of a profile was used."""
    known = Library(folders, trusted)
    known.usable_lock(known.profile(profile) if isinstance(profile, str) else profile)
    return known


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read from now on."""
    log: list[str] = []
    read_lock = profile_lock.content

    def profile(name: str, folders: Sequence[Path]) -> Profile:
        log.append(name)
        return load_profile(name, folders)

    def lock(path: Path, command: str) -> bytes:
        log.append(path.name)
        return read_lock(path, command)

    monkeypatch.setattr(library, "load_profile", profile)
    monkeypatch.setattr(profile_lock, "content", lock)
    return log


def test_a_profile_and_its_lock_are_read_once(reads: list[str]) -> None:
    known = Library((resources.profiles_dir(),))
    profile = known.profile("mps")
    assert known.profile("mps") is profile
    assert known.usable_lock(profile) is known.lock("mps")
    assert known.locks([profile]) == {"mps": known.lock("mps")}
    assert reads == ["mps", "mps.json"]


def test_a_damaged_lock_counts_as_none_until_it_is_needed(copied: Path) -> None:
    (copied / "locks/mps.json").write_text("{")
    known = Library((copied,))
    assert known.lock("mps") is None
    with pytest.raises(InvalidError, match="not a lock"):
        known.usable_lock(known.profile("mps"))


# A lock of the user's own instead of the shipped one

CPU_LOCK = shipped_lock("cpu")
CPU = load_profile("cpu", (SHIPPED,))
WAY_BACK = "until you remove the file"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A lock of the user's own for `cpu`."""
    path = tmp_path / "locks/cpu.json"
    path.parent.mkdir()
    shutil.copy(SHIPPED / "locks/cpu.json", path)
    return path


def test_which_lock_hides_which(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    hidden = library.hidden_lock(CPU, folders)
    assert hidden == (CPU_LOCK, own)
    assert hidden.sentence == (f"{own} replaces the shipped lock, {WAY_BACK}")
    assert library.hidden_lock(CPU, (SHIPPED,)) is None
    assert library.hidden_lock(load_profile("mps", (SHIPPED,)), folders) is None


def test_a_shipped_lock_that_does_not_fit_is_not_missed(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    other = replace(CPU, requirements=("torch==2.12.0+cpu",))
    assert library.hidden_lock(other, folders) is None
    assert library.matching_shipped(replace(CPU, name="mine"), folders) is None


def test_what_a_build_says_of_it(own: Path) -> None:
    folders = (own.parent.parent, SHIPPED)
    assert of(CPU, *folders).notes == ()
    own.write_text(profile_lock.dump(replace(CPU_LOCK, targets=CPU_LOCK.targets[:1])))
    (note,) = of(CPU, *folders).notes
    assert note.endswith(WAY_BACK)


@pytest.mark.parametrize("stale", [True, False])
def test_a_lock_that_cannot_be_used_names_the_way_back(own: Path, stale: bool) -> None:
    text = profile_lock.dump(replace(CPU_LOCK, inputs="0" * 64)) if stale else "{"
    own.write_text(text)
    for _ in range(2):
        with pytest.raises(InvalidError) as raised:
            of(CPU, own.parent.parent, SHIPPED)
        assert raised.value.hint.endswith(f"\nTo return to the shipped lock, remove {own}")
        assert raised.value.hint.count("return") == 1


# Locks that must be signed: the bytes that are used are the bytes that are judged

LOCK = "mps.json"


@pytest.fixture
def folder(copied: Path) -> Path:
    """Profiles beside two keys."""
    for name in ("key.pem", "other.pem"):
        signing.lay_key(copied.parent / name)
    return copied


def sign(lock: Path, key: Path, place: Path | None = None) -> None:
    digest = {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    subject = signatures.Subject(name=lock.name, digest=digest)
    statement = signatures.make_statement([subject], library.LOCK_TYPE, {})
    signatures.write_signatures(
        place or signatures.path_beside(lock), statement, signing.read_key(key)
    )


def use(folder: Path, *keys: str) -> Library:
    """The library after the lock was used."""
    return of("mps", folder, trusted=[str(folder.parent / key) for key in keys])


def test_a_lock_by_a_trusted_key_is_used(folder: Path) -> None:
    lock = folder / "locks" / LOCK
    with pytest.raises(UnsignedError, match=f"^{re.escape(str(lock))}: not signed"):
        use(folder, "key.pub")
    sign(lock, folder.parent / "key.pem")
    (signed,) = use(folder, "other.pub", "key.pub").signed
    assert (signed.name, signed.type) == (LOCK, library.LOCK_TYPE)  # no path of this machine
    with pytest.raises(UnknownKeyError):
        use(folder, "other.pub")
    lock.write_bytes(lock.read_bytes() + b"\n")
    with pytest.raises(OtherSubjectError):
        use(folder, "key.pub")


def test_a_lock_for_a_glance_needs_no_signature(folder: Path) -> None:
    """`detect` and `profiles` show locks; nothing is built from them."""
    seen = Library((folder,), [str(folder.parent / "key.pub")])
    assert seen.lock("mps") is not None
    assert seen.signed == ()
    assert of("mps", folder)


def test_the_bytes_that_were_parsed_are_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is exchanged after it was read makes no difference."""
    lock = folder / "locks" / LOCK
    sign(lock, folder.parent / "key.pem")
    right = lock.read_bytes()
    content = profile_lock.content

    def exchanged(path: Path, command: str) -> bytes:
        lock.write_bytes(right.replace(b'"reason"', b' "reason"'))
        wrong = content(path, command)
        lock.write_bytes(right)
        return wrong

    monkeypatch.setattr(profile_lock, "content", exchanged)
    with pytest.raises(OtherSubjectError):
        use(folder, "key.pub")


def test_signatures_of_shipped_locks_are_among_the_user_s(folder: Path) -> None:
    mine = folder.parent / "mine"
    sign(folder / "locks" / LOCK, folder.parent / "key.pem", mine / f"locks/{LOCK}.intoto.jsonl")
    assert len(of("mps", mine, folder, trusted=[str(folder.parent / "key.pub")]).signed) == 1
    assert library.signature_of(folder / "locks" / LOCK, [mine]) is not None
    assert library.signature_of(folder / "locks" / LOCK, [folder]) is None
