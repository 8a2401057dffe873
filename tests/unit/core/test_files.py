"""Files appear whole, and nothing that was put in the way is written through."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from envbuilder.core import decoding, files, resources, yaml_files
from envbuilder.core.errors import BuildError
from envbuilder.core.files import cached
from tests.support.folders import names_in


def write(path: Path, content: bytes, then: BaseException | None = None) -> None:
    with files.appearing(path) as out:
        files.write_all(out, content)
        if then:
            raise then


@contextlib.contextmanager
def umasked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_the_mode_is_the_usual_one_or_a_private_one(tmp_path: Path) -> None:
    with umasked(0o022):
        files.write(tmp_path / "usual", b"x")
        files.write(tmp_path / "private", b"x", files.PRIVATE)
        files.save(tmp_path / "saved", b"x", BuildError, "")
        write(tmp_path / "large", b"x")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "usual": 0o644, "saved": 0o644, "large": 0o644, "private": 0o600,
    }  # fmt: skip


def test_why_a_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(BuildError) as caught:
        files.save(path, b"x", BuildError, "Choose another path.")
    assert caught.value.message == f"{path}: cannot be written: Is a directory"
    assert caught.value.hint == "Choose another path."
    assert names_in(tmp_path) == {"folder"}


def test_of_two_writers_the_second_is_refused(tmp_path: Path) -> None:
    with files.appearing(tmp_path / "out") as out:
        files.write_all(out, b"first")
        with pytest.raises(BuildError, match="out: another process is writing to this file"):
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
    with monkeypatch.context() as watched:
        watched.setattr(files.os, "open", noting)
        for _ in range(3):
            files.write(tmp_path / "file", b"x")
    assert len(set(names)) == 3
    assert names_in(tmp_path) == {"file"}


def of_another_user(part: Path, theirs: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    part.write_bytes(theirs.read_bytes())
    os.chown(part, 54321, 54321)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(lambda part, theirs: part.symlink_to(theirs), id="link"),
        pytest.param(lambda part, theirs: part.symlink_to(theirs.with_name("new")), id="dangling"),
        pytest.param(lambda part, theirs: os.link(theirs, part), id="hard link"),
        pytest.param(lambda part, theirs: os.mkfifo(part), id="pipe"),
        pytest.param(lambda part, theirs: part.mkdir(), id="folder"),
        pytest.param(of_another_user, id="of another user"),
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
    with pytest.raises(BuildError, match=r"out\.tar\.part: already exists and is not"):
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


def test_only_a_folder_that_was_made_here_is_marked(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    assert not files.is_marked(files.ensure_folder(theirs))
    ours = files.ensure_folder(tmp_path / "above/ours")
    assert files.is_marked(files.ensure_folder(ours))
    assert not files.is_marked(ours.parent)
    assert not files.is_marked(files.ensure_folder(tmp_path / "plain", marked=False))
    with pytest.raises(FileExistsError):
        files.ensure_folder(ours / files.MARKER)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(lambda marker, right: marker.symlink_to(right), id="link"),
        pytest.param(lambda marker, right: os.mkfifo(marker), id="pipe"),
        pytest.param(lambda marker, right: marker.mkdir(), id="folder"),
        pytest.param(lambda marker, right: marker.write_bytes(right.read_bytes()[1:]), id="cut"),
    ],
)
def test_what_looks_like_a_marker_is_none(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    ours = files.ensure_folder(tmp_path / "ours")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    plant(theirs / files.MARKER, ours / files.MARKER)
    assert not files.is_marked(theirs)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_folders_are_closed_to_others_and_so_are_those_above_that_are_new(
    tmp_path: Path, umask: int
) -> None:
    with umasked(umask):
        folder = files.ensure_folder(tmp_path / "above/ours/within", marked=False)
        marked = files.ensure_folder(tmp_path / "above/marked")
        below = files.ensure_folder(marked / "below")
    assert {mode(p) for p in (folder, *list(folder.parents)[:2], marked, below)} == {0o700}


def test_a_folder_within_one_that_was_opened_is_open_too(tmp_path: Path) -> None:
    ours = files.ensure_folder(tmp_path / "ours")
    ours.chmod(0o777)
    with umasked(0o077):
        below = files.ensure_folder(ours / "below")
    assert mode(below) == 0o755
    assert mode(files.ensure_folder(below / "again", marked=False)) == 0o755


def test_a_folder_whose_marker_cannot_be_written_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        files, "mark_folder", Mock(side_effect=OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        files.ensure_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("at", [".", "a", "a/b"])
def test_a_link_on_the_way_is_not_followed(tmp_path: Path, at: str) -> None:
    target = tmp_path / "target"
    (target / "a/b/c").mkdir(parents=True)
    root = tmp_path / "root"
    root.mkdir()
    if at == ".":
        root.rmdir()
        root.symlink_to(target)
    else:
        (root / at).parent.mkdir(parents=True, exist_ok=True)
        (root / at).symlink_to(target / at)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        files.remove(root / "a/b/c", root)
    assert (target / "a/b/c").is_dir()


def test_links_go_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    for link in (root / "link", root / "a/link", root / "a/b/link"):
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
    real = shutil.rmtree
    left = ["a"]

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
    work = tmp_path / "build/a b"
    (work / "home").mkdir(parents=True)
    (work / "home/precious").touch()
    escaped = str(work).replace(" ", "\\040")
    table = f"36 35 98:0 / / rw - ext4 a rw\n41 36 98:0 /x {escaped}/home rw,noatime - ext4 a rw\n"
    monkeypatch.setattr(files, "mount_table", lambda: table)
    with pytest.raises(OSError, match=r"a file system is mounted at .*/a b/home"):
        files.remove(work, tmp_path)
    assert (work / "home/precious").exists()
    (tmp_path / "build/next to it").mkdir()
    files.remove(tmp_path / "build/next to it", tmp_path)
    assert [path.name for path in work.parent.iterdir()] == [work.name]


class Source:
    """Counts how often its value is made."""

    def __init__(self, value: dict[str, str]) -> None:
        self.value = value
        self.made = 0

    def __call__(self) -> dict[str, str]:
        self.made += 1
        return self.value


def test_a_value_is_made_once(tmp_path: Path) -> None:
    source = Source({"a": "1"})
    for _ in range(3):
        assert cached(tmp_path / "entry", dict[str, str], source) == {"a": "1"}
    assert source.made == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content.replace(b"1", b"2", 1),
        lambda content: content.partition(b"\n")[2],
        lambda content: b"\xff" * 100,
    ],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: object) -> None:
    entry = tmp_path / "entry"
    source = Source({"a": "1"})
    cached(entry, dict[str, str], source)
    assert callable(damage)
    entry.write_bytes(damage(entry.read_bytes()))
    assert cached(entry, dict[str, str], source) == {"a": "1"}
    assert cached(entry, dict[str, str], source) == {"a": "1"}
    assert source.made == 2


def test_what_cannot_be_written_is_made_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = Source({"a": "1"})
    for _ in range(2):
        assert cached(tmp_path / "file/entry", dict[str, str], source) == {"a": "1"}
    assert source.made == 2


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 0 KiB") as caught:
        files.read(tmp_path / "a", 4)
    assert caught.value.errno == errno.EFBIG


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "pipe", 5)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mock:
    """What parses YAML, where `tmp_path` is the folder of the shipped profiles."""
    monkeypatch.setattr(resources, "profiles_dir", lambda: tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    parser = Mock(side_effect=yaml_files.load)
    monkeypatch.setattr(yaml_files, "load", parser)
    return parser


def test_a_shipped_file_is_parsed_once(parsed: Mock, tmp_path: Path) -> None:
    path = tmp_path / "names/a.yaml"
    for text in ("a: [1, '2', null]\n", "a: [1, '2', null, true]\n"):
        data = decoding.parse_yaml(text, "a.yaml")
        parsed.reset_mock()
        assert files.parse_shipped(text, path) == files.parse_shipped(text, path) == data
        assert parsed.call_count == 1
    for damaged in (b"", b"{", b"[]", b'{"of": 1}'):
        (tmp_path / "names/__pycache__/a.yaml.json").write_bytes(damaged)
        assert files.parse_shipped(text, path) == data


@pytest.mark.parametrize("why", ["a day", "no folder can be made", "the interpreter keeps none"])
def test_what_cannot_be_kept_is_parsed_again(
    parsed: Mock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    text = "a: 1\n"
    if why == "a day":
        text = "a: 2026-11-22\n"
    elif why == "no folder can be made":
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "denied")))
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first = files.parse_shipped(text, tmp_path / "a.yaml")
    assert files.parse_shipped(text, tmp_path / "a.yaml") == first
    assert parsed.call_count == 2
    assert not (tmp_path / "__pycache__").is_dir()


def test_the_users_own_files_are_kept_nowhere_else(parsed: Mock, tmp_path: Path) -> None:
    other = tmp_path.with_name("other")
    assert files.parse_shipped("a: 1\n", other / "a.yaml") == {"a": 1}
    assert not other.exists()
