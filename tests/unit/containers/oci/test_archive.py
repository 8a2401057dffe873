"""Archives of images: large layers are hashed while they pass, and unpacked nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from filelock import FileLock, Timeout

from envbuilder.commands import build
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import Index, Layout
from envbuilder.core.errors import EnvbuilderError, InvalidError, WrongHashError
from tests.support.images import image

LARGE = os.urandom(10_000)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """An image of a small and a large layer."""
    monkeypatch.setattr(archive, "_ON_DISK", tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    members = [[Member(path="a", content=b"x")], [Member(path="b", content=LARGE)]]
    return image(tmp_path / "layout", members)


@pytest.fixture
def packed(layout: Layout, tmp_path: Path) -> Path:
    """Its archive."""
    archive.write(layout, tmp_path / "image.tar")
    return tmp_path / "image.tar"


def test_an_archive_has_the_identity_of_its_layout(layout: Layout, packed: Path) -> None:
    assert archive.identity(packed) == archive.identity(layout.folder)


def test_an_archive_replaces_an_archive(layout: Layout, packed: Path) -> None:
    context = click.Context(build.command)
    (option,) = (p for p in build.command.params if p.name == "output")
    assert option.process_value(context, [str(packed)]) == str(packed)
    packed.write_bytes(b"notes")
    with pytest.raises(InvalidError, match="a different type of file"):
        option.process_value(context, [str(packed)])


def test_layers_are_unpacked_on_disk_to_be_checked(
    layout: Layout, packed: Path, tmp_path: Path
) -> None:
    """Folders for temporary files are often in memory, and layers have gigabytes."""
    for held in archive.held(packed):
        assert any(p.is_file() for p in (tmp_path / "disk").rglob("*"))
        assert [held] == [*archive.held(layout.folder)]


def test_who_adds_an_image_to_a_layout_is_alone(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the index, and writes it with one image more."""
    write = Layout.write_index
    written = list[object]()

    def alone(self: Layout, index: Index) -> None:
        with pytest.raises(Timeout), FileLock(tmp_path / "all.lock", timeout=0):
            pass
        written.append(self.folder)
        write(self, index)

    monkeypatch.setattr(Layout, "write_index", alone)
    archive.save(layout, tmp_path / "all")
    assert written == [tmp_path / "all"] * 2, "an empty index first"


def test_a_damaged_layer_is_noticed(packed: Path) -> None:
    data = packed.read_bytes()
    at = data.index(LARGE[:100])
    packed.write_bytes(data[:at] + b"?" + data[at + 1 :])
    with pytest.raises(EnvbuilderError, match="damaged"):
        archive.identity(packed)


def test_layers_that_the_configuration_does_not_name_are_noticed(
    tmp_path: Path,
) -> None:
    """Each blob has its digest, and the manifest names what is there."""
    forged = image(
        tmp_path / "forged", rootfs={"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}
    )
    with pytest.raises(WrongHashError, match="do not match its configuration"):
        archive.identity(forged.folder)
    assert [*archive.held(forged.folder, lambda config: False)] == [], "another's image"


def test_two_that_make_the_same_layout_at_once_both_have_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").touch()
        archive.move_into_place(tmp_path / name, tmp_path / "layout")
    assert (tmp_path / "layout/index.json").exists()
    with pytest.raises(FileNotFoundError):
        archive.move_into_place(tmp_path / "second", tmp_path / "nowhere/layout")
