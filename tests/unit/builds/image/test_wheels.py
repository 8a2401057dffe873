"""Files straight out of a wheel: the same bytes as an installer's, or an error."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.image import wheels
from envbuilder.builds.image.wheels import CUT, LARGE, Wheel, completed, cut, parts
from envbuilder.core import archives
from envbuilder.core.errors import BuildError
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles.lock import File
from tests.support.images import record

NAME = "a-1.0-py3-none-any.whl"
INFO = "a-1.0.dist-info"
RECORD = f"{INFO}/RECORD"


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both libraries that inflate."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
    else:
        pytest.importorskip("isal")
    wheels._zlib.cache_clear()
    yield request.param
    wheels._zlib.cache_clear()


def made(
    folder: Path,
    files: Mapping[str, bytes],
    method: int = zipfile.ZIP_DEFLATED,
    mode: int = 0o644,
    rows: bytes | None = None,
) -> Path:
    path = folder / NAME
    rows = record(INFO, files) if rows is None else rows
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in {**files, RECORD: rows}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = method
            archive.writestr(entry, content)
    return path


def opened(folder: Path, files: Mapping[str, bytes], **facts: Any) -> Wheel:
    """A wheel of these files, open to be read."""
    return Wheel(made(folder, files, **facts), NAME)


def read(wheel: Wheel) -> dict[str, bytes]:
    return {name: b"".join(packed.pieces()) for name, packed in wheel.files.items()}


def names(path: Path) -> set[str]:
    with Wheel(path, NAME) as wheel:
        return {*wheel.files}


def others(wheel: Wheel, folder: Path) -> dict[str, bytes]:
    target = folder / "others.whl"
    wheel.write_others(target)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        return {n: archive.read(n) for n in archive.namelist() if n != RECORD}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_only_metadata_scripts_and_data_are_left_to_the_installer(
    tmp_path: Path, method: int
) -> None:
    large = b"0123456789" * 200_000  # several pieces, packed or not
    plain = {"a/__init__.py": b"", "a/lib.so": large, "b.dist-info": b"x", "c.data.py": b"y"}
    installed = {
        f"{INFO}/METADATA": b"Name: a\n",
        "a-1.0.data/scripts/run": b"#!python\n",
        "other.data/x": b"1",
    }
    with opened(tmp_path, {**plain, **installed}, method=method) as wheel:
        assert read(wheel) == plain
        assert others(wheel, tmp_path) == installed
        assert {n: p.size for n, p in wheel.files.items()} == {n: len(plain[n]) for n in plain}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("more", [0, 1, 100, 257, 500])
def test_the_last_bytes_of_a_file_of_zeros_are_not_lost(tmp_path: Path, more: int) -> None:
    """A match takes so few bits that all input is read before the last output fits."""
    size = archives.PIECE + more
    with opened(tmp_path, {"a/lib.so": bytes(size)}) as wheel:
        pieces = [len(piece) for piece in wheel.files["a/lib.so"].pieces()]
    assert sum(pieces) == size
    assert max(pieces) <= archives.PIECE


def huge(path: Path, size: int) -> None:
    """Write a wheel as the Zip64 format has it: one member of `size` zeros, which is a hole."""
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo("a/huge.so")
        entry.file_size = entry.compress_size = size
        entry.CRC = entry.header_offset = 0
        archive.fp.write(entry.FileHeader(zip64=True))
        archive.fp.seek(size, io.SEEK_CUR)
        archive.start_dir = archive.fp.tell()
        archive.filelist.append(entry)
        archive.NameToInfo[entry.filename] = entry
        # Behind it, so that their headers begin beyond 4 GiB.
        archive.writestr("a/b.py", b"x")
        archive.writestr("a-1.0.data/scripts/run", b"#!python\n")
        rows = f"a/huge.so,sha256=x,{size}\n".encode() + record(INFO, {"a/b.py": b"x"})
        archive.writestr(RECORD, rows)


def extra_fields(path: Path) -> list[bytes]:
    """The extra field of each local header."""
    data = path.read_bytes()
    fields = []
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name, extra = struct.unpack_from("<HH", data, entry.header_offset + 26)
            begin = entry.header_offset + 30 + name
            fields.append(data[begin : begin + extra])
    return fields


def test_members_and_offsets_of_more_than_4_gib_are_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    size = (4 << 30) + 1000
    huge(path, size)
    assert path.stat().st_size > size
    with Wheel(path, NAME) as wheel:
        packed = wheel.files["a/huge.so"]
        assert (packed.size, packed.packed) == (size, size)
        assert wheel.files["a/b.py"].entry.header_offset > size
        assert b"".join(wheel.files["a/b.py"].pieces()) == b"x"
        assert not any(next(packed.pieces()))  # all of them take seconds
        assert others(wheel, tmp_path) == {"a-1.0.data/scripts/run": b"#!python\n"}
        # uv refuses a Zip64 field that is not needed.
        assert extra_fields(tmp_path / "others.whl") == [b"", b""]
        assert f"a/huge.so,sha256=x,{size}" in completed("", wheel.rows).decode()


@pytest.mark.slow
def test_a_wheel_may_have_more_members_than_a_zip_without_zip64(tmp_path: Path) -> None:
    files = dict.fromkeys((f"torch/lib/{'Type_' * 20}{n:06}.co" for n in range(66_000)), b"")
    path = made(tmp_path, files, zipfile.ZIP_STORED)
    assert len(names(path)) == len(files)


@pytest.mark.parametrize(("mode", "executable"), [(0o644, False), (0o755, True), (0o601, True)])
def test_any_right_to_execute_is_kept(tmp_path: Path, mode: int, executable: bool) -> None:
    with opened(tmp_path, {"a/run": b"x"}, mode=mode) as wheel:
        assert wheel.files["a/run"].executable is executable


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a//b", "./a", "a\\b"])
def test_a_path_that_means_another_is_left_to_the_installer(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, {name: b"x"}) as wheel:
        assert wheel.files == {}
        assert others(wheel, tmp_path) == {name: b"x"}


def test_two_files_of_one_name_are_left_to_the_installer(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": b"1", "b.py": b"2"})
    path.write_bytes(path.read_bytes().replace(b"b.py", b"a.py"))
    assert names(path) == set()


@pytest.mark.parametrize(
    "row",
    [
        "",
        "a.py,,",
        "a.py",
        "a.py,sha256=x",
        "a.py,sha256=x,",
        "a.py,,1",
        "a.py,sha256=x,?",
        "a.py,sha256=x,1,more",
        'a.py,"sha256=""",1',
        "a.py,sha256=x,1\na.py,sha256=y,1",
    ],
)
def test_what_the_record_does_not_tell_of_is_left_to_the_installer(
    tmp_path: Path, row: str
) -> None:
    whole = "b.py,sha256=x,1\n"
    path = made(tmp_path, {"a.py": b"1", "b.py": b"1"}, rows=f"{whole}{row}\n".encode())
    assert names(path) == {"b.py"}


