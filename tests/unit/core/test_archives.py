"""Files and compressed streams are read within limits, and nothing is waited for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import posixpath
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, strategies as st

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Member
from envbuilder.core import archives
from envbuilder.core.archives import Tar
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.packages.debian import deb
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles.lock import File
from tests.support import debs, packed
from tests.unit.builds.image.test_system import found

PACKERS = [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
TEXT = b"some text\n" * 1000


@pytest.mark.parametrize("pack", PACKERS)
def test_what_is_compressed_is_recognized(pack: Callable[[bytes], bytes]) -> None:
    assert archives.unpacked(io.BytesIO(pack(TEXT))).read() == TEXT


@pytest.mark.parametrize("pack", PACKERS[1:4])
def test_a_stream_that_breaks_off_is_an_error(pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(archives.faults()):
        archives.unpacked(io.BytesIO(pack(os.urandom(5000))[:-9])).read()


def test_pieces_end_at_the_limit() -> None:
    assert b"".join(archives.pieces(io.BytesIO(b"12345"), 5)) == b"12345"
    with pytest.raises(ValueError, match="more bytes than allowed"):
        list(archives.pieces(io.BytesIO(bytes(3 << 20)), 2 << 20))


def read(data: bytes) -> dict[str, bytes]:
    archive = Tar(io.BytesIO(data), len(data), InvalidError)
    return {m.name: archive.content(m) if m.isreg() else b"" for m in archive}


def refused(data: bytes) -> str:
    with pytest.raises(InvalidError) as caught:
        read(data)
    return caught.value.message


def block(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, len(content) if size is None else size
    return entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def with_records(**records: str) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.pax_headers = {k.replace("__", "."): v for k, v in records.items()}
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + bytes(1024)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ({"mtime": "nan"}, "invalid modification time"),
        ({"size": "-1"}, "invalid size|invalid offset"),
        ({"uid": "99999999999"}, "invalid size, mode or owner"),
        ({"path": "a\0b"}, "null character"),
        ({"comment": "1" * 300}, "invalid extended header"),
        ({"GNU__sparse__map": "0,1", "GNU__sparse__size": "9" * 18}, "sparse"),
    ],
)
def test_values_that_no_file_has_are_refused(records: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        read(with_records(**records))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"x" * 512, "invalid header"),
        (b"x" * 100, "truncated header"),
        (block(tarfile.REGTYPE, b"").replace(b"x", b"y", 1), "bad checksum"),
    ],
)
def test_an_archive_does_not_end_at_an_invalid_header(header: bytes, why: str) -> None:
    """For tarfile it does, as if no members followed."""
    assert refused(block(tarfile.REGTYPE, b"") + header) == why


def test_an_archive_may_end_without_empty_blocks() -> None:
    assert read(block(tarfile.REGTYPE, b"")) == {"x": b""}


def test_a_negative_size_is_refused() -> None:
    refused(block(tarfile.REGTYPE, b"", size=-1) + bytes(1024))


def test_a_sparse_file_has_no_end() -> None:
    assert "sparse" in refused(block(tarfile.GNUTYPE_SPARSE, b"") + bytes(1024))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_chain_of_headers_is_an_error(kind: bytes) -> None:
    refused(block(kind, b"6 a=b\n") * 3000 + debs.tar({"a": b""}))


def test_a_long_name_is_no_extended_header() -> None:
    name = "d/" * 100 + "x" * 150
    assert list(read(packed.tar(packed.entry(name), form=tarfile.GNU_FORMAT))) == [name]


def made_zip(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "a.zip"
    path.write_bytes(packed.zipped(files))
    return path


def changed(path: Path, at: int, value: int, size: int = 4) -> Path:
    """Change a field of the last entry of the directory."""
    data = bytearray(path.read_bytes())
    start = data.rindex(b"PK\x01\x02") + at
    data[start : start + size] = value.to_bytes(size, "little")
    path.write_bytes(data)
    return path


def test_a_member_is_read(tmp_path: Path) -> None:
    with archives.open_zip(made_zip(tmp_path, {"a": b"one"})) as archive:
        assert archives.zip_content(archive, "a", 3) == b"one"
        with pytest.raises(ValueError, match="'a' is larger than 0 KiB"):
            archives.zip_content(archive, "a", 2)


def test_no_more_is_inflated_than_a_member_states(tmp_path: Path) -> None:
    path = changed(made_zip(tmp_path, {"a": bytes(50 << 20)}), 24, 1000)
    tracemalloc.start()
    try:
        with archives.open_zip(path) as archive, pytest.raises(archives.BAD_ZIP):
            archives.zip_content(archive, "a", 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_member_said_to_start_before_the_file_is_a_damaged_archive(tmp_path: Path) -> None:
    path = tmp_path / "early.zip"
    data = bytearray(packed.zipped({"member": TEXT}, zipfile.ZIP_STORED))
    start = data.rindex(b"PK\5\6") + 16  # of the directory, by the record at the end
    data[start : start + 4] = (int.from_bytes(data[start : start + 4], "little") + 1).to_bytes(
        4, "little"
    )
    path.write_bytes(data)
    with pytest.raises(archives.BAD_ZIP), archives.open_zip(path) as archive:
        b"".join(archives.zip_pieces(archive, "member"))


def test_damaged_bzip2_is_a_damaged_archive(tmp_path: Path) -> None:
    """It raises an `OSError` without a number, unlike a disk."""
    path = tmp_path / "a.zip"
    data = packed.zipped({"a": b"text" * 100}, zipfile.ZIP_BZIP2)
    path.write_bytes(data.replace(b"1AY&SY", b"1AY&SX", 1))
    with (
        archives.open_zip(path) as damaged,
        pytest.raises(zipfile.BadZipFile, match="Invalid data"),
    ):
        archives.zip_content(damaged, "a", 1000)


STRAY = [
    "", ".", "..", "/", "/etc/passwd", "a/../b", "../a", "a/..", "a//b", "a/", "./a", "a/./b",
    ".wh.a", "a/.wh.b", "a/.wh..wh..opq", ".wh..wh..opq", ".wh.d/e", "a/.wh.", "a\0b", "a\nb",
    "a/\x1b[2J", "a\x7f", "a\x9b", "x" * 256, "a/" * 2100 + "b",
]  # fmt: skip


@pytest.mark.parametrize("path", STRAY)
def test_stray_paths_are_refused(path: str) -> None:
    assert archives.path_objection(path)
    assert len(archives.path_objection(path)) < 200
    with pytest.raises(BuildError, match="cannot create a layer"):
        layer.clean([Member(path=path)])


@pytest.mark.parametrize(
    "path",
    ["a", ".a", "a/...", "a/.wha", "wh.a", "a.wh.b", "ä/ö", "a b", "a\udcff", "x" * 255, "a:b"],
)
def test_odd_but_clean_paths_are_fine(path: str) -> None:
    assert not archives.path_objection(path)


@given(
    st.lists(st.sampled_from(["a", "b", ".", "..", "", ".wh.a", ".wh..wh..opq", "…"])).map("/".join)
)
def test_what_is_accepted_stays_below_its_root_and_deletes_nothing(path: str) -> None:
    if archives.path_objection(path):
        return
    assert posixpath.normpath(f"/{path}") == f"/{path}"
    assert ".wh." not in path


def paths_of(members: Iterable[Member]) -> list[str]:
    return [m.path for m in layer.clean(members)]


def test_nothing_leads_through_a_link_or_a_file() -> None:
    link = Member(path="a", kind="link", target="/etc")
    for below in ("a/passwd", "a/b/c"):
        with pytest.raises(BuildError, match="leads through 'a', which is not a folder"):
            layer.clean([Member(path=below), link])
    with pytest.raises(BuildError, match="leads through 'f'"):
        layer.clean([Member(path="f"), Member(path="f/g")])
    assert paths_of([Member(path="a-b"), link, Member(path="ab/c")]) == ["a", "a-b", "ab/c"]
    for target in ("", "a\nb", "\x1b"):
        with pytest.raises(BuildError, match="is a link with an invalid target"):
            layer.clean([Member(path="a", kind="link", target=target)])


# --- wheels


@pytest.mark.parametrize(
    "path",
    [
        "pkg/.wh.torch", ".wh..wh..opq", "pkg/a\nb", "x-1.data/data/lib/envbuilder/placed.txt",
        "x-1.data/data/lib/envbuilder/files.jsonl", "x-1.data/data/LIB/EnvBuilder/placed.txt",
        "x-1.data/data/envbuilder.json", "x-1.data/data/pyvenv.cfg", "x-1.data/data/bin/python",
        "x-1.data/scripts/python", "x-1.data/scripts/python3.11", "x-1.data/data/venv/pyvenv.cfg",
        "x-1.data/data/lib/envbuilder",
    ],
)  # fmt: skip
def test_a_wheel_brings_no_file_of_the_build(path: str) -> None:
    with pytest.raises(ValueError, match=r"delete another|not a normalized path|writes itself"):
        wheel_conflicts.contents("x-1", "3.11", [path, "x-1.dist-info/RECORD"], "", "")


def test_a_wheel_brings_no_script_called_python() -> None:
    with pytest.raises(ValueError, match="writes itself"):
        wheel_conflicts.contents("x-1", "3.11", [], "", "[console_scripts]\npython3 = x:main\n")
    assert wheel_conflicts.contents("x-1", "3.11", ["envbuilder/x.py"], "", "")


# --- Debian packages


def package(path: Path, *entries: tuple[str, dict[str, Any]]) -> Path:
    """A .deb with members of any kind."""
    control = debs.tar({"control": b"Package: libx\nVersion: 1\nArchitecture: amd64\n"})
    data = packed.tar(*(packed.entry(name, **facts) for name, facts in entries))
    path.write_bytes(debs.of(control, data))
    return path


def listed(path: Path) -> list[str]:
    file = File(
        kind="deb", name="libx", version="1", file="pool/libx_1_amd64.deb", sha256="0" * 64,
        size=1, source="debian", provenance="read", by="test",
    )  # fmt: skip
    with deb.opened(file, path) as opened:
        return [name for name, _ in archives.members(opened.data(), partial(deb.refused, file))]


LINK = {"type": tarfile.SYMTYPE}
HARD = {"type": tarfile.LNKTYPE}
FOLDER = {"type": tarfile.DIRTYPE}


@pytest.mark.parametrize(
    "entries",
    [
        [("./usr/.wh.bash", {})],
        [("./usr/../../etc/passwd", {})],
        [("usr//x", {})],
        [("./a", {}), ("./a", {})],
        [("./a", FOLDER), ("./a", LINK | {"linkname": "/etc"})],
        [("./null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("./pipe", {"type": tarfile.FIFOTYPE})],
        [("./hard", HARD | {"linkname": "/etc/shadow"})],
        [("./hard", HARD | {"linkname": "./later"}), ("./later", {})],
        [("./link", LINK | {"linkname": "a\nb"})],
        [("./a\nb", {})],
    ],
)
def test_a_member_that_no_image_may_have_is_refused(
    entries: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"libx_1_amd64\.deb: refused"):
        listed(package(tmp_path / "x.deb", *entries))


def test_usual_members_are_listed(tmp_path: Path) -> None:
    entries = [
        ("./", FOLDER), ("./usr/", FOLDER), ("./usr/a", {"size": 3}),
        ("./usr/b", HARD | {"linkname": "./usr/a"}), ("./usr/c", LINK | {"linkname": "a"}),
    ]  # fmt: skip
    assert listed(package(tmp_path / "x.deb", *entries)) == ["usr", "usr/a", "usr/b", "usr/c"]


def test_garbage_is_no_package(tmp_path: Path) -> None:
    whole = debs.deb("libx")
    for content in (b"", b"!<arch>\n", whole[:100], b"PK\x03\x04" + whole):
        (tmp_path / "x.deb").write_bytes(content)
        with pytest.raises(BuildError, match="refused"):
            listed(tmp_path / "x.deb")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"Package": "../../x"}, "policy"),
        ({"Version": ""}, "policy"),
        ({"Package": "liby"}, "its control file is for liby 1"),
        ({"Version": "2"}, "its control file is for libx 2"),
        ({"Architecture": "../../x"}, "architecture"),
    ],
)
def test_what_a_package_says_of_itself_is_checked(fields: dict[str, str], why: str) -> None:
    file = File(
        kind="deb", name="libx", version="1", file="pool/libx_1_amd64.deb", sha256="0" * 64,
        size=1, source="debian", provenance="read", by="test",
    )  # fmt: skip
    stated = {"Package": "libx", "Version": "1", "Architecture": "amd64"}
    deb.require_named(file, stated)
    with pytest.raises(BuildError, match=why):
        deb.require_named(file, {**stated, **fields})


@pytest.mark.parametrize(
    "path",
    [
        "opt/env/lib/x", "opt/envbuilder/payload.pyz", "home/user/.bashrc", "work/x",
        "var/lib/dpkg/info/other.list",
    ],
)  # fmt: skip
def test_no_package_brings_files_of_ours(path: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is in a folder reserved for"):
        found(tmp_path, data={path: b"x"})


def test_new_folders_lie_where_the_bases_links_lead(tmp_path: Path) -> None:
    # In the base, /lib is a link to /usr/lib.
    assert "usr/lib/new/x" in found(tmp_path, data={"lib/new/x": b"x"})


def test_a_path_through_a_file_or_a_dangling_link_of_the_base_is_refused(tmp_path: Path) -> None:
    dangling = Member(path="gone", kind="link", target="/nowhere")
    for at, path in enumerate(("gone/x", "gone/a/x", "etc/passwd/x")):
        (tmp_path / str(at)).mkdir()
        with pytest.raises(BuildError, match="of the base image is not a folder"):
            found(tmp_path / str(at), dangling, data={path: b"x"})
