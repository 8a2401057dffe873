"""Writing a bundle: what is reported, and failures of disks and parts."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.bundle import format as form
from envbuilder.bundle import write as packing
from envbuilder.bundle.contents import Part
from envbuilder.core import files
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.packages import space
from tests.support.bundles import QUIET, made_of, part, sha

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b"x" * 700
SMALL = part("wheels/a-1-py3-none-any.whl", b"a wheel", "wheel")


def on_disk(path: Path, content: bytes = CONTENT) -> Part:
    """A part whose content is a file; what the file holds may differ."""
    path.write_bytes(content)
    return Part(member=part(f"files/{sha(CONTENT)}", CONTENT, "file").member, content=path)


class Counting(PlainProgress):
    """Notes its tasks and how far they came."""

    def __init__(self) -> None:
        super().__init__(lambda line: None)
        self.tasks: list[tuple[str, int | None, str]] = []
        self.advanced: list[int] = []

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Any]:
        self.tasks.append((name, total, unit))
        yield self

    def advance(self, amount: int) -> None:
        self.advanced.append(amount)


def test_it_reports_bytes_and_returns_the_manifests_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_CHUNK", 300)
    parts = (SMALL, on_disk(tmp_path / "content"))
    manifest, progress = made_of(parts), Counting()
    path = tmp_path / "x.tar"
    digest = packing.write(path, manifest, parts, progress)
    assert digest == sha(form.encode(manifest))
    assert path.read_bytes().startswith(form.manifest_name(digest).encode())
    assert progress.tasks == [("write x.tar", 707, "bytes")]
    assert progress.advanced == [7, 300, 300, 100]


def test_the_disk_that_is_written_to_needs_room_for_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[space.Room] = []
    monkeypatch.setattr(space, "require_rooms", asked.extend)
    monkeypatch.chdir(tmp_path)
    parts = (SMALL, on_disk(tmp_path / "content"))
    packing.write(Path("x.tar"), made_of(parts), parts, QUIET)
    assert asked == [space.Room(folder=str(tmp_path), bytes=707)]


@pytest.mark.parametrize("content", [CONTENT[1:], CONTENT + b"x", b"y" + CONTENT[1:], b""])
def test_a_changed_file_is_named_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    changed = on_disk(tmp_path / "content", content)
    with pytest.raises(BuildError) as raised:
        packing.write(tmp_path / "x.tar", made_of((changed,)), (changed,), QUIET)
    path = changed.member.path
    assert raised.value.message == (
        f"{path} (a part): was changed or is damaged: expected sha256 {sha(CONTENT)}, found"
        f" {sha(content)}"
    )
    assert raised.value.hint == f"Remove {changed.content}, then run the same command again."


def test_bytes_that_differ_from_the_manifest_are_refused(tmp_path: Path) -> None:
    """Also if only the size is another: the manifest would be wrong."""
    member = msgspec.structs.replace(SMALL.member, size=8)
    with pytest.raises(BuildError, match="was changed or is damaged") as raised:
        packing.write(tmp_path / "x.tar", made_of((), members=(member,)), (SMALL,), QUIET)
    assert raised.value.hint == ""
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    gone = on_disk(tmp_path / "content")
    (tmp_path / "content").unlink()
    with pytest.raises(BuildError) as raised:
        packing.write(tmp_path / "x.tar", made_of((gone,)), (gone,), QUIET)
    assert raised.value.message == f"{gone.content}: cannot be read: No such file or directory"


def test_a_file_that_cannot_be_made_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"/file/x\.tar: ") as raised:
        packing.write(tmp_path / "file" / "x.tar", made_of((SMALL,)), (SMALL,), QUIET)
    assert "--output" in raised.value.hint


def test_a_disk_that_fills_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(out: object, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "put", full)
    with pytest.raises(BuildError) as raised:
        packing.write(tmp_path / "x.tar", made_of((SMALL,)), (SMALL,), QUIET)
    assert raised.value.message == f"no space left on the disk that holds {tmp_path}"
    assert raised.value.hint == "Name a file on another disk with --output."
    assert list(tmp_path.iterdir()) == []