def test_names_that_are_quoted_in_records_are_left_to_the_installer(tmp_path: Path) -> None:
    rows = b'"a,b.py",sha256=x,1\n"c""d.py",sha256=x,1\ne f.py,sha256=x,1\n'
    path = made(tmp_path, dict.fromkeys(("a,b.py", 'c"d.py', "e f.py"), b"1"), rows=rows)
    assert names(path) == {"e f.py"}


def test_a_wheel_without_one_record_is_left_to_the_installer(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": b"1"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("b-1.0.dist-info/RECORD", "a.py,sha256=x,1\n")
    assert names(path) == set()


def test_a_record_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, {"a.py": b"1"})
    monkeypatch.setattr(wheel_conflicts, "RECORD_LIMIT", 10)
    with pytest.raises(BuildError, match="RECORD' is larger than"):
        names(path)


@pytest.mark.parametrize("rows", [b"\xff", b'"a' + b"x" * 200_000 + b'",,'])
def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path, rows: bytes) -> None:
    path = made(tmp_path, {"a.py": b"1"}, rows=rows)
    with pytest.raises(BuildError, match="cannot be unpacked"):
        names(path)


def test_letters_of_an_unknown_alphabet_are_left_to_the_installer(tmp_path: Path) -> None:
    path = made(tmp_path, {"a/é.py": b"1", "a/b.py": b"2"})
    assert names(path) == {"a/é.py", "a/b.py"}
    with zipfile.ZipFile(path) as archive:
        flagged = archive.getinfo("a/é.py")
    data = bytearray(path.read_bytes())
    data[flagged.header_offset + 7] &= ~0x08
    at = data.index(b"PK\x01\x02")
    data[at + 9] &= ~0x08
    path.write_bytes(data)
    assert names(path) == {"a/b.py"}


