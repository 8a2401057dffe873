"""OCI layouts and archives: what is read is checked, what is written is whole."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Platform,
    decode,
    encode,
    place,
)
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, WrongHashError
from tests.support.folders import names_in
from tests.support.images import add, image, index_of
from tests.support.packed import entry, tar


def test_an_image_is_found_by_its_platform(tmp_path: Path) -> None:
    image(tmp_path, architecture="arm64")
    layout = Layout.open(image(tmp_path).folder)
    assert {d.platform.architecture for d in layout.images() if d.platform} == {"amd64", "arm64"}
    manifest = layout.manifest("linux/arm64")
    assert layout.read_config(manifest)["architecture"] == "arm64"


def test_indexes_within_are_followed_and_attestations_left_out(tmp_path: Path) -> None:
    layout = image(tmp_path)
    (found,) = layout.index().manifests
    note = layout.add(b"{}", MANIFEST, platform=Platform(architecture="unknown", os="unknown"))
    within = layout.add(encode(index_of(found, note)), INDEX)
    layout.write_index(index_of())
    add(layout, within)
    assert layout.find("linux/amd64").digest == found.digest


def test_what_is_no_image_is_passed_over(tmp_path: Path) -> None:
    """Whatever it says of itself, and whether it is there or not."""
    layout = image(tmp_path)
    (found,) = layout.index().manifests
    others = [
        layout.add(os_name.encode(), MANIFEST, platform=Platform(architecture="amd64", os=os_name))
        for os_name in ("", "unknown")
    ]
    missing = [
        Descriptor(media_type=kind, digest=f"sha256:{'0' * 64}", size=1) for kind in (INDEX, CONFIG)
    ]
    stray = [layout.add(b"no index", CONFIG), layout.add(b"nor this", "text/plain")]
    listed = (*others, *missing, *stray, found, found)
    layout.write_index(index_of(*listed))
    assert [d.digest for d in layout.images()] == [found.digest]


def test_a_new_layout_is_empty_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "blobs/sha256").mkdir(parents=True)  # left by a creation that was killed
    layout = Layout.create(tmp_path)
    assert layout.index() == index_of()
    image(tmp_path)
    before = layout.index()
    assert Layout.create(tmp_path).index() == before != Index(schema_version=2, manifests=())
    folder = tmp_path / "new"
    Layout.create(folder)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) == [
        "blobs", "blobs/sha256", "index.json", "oci-layout",
    ]  # fmt: skip


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_added_by_a_link_or_else_as_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "source"
    source.write_bytes(b"content")
    layout = Layout(tmp_path / "new/layout")
    found = layout.add(source, CONFIG)
    assert layout.read(found) == b"content"
    assert layout.blob(found.digest).samefile(source) is links
    assert names_in(layout.blob(found.digest).parent) == {found.digest[7:]}


def refuse(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_copy_that_fails_leaves_nothing_and_one_that_is_killed_only_what_clean_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    target = tmp_path / "blobs/sha256/target"
    source.write_bytes(b"content")
    parts: list[Path] = []

    def full(source: Path, part: Path) -> None:
        part.write_bytes(b"cont")
        parts.append(part)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        place(source, target, link=False)
    assert list(target.parent.iterdir()) == []
    (part,) = parts
    assert part.is_relative_to(tmp_path / "blobs")


@pytest.mark.parametrize("damage", [b"", b"x" * 7, None])
def test_a_damaged_or_missing_blob_is_named(tmp_path: Path, damage: bytes | None) -> None:
    layout = Layout.create(tmp_path)
    found = layout.add(b"content", CONFIG)
    path = layout.blob(found.digest)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(BuildError, match=found.digest) as caught:
        layout.read(found)
    assert isinstance(caught.value, WrongHashError) == (damage is not None)


def test_a_damaged_blob_is_replaced_when_it_is_added_again(tmp_path: Path) -> None:
    layout = Layout.create(tmp_path)
    found = layout.add(b"content", CONFIG)
    layout.blob(found.digest).write_bytes(b"")
    assert layout.read(layout.add(b"content", CONFIG)) == b"content"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schemaVersion":1,"manifests":[]}', '{"schemaVersion":2}', "\xff"]
)
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    layout = Layout.create(tmp_path)
    (tmp_path / "index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidError, match=r"index\.json"):
        layout.index()


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "md5:0", f"sha256:{'A' * 64}"])
def test_digests_lead_nowhere_else(tmp_path: Path, digest: str) -> None:
    with pytest.raises(InvalidError, match="not a sha256 digest"):
        Layout(tmp_path).blob(digest)
    with pytest.raises(InvalidError):
        decode(encode({"mediaType": CONFIG, "digest": digest, "size": 1}), Descriptor, "test")


def test_an_endless_manifest_is_not_read(tmp_path: Path) -> None:
    huge = Descriptor(media_type=MANIFEST, digest=f"sha256:{'0' * 64}", size=1 << 40)
    with pytest.raises(InvalidError, match="exceed the limit"):
        Layout.create(tmp_path).read(huge)


def test_another_folder_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not an OCI image layout"):
        Layout.open(tmp_path)
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}')
    with pytest.raises(InvalidError, match="unsupported version"):
        Layout.open(tmp_path)


# --- archives


def named(folder: Path) -> Layout:
    layout = image(folder)
    (found,) = layout.index().manifests
    layout.write_index(index_of(replace(found, annotations=archive.named("envbuilder/x:1"))))
    return layout


def test_an_archive_is_the_layout_again_and_always_the_same(tmp_path: Path) -> None:
    layout = named(tmp_path / "layout")
    shown: list[tuple[int, int]] = []
    archive.save(layout, tmp_path / "a.tar", lambda *so_far: shown.append(so_far))
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert shown[-1][0] == shown[-1][1] > 0
    archive.save(layout, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    back = archive.unpack(tmp_path / "a.tar", tmp_path / "back")
    assert back.index() == layout.index()
    assert back.manifest("linux/amd64") == layout.manifest("linux/amd64")


def test_docker_finds_name_and_files_in_an_archive(tmp_path: Path) -> None:
    layout = named(tmp_path / "layout")
    archive.save(layout, tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as tar:
        stream = tar.extractfile("manifest.json")
        (listed,) = decode(stream.read(), list[dict[str, object]], "manifest.json")
        assert listed["RepoTags"] == ["docker.io/envbuilder/x:1"]
        layers = listed["Layers"]
        config = listed["Config"]
        assert {config, *layers} <= set(tar.getnames())


def test_what_the_reader_has_is_left_out(tmp_path: Path) -> None:
    layout = named(tmp_path / "layout")
    (known,) = layout.manifest("linux/amd64").layers
    whole, part = (b"".join(archive.pieces(layout, w)) for w in ((), {known.digest}))
    name = known.digest.removeprefix("sha256:").encode()
    assert name + b"\0" in whole
    assert b"blobs/sha256/" + name + b"\0" not in part


def test_saved_layouts_keep_what_else_is_in_them(tmp_path: Path) -> None:
    there = image(tmp_path / "there", architecture="arm64")
    layout = named(tmp_path / "layout")
    archive.save(layout, there.folder)
    archive.save(layout, there.folder)
    assert len(Layout.open(there.folder).index().manifests) == 2
    source = layout.blob(layout.manifest("linux/amd64").layers[0].digest)
    copied = there.blob(layout.manifest("linux/amd64").layers[0].digest)
    assert copied.read_bytes() == source.read_bytes()
    assert copied.stat().st_ino != source.stat().st_ino, "people may change what they get"


def test_an_archives_blobs_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(entry(f"blobs/sha256/{'0' * 64}", b"other")))
    with pytest.raises(BuildError, match="damaged in the archive"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "to")


def test_nothing_of_an_archive_leaves_its_folder(tmp_path: Path) -> None:
    link = entry("blobs/sha256/" + "1" * 64, "/etc/passwd")
    others = (entry(n, b"x") for n in ("../out", "/out", "blobs/sha256/../../../out"))
    (tmp_path / "a.tar").write_bytes(tar(link, *others))
    with pytest.raises(InvalidError, match="not an archive of an OCI layout"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "to/deep")
    assert not {p.name for p in tmp_path.rglob("*")} & {"out", "1" * 64}


@pytest.mark.parametrize("content", [b"", b"no tar at all", b"\x1f\x8b broken"])
def test_what_is_no_archive_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(EnvbuilderError, match=r"not a"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "to")


def test_indexes_that_list_one_another_a_thousand_times_are_read_once(tmp_path: Path) -> None:
    layout = image(tmp_path)
    (found,) = layout.index().manifests
    within = found
    for _ in range(4):
        index = index_of(*[within] * 1000)
        within = layout.add(encode(index), INDEX)
    layout.write_index(index_of(*[within] * 1000))
    started = time.process_time()
    assert len(list(layout.images())) <= 1
    assert time.process_time() - started < 2


def test_a_mark_is_neither_deep_nor_waited_for(tmp_path: Path) -> None:
    image(tmp_path)
    (tmp_path / "oci-layout").write_bytes(b"[" * 1000)
    with pytest.raises(InvalidError):
        Layout.open(tmp_path)
    (tmp_path / "oci-layout").unlink()
    os.mkfifo(tmp_path / "oci-layout")
    with pytest.raises(InvalidError, match="not an OCI image layout"):
        Layout.open(tmp_path)
