"""A .deb is read without a library that hangs on some, and without any program."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from envbuilder.core.errors import BuildError
from envbuilder.packages.debian import deb
from tests.support import debs


def read(path: Path) -> tuple[dict[str, bytes], list[str]]:
    with deb.open_deb(path, BuildError) as package:
        files = {name: content for name, (content, _) in package.control().items()}
        return files, [member.name for member in package.data()]


def part(name: str, content: bytes, size: int | None = None) -> bytes:
    size = len(content) if size is None else size
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(BuildError) as caught:
        read(path)
    return caught.value.message


def test_both_archives_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(debs.deb("x", control_files={"md5sums": b"m"}))
    files, names = read(tmp_path / "x.deb")
    assert files.keys() == {"control", "md5sums"}
    assert names == ["./usr/share/x"]


def test_zstd_needs_no_program(tmp_path: Path) -> None:
    control = debs.tar({"control": b"Package: x\n"})
    data = debs.tar({"a": b"1"})
    parts = part("debian-binary", b"2.0\n") + part("control.tar", control)
    whole = b"!<arch>\n" + parts + part("data.tar.zst", zstandard.compress(data))
    (tmp_path / "x.deb").write_bytes(whole)
    assert read(tmp_path / "x.deb")[1] == ["./a"]


def test_a_part_of_negative_size_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    data = b"!<arch>\n" + part("debian-binary", b"2.0\n", -60)
    assert "damaged" in refused(tmp_path / "x.deb", data)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.deb"
    control = debs.tar({"md5sums": b""})
    assert "no control.tar" in refused(path, b"!<arch>\n")
    assert "no control file" in refused(path, b"!<arch>\n" + part("control.tar", control))
    assert "more than 16 parts" in refused(path, b"!<arch>\n" + part("x", b"") * 20)
    assert "damaged" in refused(path, b"!<arch>\n" + part("control.tar", b"", 10**9))


def test_a_control_file_cannot_take_all_memory(tmp_path: Path) -> None:
    control = zstandard.compress(debs.tar({"control": bytes(20 << 20)}))
    data = b"!<arch>\n" + part("control.tar.zst", control)
    assert "more than the limit" in refused(tmp_path / "x.deb", data)