def test_what_cannot_be_inflated_here_is_left_to_the_installer(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": b"1" * 100}, zipfile.ZIP_LZMA)
    with Wheel(path, NAME) as wheel:
        assert wheel.files == {}
        assert others(wheel, tmp_path) == {"a.py": b"1" * 100}


def test_the_headers_of_a_wheel_may_be_longer_than_its_directory_says(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr(RECORD, record(INFO, {"a.py": b"x", "b.py": b"y"}))
        with archive.open("a.py", "w") as out:
            out.write(b"x")
        with archive.open(zipfile.ZipInfo("b.py"), "w", force_zip64=True) as out:
            out.write(b"y")
    with Wheel(tmp_path / NAME, NAME) as wheel:
        assert read(wheel) == {"a.py": b"x", "b.py": b"y"}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("at", range(0, 200, 7))
def test_other_bytes_than_the_directory_says_are_an_error(
    tmp_path: Path, method: int, at: int
) -> None:
    content = bytes(range(256)) * 4
    path = made(tmp_path, {"a.py": content}, method)
    data = bytearray(path.read_bytes())
    data[30 + len("a.py") + at] ^= 0x55
    path.write_bytes(data)
    said = r"a-1\.0-py3-none-any\.whl: cannot be unpacked: a\.py: "
    with Wheel(path, NAME) as wheel, pytest.raises(BuildError, match=said) as caught:
        read(wheel)
    assert caught.value.exit_code == 1
    assert "pin another version" in caught.value.hint


@pytest.mark.usefixtures("library")
def test_more_bytes_than_the_directory_says_are_not_even_passed_on(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": bytes(1000)})
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02") + 24
    path.write_bytes(data[:at] + (10).to_bytes(4, "little") + data[at + 4 :])
    with Wheel(path, NAME) as wheel, pytest.raises(BuildError, match="cannot be unpacked"):
        next(wheel.files["a.py"].pieces())


def test_a_header_somewhere_else_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": b"x"})
    path.write_bytes(path.read_bytes().replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    with Wheel(path, NAME) as wheel, pytest.raises(BuildError, match="there is no file at byte 0"):
        read(wheel)


def test_a_header_before_the_file_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path, {"a.py": b"x"})
    path.write_bytes(path.read_bytes()[10:])  # zipfile: its directory is 10 bytes too early
    with Wheel(path, NAME) as wheel, pytest.raises(BuildError, match="at byte -10"):
        next(wheel.files["a.py"].pieces())


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 100])
def test_what_is_no_wheel_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(BuildError, match="cannot be unpacked"):
        Wheel(tmp_path / NAME, NAME)


def test_a_damaged_script_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path, {f"{INFO}/METADATA": b"Name: a\n" * 10}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"Name: a\nName", b"Name: b\nName", 1))
    with Wheel(path, NAME) as wheel, pytest.raises(BuildError, match=r"METADATA: Bad CRC"):
        wheel.write_others(tmp_path / "others.whl")


@pytest.mark.usefixtures("library")
def test_a_program_is_read_from_the_scripts_of_its_wheel(tmp_path: Path) -> None:
    program = "a-1.0.data/scripts/uv"
    with opened(tmp_path, {program: b"ELF" * 1000}) as wheel:
        assert b"".join(wheel.program("uv").pieces()) == b"ELF" * 1000
        with pytest.raises(BuildError, match="it contains no executable 'uvx'"):
            wheel.program("uvx")
    with (
        opened(tmp_path, {program: b"ELF"}, method=zipfile.ZIP_BZIP2) as wheel,
        pytest.raises(BuildError, match="it contains no executable 'uv'"),
    ):
        wheel.program("uv")


# --- layers of wheels


def wheel(name: str, number: int = 0) -> File:
    return File(
        kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl",
        sha256=f"{number:064x}", size=1, source="default", provenance="read", by="test",
    )  # fmt: skip


TORCH, SYMPY, SIX, TYPING = (
    wheel(n, i) for i, n in enumerate(("torch", "sympy", "six", "typing"), 1)
)
SIZES = {TORCH.sha256: 200 << 20, SYMPY.sha256: LARGE, SIX.sha256: 10, TYPING.sha256: LARGE - 1}


def shares(of: File) -> Sequence[tuple[str, ...]]:
    return [("a", "b"), ("lib.so",)] if of is TORCH else []


def test_the_largest_wheel_is_lowest_and_its_last_files_are_its_highest() -> None:
    found = parts([SIX, SYMPY, TORCH, TYPING], SIZES, shares, room=50)
    assert [(p.reason, p.files, p.without) for p in found] == [
        ("torch 1.0: a to b", ("a", "b"), ()),
        ("torch 1.0: lib.so", ("lib.so",), ()),
        ("torch 1.0", (), ("a", "b", "lib.so")),
        ("sympy 1.0", (), ()),
        ("2 smaller packages", (), ()),
    ]
    assert found[-1].wheels == (SIX, TYPING)


