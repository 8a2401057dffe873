"""Locks that must be signed: the bytes that are used are the bytes that are judged."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import resources
from envbuilder.profiles import library
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library, signature_of
from envbuilder.signatures import statement as statements
from envbuilder.signatures.envelope import OtherSubjectError, UnknownKeyError, UnsignedError
from tests.support import signing

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "mps.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(resources.profiles_dir(), tmp_path / "profiles")
    for name in ("key.pem", "other.pem"):
        signing.lay_key(tmp_path / name)
    return tmp_path / "profiles"


def sign(lock: Path, key: Path, place: Path | None = None) -> None:
    import hashlib

    digest = {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    subject = statements.Subject(name=lock.name, digest=digest)
    statement = statements.make([subject], library.LOCK_TYPE, {})
    statements.write_file(place or statements.path_beside(lock), statement, signing.read_key(key))


def use(folder: Path, *keys: str) -> Library:
    """The library after the lock was used."""
    library = Library((folder,), [str(folder.parent / key) for key in keys])
    library.usable_lock(library.profile("mps"))
    return library


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
    library = Library((folder,), [str(folder.parent / "key.pub")])
    assert library.lock("mps") is not None
    assert library.signed == ()
    assert Library((folder,)).usable_lock(library.profile("mps")) is not None


def test_the_bytes_that_were_parsed_are_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is exchanged after it was read makes no difference."""
    lock = folder / "locks" / LOCK
    sign(lock, folder.parent / "key.pem")
    right, content = lock.read_bytes(), profile_lock.content

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
    sign(
        folder / "locks" / LOCK, folder.parent / "key.pem", mine / "locks" / f"{LOCK}.intoto.jsonl"
    )
    library = Library((mine, folder), [str(folder.parent / "key.pub")])
    library.usable_lock(library.profile("mps"))
    assert len(library.signed) == 1
    assert signature_of(folder / "locks" / LOCK, [mine]) is not None
    assert signature_of(folder / "locks" / LOCK, [folder]) is None
