"""Layers: the same members give the same bytes, whatever machine writes them."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

EPOCH = 1_700_000_000


class Zeros:
    """A file of any size, of which nothing is there."""

    def __init__(self, size: int) -> None:
        self.size = size

    def pieces(self) -> Iterator[bytes]:
        yield b"zeros"


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
    made = layer.write(members, path, EPOCH)
    return made, path.read_bytes()


def test_digest_size_and_diff_id_are_those_of_the_bytes(tmp_path: Path) -> None:
    made, data = written(tmp_path, [Member(path="a", content=b"x")])
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert made.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert made.diff_id == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert (made.size, made.unpacked) == (len(data), len(tar))


def test_a_machine_of_many_cores_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of zstd's threads takes 8 MiB: 128 took 1.1 GiB."""
    settings = []
    real = zstandard.ZstdCompressionParameters.from_level

    def from_level(level: int, **options: object) -> zstandard.ZstdCompressionParameters:
        settings.append(options["threads"])
        return real(level, **options)

    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    monkeypatch.setattr(
        zstandard, "ZstdCompressionParameters", SimpleNamespace(from_level=from_level)
    )
    written(tmp_path, [Member(path="a", content=b"x")])
    assert settings == [8]


def test_members_of_more_than_8_gib_have_their_size_in_a_pax_header() -> None:
    """The field of ustar ends at 8 GiB."""
    size = (8 << 30) + 1000
    pieces = layer.tar([Member(path="a", source=Zeros(size)), Member(path="b", content=b"x")], 0)
    headers = next(pieces)
    with tarfile.open(fileobj=io.BytesIO(headers), mode="r:") as archive:
        member = archive.next()
    assert member is not None
    assert (member.name, member.size) == ("a", size)
    assert headers == next(layer.tar([Member(path="a", source=Zeros(size))], 0))
    assert next(pieces) == b"zeros"
    assert len(next(pieces)) == -size % 512


def test_order_number_of_cores_and_the_sources_times_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.write_bytes(os.urandom(20 << 20))  # more than two jobs of the compressor
    members = [Member(path="b/large", source=large), Member(path="a", content=b"x")]
    found = set()
    for cores, order, time in ((1, 1, 1), (8, -1, 2)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        os.utime(large, (time, time))
        large.chmod(0o600 if time == 1 else 0o644)
        found.add(written(tmp_path, members[::order]))
    assert len(found) == 1


def test_a_folders_tree_has_plain_owners_modes_and_times(tmp_path: Path) -> None:
    root = tmp_path / "env"
    (root / "lib").mkdir(parents=True, mode=0o700)
    (root / "lib" / "run").write_text("#!/bin/sh\n")
    (root / "lib" / "run").chmod(0o740)
    (root / "lib" / "data").write_text("x")
    (root / "lib" / "data").chmod(0o600)
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


def test_a_members_own_time_is_kept_where_it_is_earlier(tmp_path: Path) -> None:
    written(tmp_path, [Member(path="old", time=5), Member(path="new", time=EPOCH + 5)])
    assert {n: m.mtime for n, (m, _) in read(tmp_path / "layer").items()} == {
        "old": 5, "new": EPOCH,
    }  # fmt: skip


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/", exclude_categories=("Cc",)),
    min_size=1,
    max_size=60,
)


@given(st.dictionaries(NAMES.filter(lambda n: n not in {".", ".."}), st.binary(max_size=2000)))
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("layer")
    written(folder, [Member(path=n, content=c) for n, c in files.items()])
    assert {n: c for n, (_, c) in read(folder / "layer").items()} == files


def test_a_path_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="a: appears twice in one layer"):
        written(tmp_path, [Member(path="a"), Member(path="a", kind="folder")])


def test_a_layer_that_registries_would_refuse_is_refused_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "LARGEST", 4096)
    with pytest.raises(BuildError, match="which registries and engines refuse"):
        written(tmp_path, [Member(path="a", content=bytes(8192))])


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
    with pytest.raises(BuildError, match="changed while it was read"):
        written(tmp_path, [Member(path="log", source=source)])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildError, match="neither a file nor a folder nor a link"):
        list(layer.tree(tmp_path, "opt"))


def test_folders_above_are_named_once() -> None:
    assert [m.path for m in layer.folders_above(["a/b/c", "a/b/d", "e"])] == ["a", "a/b"]