@pytest.mark.parametrize("room", range(-2, 7))
def test_where_room_is_short_shares_stay_together_and_then_wheels(room: int) -> None:
    found = parts([SIX, SYMPY, TORCH], SIZES, shares, room)
    assert len(found) <= max(room, 0) + 1
    assert {w.name for p in found for w in p.wheels} == {"six", "sympy", "torch"}
    if room < 1:
        assert [p.wheels for p in found] == [(SIX, SYMPY, TORCH)]


FILES = st.dictionaries(
    st.text("abcdef/", min_size=1, max_size=6),
    st.integers(0, 2 * CUT) | st.sampled_from([0, 1, CUT - 1, CUT, CUT + 1]),
    max_size=30,
)


def named_once(shares: list[tuple[str, ...]]) -> list[str]:
    """The files of all shares, of which none is in two."""
    named = [name for share in shares for name in share]
    assert len(named) == len({*named})
    return named


@given(FILES, st.sampled_from([1, 3, 1000]))
def test_shares_are_full_but_never_too_full(files: dict[str, int], spread: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheels, "SPREAD", spread)
        limit = CUT * max(1, -(-sum(files.values()) // (spread * CUT)))
        found = list(cut(files))
    assert len(found) <= 2 * spread or spread == 1000
    named = named_once(found)
    assert all(share for share in found)
    for share in found:
        assert len(share) == 1 or sum(files[n] for n in share) <= limit
    left = files.keys() - {*named}
    assert sum(files[n] for n in left) <= limit
    together = [n for share in found if files[share[0]] <= limit for n in share] + sorted(left)
    assert together == sorted(together)
    alone = [files[share[0]] for share in found if files[share[0]] > limit]
    assert alone == sorted(alone)


def test_the_shares_of_torchs_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "CUT", 100)
    files = {"torch/lib/large.so": 400, "torch/a.py": 60, "torch/bin/x": 50, "torch/z.py": 30}
    assert list(cut(files)) == [("torch/a.py",), ("torch/lib/large.so",)]


def rocm() -> dict[str, int]:
    """Files like those of torch's wheel for ROCm: 18 GB, in libraries and folders of kernels."""
    mib = 1 << 20
    files = {f"torch/mod{n:04}.py": 20_000 for n in range(3000)}
    files |= {f"torch/lib/lib{n:02}.so": 90 * mib for n in range(30)}
    files |= {"torch/lib/libtorch_hip.so": 1500 * mib, "torch/lib/libMIOpen.so": 900 * mib}
    for gfx in ("1100", "1101", "1102", "1150", "1200", "1201", "90a", "942", "950"):
        files |= {f"torch/lib/aotriton.images/gfx{gfx}/{n:03}.aks2": 2 * mib for n in range(150)}
        files |= {f"torch/lib/hipblaslt/library/T{n:03}_gfx{gfx}.co": 2 * mib for n in range(400)}
        files |= {f"torch/lib/rocblas/library/T{n:03}_gfx{gfx}.co": mib // 2 for n in range(400)}
    return files


def test_a_huge_wheel_has_no_huge_layer_and_leaves_layers_to_others() -> None:
    files = rocm()
    assert sum(files.values()) > 14 << 30
    found = list(cut(files))
    assert 20 < len(found) < 2 * wheels.SPREAD
    assert max(sum(files[n] for n in share) for share in found if len(share) > 1) <= 5 * CUT
    named = named_once(found)
    assert sum(files[n] for n in files.keys() - {*named}) <= 5 * CUT
    assert found == list(cut(dict(reversed(files.items()))))


def test_the_next_version_of_a_huge_wheel_shares_the_layers_of_folders() -> None:
    """Its libraries change in size, its folders of kernels do not."""
    files = rocm()
    following = {n: size + (9 << 20) * n.endswith(".so") for n, size in files.items()}
    shares = {*cut(files)} & {*cut(following)}
    kept = sum(files[n] for share in shares for n in share if not n.endswith(".so"))
    kernels = sum(files[n] for n in files if "/lib/" in n and not n.endswith(".so"))
    assert kept > kernels * 3 // 4


def test_a_wheel_of_deep_folders_is_cut_too() -> None:
    files = {f"{'a/' * 1100}{n}": 2 * CUT for n in range(40)}
    assert len(list(cut(files))) < 40
