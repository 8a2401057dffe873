"""Folders get a marker when they are made, and only then; none is removed through a link."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import files

if TYPE_CHECKING:
    from collections.abc import Callable


def test_only_a_folder_that_was_made_here_is_marked(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    assert not files.is_marked(files.ensure_folder(theirs))
    ours = files.ensure_folder(tmp_path / "above" / "ours")
    assert files.is_marked(files.ensure_folder(ours))
    assert not files.is_marked(ours.parent)
    assert not files.is_marked(files.ensure_folder(tmp_path / "plain", marked=False))
    with pytest.raises(FileExistsError):
        files.ensure_folder(ours / files.MARKER)


def marker_link(marker: Path, right: Path) -> None:
    marker.symlink_to(right)


def marker_pipe(marker: Path, right: Path) -> None:
    os.mkfifo(marker)


def marker_folder(marker: Path, right: Path) -> None:
    marker.mkdir()


def marker_of_others(marker: Path, right: Path) -> None:
    marker.write_bytes(right.read_bytes()[1:])


@pytest.mark.parametrize("plant", [marker_link, marker_pipe, marker_folder, marker_of_others])
def test_what_looks_like_a_marker_is_none(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    ours, theirs = files.ensure_folder(tmp_path / "ours"), tmp_path / "theirs"
    theirs.mkdir()
    plant(theirs / files.MARKER, ours / files.MARKER)
    assert not files.is_marked(theirs)


def test_a_link_to_a_folder_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "file").touch()
    assert [n for n in ("folder", "link", "file", "none") if files.is_folder(tmp_path / n)] == [
        "folder"
    ]


def test_folders_that_another_process_creates_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    files.ensure_folder(tmp_path / "a" / "b")
    files.ensure_folder(tmp_path / "a" / "b")
    files.ensure_folder(tmp_path / "a" / "c")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b", "c"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_folders_are_closed_to_others_and_so_are_those_above_that_are_new(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        folder = files.ensure_folder(tmp_path / "above" / "ours" / "within", marked=False)
        marked = files.ensure_folder(tmp_path / "above" / "marked")
        below = files.ensure_folder(marked / "below")
    finally:
        os.umask(before)
    assert {mode(p) for p in (folder, *list(folder.parents)[:2], marked, below)} == {0o700}


def test_a_folder_within_one_that_was_opened_is_open_too(tmp_path: Path) -> None:
    ours = files.ensure_folder(tmp_path / "ours")
    ours.chmod(0o777)
    before = os.umask(0o077)
    try:
        below = files.ensure_folder(ours / "below")
    finally:
        os.umask(before)
    assert mode(below) == 0o755
    assert mode(files.ensure_folder(below / "again", marked=False)) == 0o755


def test_the_mode_of_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o750)
    assert mode(files.ensure_folder(tmp_path / "theirs")) == 0o750


def test_a_folder_whose_marker_cannot_be_written_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "mark_folder", full)
    with pytest.raises(OSError, match="No space left"):
        files.ensure_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("at", [".", "a", "a/b"])
def test_a_link_on_the_way_is_not_followed(tmp_path: Path, at: str) -> None:
    target = tmp_path / "target"
    (target / "a" / "b" / "c").mkdir(parents=True)
    root = tmp_path / "root"
    root.mkdir()
    if at == ".":
        root.rmdir()
        root.symlink_to(target)
    else:
        (root / at).parent.mkdir(parents=True, exist_ok=True)
        (root / at).symlink_to(target / at)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        files.remove(root / "a" / "b" / "c", root)
    assert (target / "a" / "b" / "c").is_dir()


def test_links_go_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    for link in (root / "link", root / "a" / "link", root / "a" / "b" / "link"):
        link.symlink_to(theirs)
    files.remove(root / "link", root)
    files.remove(root / "a", root)
    assert list(root.iterdir()) == []
    assert (theirs / "file").read_text() == "theirs"


@pytest.mark.parametrize("aside", ["", ".x.partial"])
def test_what_a_kill_leaves_of_a_folder_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: str
) -> None:
    folder = tmp_path / "x" if aside else files.ensure_folder(tmp_path / "x")
    for name in ("a", "b", "c"):
        (folder / name).mkdir(parents=True)
    real, left = shutil.rmtree, ["a"]

    def killed(path: str, dir_fd: int) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        files.remove(folder, tmp_path, *filter(None, [aside]))
    (rest,) = tmp_path.iterdir()
    assert rest.name == (aside or "x")
    assert files.is_marked(rest)
    assert len(list(rest.iterdir())) == 3
    monkeypatch.undo()
    files.remove(rest, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_which_something_is_mounted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "build" / "a b"
    (work / "home").mkdir(parents=True)
    (work / "home" / "precious").touch()
    escaped = str(work).replace(" ", "\\040")
    table = f"36 35 98:0 / / rw - ext4 a rw\n41 36 98:0 /x {escaped}/home rw,noatime - ext4 a rw\n"
    monkeypatch.setattr(files, "mount_table", lambda: table)
    with pytest.raises(OSError, match=r"something is mounted at .*/a b/home"):
        files.remove(work, tmp_path)
    assert (work / "home" / "precious").exists()
    (tmp_path / "build" / "next to it").mkdir()
    files.remove(tmp_path / "build" / "next to it", tmp_path)
    assert [path.name for path in work.parent.iterdir()] == [work.name]


def test_mounts_elsewhere_do_not_matter(tmp_path: Path) -> None:
    table = "".join(
        f"41 36 98:0 / {point} rw - ext4 a rw\n" for point in ("/", tmp_path, f"{tmp_path}/ab/c")
    )
    assert files.mounts_below(tmp_path / "a", f"{table}short line\n") == []


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="Linux only")
def test_the_mount_table_has_the_root() -> None:
    assert "/" in [line.split(" ")[4] for line in files.mount_table().splitlines()]


def test_a_system_without_a_mount_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "read_bytes", missing)
    assert files.mount_table() == ""
