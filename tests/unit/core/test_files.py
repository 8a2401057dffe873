"""Files appear whole, and nothing that was put in the way is written through."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import files
from envbuilder.core.errors import BuildError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write(path: Path, content: bytes, then: BaseException | None = None) -> None:
    with files.appearing(path) as out:
        files.put(out, content)
        if then:
            raise then


def test_a_file_being_written_has_a_name(tmp_path: Path) -> None:
    """Messages about a full disk name it."""
    with files.appearing(tmp_path / "file") as out:
        assert str(out.name) == str(tmp_path / ".file.part")


def test_the_mode_is_the_usual_one_or_a_private_one(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write(tmp_path / "usual", b"x")
        files.write(tmp_path / "private", b"x", files.PRIVATE)
        files.save(tmp_path / "saved", b"x", BuildError, "")
        files.save(tmp_path / "privately", b"x", BuildError, "", mode=files.PRIVATE)
        write(tmp_path / "large", b"x")
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "usual": 0o644, "saved": 0o644, "large": 0o644, "private": 0o600, "privately": 0o600,
    }  # fmt: skip


def test_a_file_that_is_rewritten_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o664)
    link.symlink_to("file")
    before = os.umask(0o077)
    try:
        files.rewrite(link, b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert link.is_symlink()
    assert names_in(tmp_path) == {"file", "link"}


def test_only_a_file_that_exists_is_rewritten(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.rewrite(tmp_path / "file", b"new")
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("what", "problem"),
    [("", "cannot be written"), ("the report", "the report cannot be written")],
)
def test_why_a_file_cannot_be_written(tmp_path: Path, what: str, problem: str) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(BuildError) as caught:
        files.save(path, b"x", BuildError, "Choose another path.", *filter(None, [what]))
    assert caught.value.message == f"{path}: {problem}: Is a directory"
    assert caught.value.hint == "Choose another path."
    assert names_in(tmp_path) == {"folder"}


def test_folders_above_a_file_are_created(tmp_path: Path) -> None:
    files.write(tmp_path / "a" / "b" / "small", b"x")
    write(tmp_path / "c" / "d" / "large", b"x")
    assert (tmp_path / "a" / "b" / "small").read_bytes() == b"x"
    assert (tmp_path / "c" / "d" / "large").read_bytes() == b"x"


def test_of_two_writers_the_second_is_refused(tmp_path: Path) -> None:
    with files.appearing(tmp_path / "out") as out:
        files.put(out, b"first")
        with pytest.raises(BuildError, match="out: another process is writing it"):
            write(tmp_path / "out", b"second")
    assert (tmp_path / "out").read_bytes() == b"first"
    assert names_in(tmp_path) == {"out"}


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    (tmp_path / "file").symlink_to(theirs)
    files.write(tmp_path / "file", b"new")
    assert theirs.read_bytes() == b"theirs"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_no_name_of_a_partial_file_can_be_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def noting(path: Path, flags: int, mode: int) -> int:
        names.append(path.name)
        assert flags & os.O_EXCL
        assert flags & os.O_NOFOLLOW
        return real(path, flags, mode)

    real = os.open
    monkeypatch.setattr(files.os, "open", noting)
    for _ in range(3):
        files.write(tmp_path / "file", b"x")
    assert len(set(names)) == 3
    assert names_in(tmp_path) == {"file"}


def link(part: Path, theirs: Path) -> None:
    part.symlink_to(theirs)


def dangling(part: Path, theirs: Path) -> None:
    part.symlink_to(theirs.with_name("new"))


def hard_link(part: Path, theirs: Path) -> None:
    os.link(theirs, part)


def pipe(part: Path, theirs: Path) -> None:
    os.mkfifo(part)


def folder(part: Path, theirs: Path) -> None:
    part.mkdir()


def other_user(part: Path, theirs: Path) -> None:
    part.write_bytes(b"theirs")
    os.chown(part, 54321, 54321)


@pytest.mark.parametrize(
    "plant",
    [
        link,
        dangling,
        hard_link,
        pipe,
        folder,
        pytest.param(
            other_user,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away"),
        ),
    ],
)
def test_what_was_planted_is_neither_followed_nor_overwritten(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    part = tmp_path / ".out.tar.part"
    plant(part, theirs)
    before = part.lstat()
    with pytest.raises(BuildError, match=r"out\.tar\.part: exists, and is not"):
        write(tmp_path / "out.tar", b"ours")
    assert part.lstat() == before
    assert theirs.read_bytes() == b"theirs"
    assert names_in(tmp_path) == {"theirs", part.name}


def test_the_rest_of_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".out.part").write_bytes(b"x" * 100)
    write(tmp_path / "out", b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert names_in(tmp_path) == {"out"}


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", b"half", KeyboardInterrupt())
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names_in(tmp_path) == {"out"}


OUTPUT = b'{"schema": 2, "status": "verified"}'


@pytest.mark.parametrize("content", [None, b"", b'{"schema": 1}', OUTPUT])
def test_an_output_replaces_an_earlier_one(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    if content is not None:
        path.write_bytes(content)
    files.save_output(path, OUTPUT, BuildError, "Name another.")
    assert path.read_bytes() == OUTPUT


@pytest.mark.parametrize("content", [b"-----BEGIN PRIVATE KEY-----", b'{"name": "mine"}', b"notes"])
def test_an_output_replaces_nothing_else(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(content)
    (tmp_path / "link.json").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("out.json", "link.json", "pipe.json"):
        with pytest.raises(InvalidError, match=f"{name}: exists, and is another kind of file"):
            files.save_output(tmp_path / name, OUTPUT, BuildError, "Name another.")
    assert path.read_bytes() == content
    with pytest.raises(BuildError, match="cannot be written"):
        files.save_output(path / "below", OUTPUT, BuildError, "Name another.")
