from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import files
from envbuilder.core.errors import BuildError, WrongHashError
from envbuilder.packages.store import OWNED, Store
from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def file(content: bytes, name: str = "a-1.0-py3-none-any.whl") -> File:
    return File(
        kind="wheel",
        name="a",
        version="1.0",
        file=name,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="test",
    )


def test_right_bytes_enter(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), file(b"right")
    with store.receiving(wanted) as part:
        part.write_bytes(b"right")
        store.accept(part, wanted, "here")
    assert store.has(wanted.sha256)
    assert store.path(wanted.sha256).read_bytes() == b"right"


def test_wrong_bytes_never_enter_and_the_message_names_everything(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), file(b"right")
    with store.receiving(wanted) as part:
        part.write_bytes(b"wrong")
        with pytest.raises(WrongHashError) as caught:
            store.accept(part, wanted, "mirror.example")
        assert not part.exists()
    assert not store.has(wanted.sha256)
    for fact in (
        wanted.basename,
        "mirror.example",
        wanted.sha256,
        hashlib.sha256(b"wrong").hexdigest(),
    ):
        assert fact in caught.value.message


def test_link_uses_the_real_name(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path / "store"), file(b"x", name="pool/main/a/a_1_all.deb")
    with store.receiving(wanted) as part:
        part.write_bytes(b"x")
        store.accept(part, wanted, "here")
    folder = tmp_path / "out"
    folder.mkdir()
    linked = store.link(wanted, folder)
    assert linked == folder / "a_1_all.deb"
    assert linked.read_bytes() == b"x"


def test_a_file_damaged_in_the_store_is_named_and_removed(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), file(b"right")
    with store.receiving(wanted) as part:
        part.write_bytes(b"right")
        store.accept(part, wanted, "here")
    path = store.path(wanted.sha256)
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    with pytest.raises(BuildError, match="damaged in the store"):
        store.link(wanted, tmp_path)
    assert not store.has(wanted.sha256)
    assert not (tmp_path / wanted.basename).exists()


def test_another_file_system_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, wanted = Store(tmp_path / "store"), file(b"x")
    with store.receiving(wanted) as part:
        part.write_bytes(b"x")
        store.accept(part, wanted, "here")

    def cross_device(source: object, target: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(os, "link", cross_device)
    (tmp_path / "out").mkdir()
    assert store.link(wanted, tmp_path / "out").read_bytes() == b"x"


def test_every_version_finds_a_file_in_the_same_place(tmp_path: Path) -> None:
    wanted = file(b"right")
    Store(tmp_path).take(wanted.sha256, [b"ri", b"ght"])
    assert Store(tmp_path).path(wanted.sha256) == (
        tmp_path / "sha256" / wanted.sha256[:2] / wanted.sha256
    )
    assert Store(tmp_path).path(wanted.sha256).read_bytes() == b"right"


def test_only_folders_with_a_fixed_name_are_marked(tmp_path: Path) -> None:
    Store(tmp_path / "store").take(file(b"x").sha256, [b"x"])
    marked = {path.parent for path in tmp_path.rglob(files.MARKER)}
    assert marked == {tmp_path / "store", tmp_path / "store" / "sha256"}


def test_a_sound_file_has_the_right_bytes_and_a_damaged_one_stays(tmp_path: Path) -> None:
    store, sha256 = Store(tmp_path), file(b"right").sha256
    assert not store.sound(sha256)
    store.take(sha256, [b"right"])
    assert store.sound(sha256)
    store.path(sha256).chmod(0o644)
    store.path(sha256).write_bytes(b"rotten")
    assert not store.sound(sha256)
    assert store.path(sha256).read_bytes() == b"rotten"


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_breaks_off_leaves_nothing_and_is_what_is_raised(
    tmp_path: Path, cleaned: bool
) -> None:
    """Also if the partial file is gone by then."""
    partial = tmp_path / "partial"

    def chunks() -> Iterator[bytes]:
        yield b"ri"
        if cleaned:
            (partial / file(b"right").sha256).unlink()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).take(file(b"right").sha256, chunks())
    assert [path for path in partial.iterdir() if path.suffix != ".lock"] == []
    assert not Store(tmp_path).has(file(b"right").sha256)


def test_what_is_derived_from_a_file_is_kept_until_the_file_is_another(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), file(b"right")
    with store.receiving(wanted) as part:
        part.write_bytes(b"right")
        store.accept(part, wanted, "here")
    made = []

    def make(path: Path) -> int:
        made.append(path)
        return len(path.read_bytes())

    for _ in range(2):
        assert store.derived(wanted.sha256, "size-1", int, make) == 5
    assert made == [store.path(wanted.sha256)]
    assert store.derived(wanted.sha256, "size-2", int, make) == 5
    assert len(made) == 2
    path = store.path(wanted.sha256)
    path.unlink()
    path.write_bytes(b"longer, damaged")
    assert store.derived(wanted.sha256, "size-1", int, make) == 15
    names = [p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("derived/*.json")]
    assert len(names) == 3
    assert all(OWNED.has(name, "file") for name in names)
