"""Layers: the same members give the same bytes, whatever machine writes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zstandard

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Member
from envbuilder.core import archives
from envbuilder.core.errors import BuildError, InvalidError
from tests.support import debs

EPOCH = 1_700_000_000


def read(path: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            found[member.name] = member, stream.read() if stream else b""
    return found


def written(folder: Path, members: Sequence[Member]) -> tuple[layer.Layer, bytes]:
    path = folder / "layer"
    return layer.write(members, path, EPOCH), path.read_bytes()


def test_digest_size_and_diff_id_are_those_of_the_bytes(tmp_path: Path) -> None:
    made, data = written(tmp_path, [Member(path="a", content=b"x")])
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert made.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert made.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert (made.size, made.unpacked) == (len(data), len(tar))
    assert len(tar) == 4 * 512, "a header, the content, and the end"


def test_order_number_of_cores_and_the_sources_times_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(20 << 20))  # more than two jobs of the compressor
    members = [Member(path="b/large", source=large), Member(path="a", content=b"x")]
    found = set()
    for cores, order, time in ((1, 1, 1), (8, -1, 2), (None, 1, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        os.utime(large, (time, time))
        large.chmod(0o600 if time == 1 else 0o644)
        found.add(written(tmp_path, members[::order]))
    assert len(found) == 1


def test_the_compressors_settings_decide_the_bytes_as_the_cache_assumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [bytes([n % 251]) * 3 + n.to_bytes(4, "big") for n in range(4000)]
    members = [Member(path="a", content=b"".join(words) * 110)]  # 3 MB
    digests = set()
    for job, level in ((1 << 19, 3), (1 << 21, 3), (1 << 21, 1)):
        monkeypatch.setattr(layer, "_JOB", job)
        monkeypatch.setattr(layer, "_LEVEL", level)
        digests.add(written(tmp_path, members)[0].digest)
    assert len(digests) == 3


def test_a_folders_tree_has_plain_owners_modes_and_times(tmp_path: Path) -> None:
    root = tmp_path / "env"
    (root / "lib").mkdir(parents=True, mode=0o700)
    (root / "lib/run").write_text("#!/bin/sh\n")
    (root / "lib/run").chmod(0o740)
    (root / "lib/data").write_text("x")
    (root / "lib/data").chmod(0o600)
    (root / "lib64").symlink_to("lib")
    layer.write(layer.tree(root, "opt/env"), tmp_path / "layer", EPOCH)
    found = read(tmp_path / "layer")
    assert {n: oct(m.mode) for n, (m, _) in found.items()} == {
        "opt/env/lib": "0o755", "opt/env/lib/data": "0o644", "opt/env/lib/run": "0o755",
        "opt/env/lib64": "0o777",
    }  # fmt: skip
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m, _ in found.values()} == {
        (0, 0, "", "", EPOCH)
    }
    assert found["opt/env/lib64"][0].linkname == "lib"
    assert [n for n, (m, _) in found.items() if m.issym()] == ["opt/env/lib64"]
    assert {c for n, (m, c) in found.items() if m.isreg()} == {b"x", b"#!/bin/sh\n"}


def test_a_members_own_time_is_kept_where_it_is_earlier(tmp_path: Path) -> None:
    written(tmp_path, [Member(path="old", time=5), Member(path="new", time=EPOCH + 5)])
    assert {n: m.mtime for n, (m, _) in read(tmp_path / "layer").items()} == {
        "old": 5, "new": EPOCH,
    }  # fmt: skip


def test_a_member_keeps_its_owner_mode_and_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"opt/" + b"\xff" * 120)  # too long for a plain header
    written(tmp_path, [Member(path=name, mode=0o640, uid=5, gid=6)])
    ((member, _),) = read(tmp_path / "layer").values()
    assert (member.name, member.mode, member.uid, member.gid) == (name, 0o640, 5, 6)


def test_members_are_sorted_by_the_bytes_of_their_paths() -> None:
    names = [b"a", b"a-b", b"a/b", "\U00010000".encode(), b"\xff"]
    members = [Member(path=os.fsdecode(n), kind="folder") for n in names]
    assert layer.clean(reversed(members)) == members
    tar = b"".join(layer.tar(reversed(members), EPOCH))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert [os.fsencode(n) for n in archive.getnames()] == names
    assert tar.startswith(b"a/\0"), "a folder has a slash, as from other programs"


class Halves:
    """A file of an archive, whose bytes come in pieces."""

    size = 700

    def pieces(self) -> Iterator[bytes]:
        yield b"a" * 350
        yield b"b" * 350


def test_a_file_can_come_from_elsewhere_than_the_disk(tmp_path: Path) -> None:
    written(tmp_path, [Member(path="x", source=Halves()), Member(path="y", content=b"y")])
    contents = {name: content for name, (_, content) in read(tmp_path / "layer").items()}
    assert contents == {"x": b"a" * 350 + b"b" * 350, "y": b"y"}


def test_a_blob_has_a_checksum_and_its_progress_is_in_bytes_of_the_tar(tmp_path: Path) -> None:
    amounts: list[int] = []
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    made = layer.write([Member(path="a", source=source)], tmp_path / "layer", EPOCH, amounts.append)
    assert zstandard.get_frame_parameters((tmp_path / "layer").read_bytes()).has_checksum
    assert len(amounts) > 2
    assert sum(amounts) == made.unpacked


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([Member(path="../etc/passwd")], "'../etc/passwd' is outside its folder"),
        ([Member(path="/etc/passwd")], "'/etc/passwd' is outside its folder"),
        ([Member(path="a/.wh.b")], "'a/.wh.b' would delete another file from an image"),
        (
            [Member(path="a/b"), Member(path="a", kind="link", target="/etc")],
            "'a/b' leads through 'a', which is not a folder",
        ),
        (
            [Member(path="a/b"), Member(path="a")],
            "'a/b' leads through 'a', which is not a folder",
        ),
        ([Member(path="a", kind="link")], "'a' is a link with an invalid target: ''"),
        (
            [Member(path="a", kind="link", target="b\n")],
            r"'a' is a link with an invalid target: 'b\n'",
        ),
        ([Member(path="../a", kind="link")], "'../a' is outside its folder"),
    ],
)
def test_a_layer_that_is_unsafe_to_unpack_is_not_written(
    tmp_path: Path, members: list[Member], why: str
) -> None:
    safe = [Member(path="b", kind="folder"), Member(path="b/c", kind="link", target="..")]
    with pytest.raises(BuildError) as caught:
        written(tmp_path, [*safe, *members])
    assert caught.value.message == f"cannot create a layer: {why}"
    assert not (tmp_path / "layer").exists()


def test_a_path_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="a: appears twice in one layer"):
        written(tmp_path, [Member(path="a"), Member(path="a", kind="folder")])


def test_a_layer_that_registries_would_refuse_is_refused_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Member(path="a", content=bytes(8192))]
    made, _ = written(tmp_path, members)
    monkeypatch.setattr(layer, "LARGEST", made.unpacked)
    written(tmp_path, members)
    monkeypatch.setattr(layer, "LARGEST", made.unpacked - 1)
    with pytest.raises(BuildError, match="which registries and engines refuse"):
        written(tmp_path, members)


def test_a_file_that_grows_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "log"
    source.write_bytes(b"x")
    real = os.fstat

    def grows(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        if found.st_ino == source.stat().st_ino:
            source.write_bytes(b"xxxx")
        return found

    monkeypatch.setattr(os, "fstat", grows)
    with pytest.raises(BuildError, match="changed while it was being read"):
        written(tmp_path, [Member(path="log", source=source)])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildError, match="not a file, folder or link"):
        list(layer.tree(tmp_path, "opt"))


def test_folders_above_are_named_once_and_highest_first() -> None:
    paths = ["a/b/c", "a/b/d", "e", "x/y/z/file"]
    assert list(layer.folders_above(paths)) == [
        Member(path=path, kind="folder", mode=0o755) for path in ("a", "a/b", "x", "x/y", "x/y/z")
    ]


def test_what_decides_a_layers_bytes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are found by it: one that another version or level made is another layer."""
    seen = [layer.compressor()]
    for module, name, value in (
        (zstandard, "ZSTD_VERSION", (1, 5, 99)), (zstandard, "ZSTD_VERSION", (15, 9, 9)),
        (layer, "_LEVEL", 19), (layer, "_JOB", 1 << 20),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
        assert layer.compressor() not in seen
        seen.append(layer.compressor())
    assert seen[-1] == {"zstd": "15.9.9", "level": 19, "job": 1 << 20}


FILES = {"a": b"one", "b": b"x" * 5000}


def read_members(path: Path) -> dict[str, bytes]:
    return {m.name.removeprefix("./"): a.content(m) for m, a in layer.members(path)}


def diff_id(data: bytes) -> str:
    return layer.diff_id(io.BytesIO(data), len(data), "x")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_the_diff_id_is_the_digest_of_the_tar(pack: type[bytes]) -> None:
    tar = debs.tar(FILES)
    assert diff_id(pack(tar)) == f"sha256:{hashlib.sha256(tar).hexdigest()}"


def test_no_diff_id_without_the_whole_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="x: not a readable layer"):
        diff_id(gzip.compress(debs.tar(FILES))[:-9])
    monkeypatch.setattr(archives, "ALLOWANCE", 0)
    with pytest.raises(InvalidError, match="unpacks to more"):
        diff_id(gzip.compress(bytes(8 << 20)))


def test_a_layer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a readable layer: No such file or directory"):
        read_members(tmp_path / "layer")


def header(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type = kind
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_cannot_ask_for_all_memory(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "layer"
    path.write_bytes(header(kind, 1 << 40))
    with pytest.raises(InvalidError, match=r"its extended header of \d+ bytes is too large"):
        read_members(path)
