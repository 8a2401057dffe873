from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from envbuilder.core.errors import BuildError, WrongHashError
from envbuilder.packages.store import Store
from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
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
