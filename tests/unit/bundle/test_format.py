"""The bytes of a bundle are determined by its manifest; no path in it leads elsewhere."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.bundle import format as form
from envbuilder.bundle.format import Manifest, Part
from envbuilder.core import files
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.packages import store
from tests.support.bundles import QUIET, WHEEL, Counting, made_of, part, read, sha

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789._+-", min_size=1, max_size=200)


@given(st.sampled_from(["", "wheels/", "bases/blobs/sha256/"]), NAMES, st.integers(0, 2**40))
def test_any_header_is_what_tar_reads(folder: str, name: str, size: int) -> None:
    path = f"{folder}{name.strip('.') or 'x'}"
    head = form.header(path, size)
    assert len(head) % form.BLOCK == 0
    with tarfile.open(fileobj=io.BytesIO(head + form.END), mode="r:") as archive:
        member = archive.next()
    assert (member.name, member.size, member.isreg()) == (path, size, True)
    assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)


def test_a_bundle_is_a_plain_tar(bundle: Path, parts: tuple[Part, ...]) -> None:
    with tarfile.open(bundle, "r:") as archive:
        names = archive.getnames()
        itself = archive.extractfile("wheels/envbuilder_ml-1-py3-none-any.whl")
        assert itself.read() == b"itself"
    assert names[0].startswith("manifest-")
    assert names[1:] == [
        "profiles/_mine.yaml", "profiles/tiny.yaml", "locks/tiny.json",
        "wheels/envbuilder_ml-1-py3-none-any.whl",
        *sorted(f"files/{sha(c)}" for c in (WHEEL, b"linux/amd64")),
    ]  # fmt: skip
    assert read(bundle)[f"files/{sha(WHEEL)}"] == WHEEL


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("../x.yaml", "profile"),
        ("profiles/../x.yaml", "profile"),
        ("profiles/x.yaml", "lock"),
        ("locks/a/b.json", "lock"),
        ("locks/a.other.json", "lock"),
        ("wheels/../../a.whl", "wheel"),
        (f"files/{'0' * 64}", "file"),
        ("datasets/mnist/train-images-idx3-ubyte", "dataset"),
        (f"bases/blobs/sha256/{'0' * 64}", "base"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str, kind: Any) -> None:
    assert form.problem(made_of((part(path, b"x", kind),)))


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", ".", "..", "a/../b", "./a", "a//b", "a/", "a/.", "a/..", "a\nb", "C:\\x", "$x",
     "a" * 300, ""],
)  # fmt: skip
def test_a_file_of_a_project_stays_in_it(path: str) -> None:
    named = part(f"project/{path}", b"x", "project")
    assert "not a valid path" in form.problem(of_project(named))


def of_project(*parts: Part) -> form.Manifest:
    return made_of(parts, schema=form.WITH_PROJECT, environment="default")


def test_files_of_a_project_have_any_other_name() -> None:
    names = ("envbuilder.yaml", "a b/données.txt", ".hidden", "..a", "a..", "reqs/x.in")
    assert form.problem(of_project(*(part(f"project/{n}", b"x", "project") for n in names))) == ""
    both = (part("project/a", b"x", "project"), part("project/a/b", b"x", "project"))
    assert "'project/a' is both a file and a folder" in form.problem(of_project(*both))


def test_what_types_cannot_say() -> None:
    good = part(f"files/{sha(b'x')}", b"x", "file")
    other = part(f"files/{sha(b'y')}", b"y", "file")
    assert form.problem(made_of((good, other))) == ""
    assert form.problem(made_of((part("locks/x.conda.json", b"x", "lock"),))) == ""
    assert "twice" in form.problem(made_of((good, good)))
    backwards = tuple(reversed(made_of((good, other)).members))
    assert "order" in form.problem(made_of((), members=backwards))
    assert len(form.problem(made_of((part("x" * 9_999, b"", "file"),)))) < 200


def test_a_member_is_no_larger_than_a_locked_file_can_be() -> None:
    huge = msgspec.structs.replace(part(f"files/{sha(b'x')}", b"x", "file").member, size=2**63)
    with pytest.raises(
        InvalidError, match=r"members\.0\.size: expected a whole number <= 68719476736"
    ):
        form.parse(form.encode(made_of((), members=(huge,))), "x.tar")


def test_a_manifest_has_the_same_bytes_everywhere() -> None:
    assert form.encode(made_of((), lacks=("für arm64",))).decode() == (
        '{\n "schema": 2,\n "made_by": "a test",\n "profiles": [\n  "tiny"\n ],\n "platforms": [\n'
        '  "linux/amd64"\n ],\n "pythons": [\n  "3.11"\n ],\n "lacks": [\n  "für arm64"\n ],\n'
        ' "members": []\n}\n'
    )


# --- Reading a bundle: every refusal names the part, and the manifest is checked beyond its types


ONE = part(f"files/{sha(b'x' * 700)}", b"x" * 700, "file")
OTHER = part("wheels/a-1-py3-none-any.whl", b"a wheel", "wheel")


def manifest_bytes(text: bytes) -> bytes:
    name = form.manifest_name(sha(text))
    return form.header(name, len(text)) + text + form.padding(len(text))


def whole(*parts: Part, manifest: Manifest | None = None) -> bytes:
    pieces = [manifest_bytes(form.encode(manifest or made_of(parts)))]
    by_path = {p.member.path: p for p in parts}
    for member in form.order(p.member for p in parts):
        content = by_path[member.path].content
        pieces += [form.header(member.path, member.size), content, form.padding(member.size)]
    return b"".join([*pieces, form.END])


def reader(data: bytes) -> form.Reader:
    return form.Reader(io.BytesIO(data), Path("x.tar"))


def test_members_are_read_or_skipped_as_often_as_asked() -> None:
    opened = reader(whole(ONE, OTHER))
    assert opened.digest == sha(form.encode(opened.manifest))
    for _ in range(2):
        counted: list[int] = []
        contents = {}
        for member, content in opened.members(counted.append):
            if member.kind == "wheel":
                contents[member.path] = b"".join(content)
        assert contents == {OTHER.member.path: b"a wheel"}
        assert counted == [7, 700]


def read_all(data: bytes, *, skip: bool = False) -> None:
    for _, content in reader(data).members():
        if not skip:
            list(content)


def refused(data: bytes, error: type[EnvbuilderError] = BuildError, *, skip: bool = False) -> str:
    with pytest.raises(error) as raised:
        read_all(data, skip=skip)
    if error is BuildError:
        assert raised.value.hint.startswith(
            "The bundle was damaged in transit or changed: copy it again"
        )
    return raised.value.message


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    members = [part(f"files/{sha(c)}", c, "file") for c in (b"", b"x" * 700, b"y" * 512)]
    members.append(part(f"wheels/{'w' * 120}.whl", b"z" * 100, "wheel"))
    intact = whole(*members)
    at = data.draw(st.integers(0, len(intact) - 1))
    changed = bytearray(intact)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EnvbuilderError) as caught:
        read_all(bytes(changed))
    assert caught.value.exit_code == (
        2 if "not an envbuilder bundle" in caught.value.message else 1
    )


@given(st.data())
def test_no_missing_or_added_end_goes_unnoticed(data: st.DataObject) -> None:
    intact = whole(ONE)
    read_all(intact)
    cut = intact[: data.draw(st.integers(0, len(intact) - 1))]
    for wrong in (cut, intact + data.draw(st.binary(min_size=1, max_size=2000))):
        with pytest.raises(EnvbuilderError):
            read_all(wrong)


def test_what_is_damaged_is_named() -> None:
    good = whole(ONE)
    path = ONE.member.path
    start = good.index(b"x" * 700)
    changed = good[:start] + b"y" + good[start + 1 :]
    assert refused(changed) == (
        f"x.tar: damaged: {path} (a part): expected sha256 {sha(b'x' * 700)}, found"
        f" {sha(b'y' + b'x' * 699)}"
    )
    cut = f"x.tar: damaged: {path}: the bundle ends in the middle of this member"
    assert refused(good[: start + 9]) == cut
    assert refused(good[: start + 699], skip=True) == cut
    for inside in (start - 1, start + 700):  # its header, its padding
        assert refused(good[:inside] + b"y" + good[inside + 1 :]) == f"x.tar: damaged: {path}"
    for end in (good[:-1], good + b"\0", good[:-1] + b"x"):
        assert refused(end) == "x.tar: damaged: its end"


def test_a_damaged_manifest_is_named() -> None:
    good = whole(ONE)
    manifest = form.BLOCK, form.BLOCK + len(form.encode(made_of((ONE,)))) - 1
    for at in (*manifest, 200, manifest[1] + 1):  # its text, its header, its padding
        changed = good[:at] + b"\1" + good[at + 1 :]
        assert refused(changed) == "x.tar: damaged: its manifest"
    largest = form.header(form.manifest_name("a" * 64), form.LARGEST_MANIFEST + 1)
    assert refused(largest) == "x.tar: damaged: its manifest"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "x.tar: its manifest is not valid JSON: "),
        (b"1", "x.tar: bundle schema None is not supported"),
        (
            b'{"schema": 99}',
            "x.tar: bundle schema 99 is not supported (supported: 2 and 3)",
        ),
        (b'{"schema": 2}', "x.tar: "),
    ],
)
def test_what_is_no_manifest_is_refused(text: bytes, reason: str) -> None:
    message = refused(manifest_bytes(text) + form.END, InvalidError)
    assert message.startswith(reason)
    assert "None: " not in message


def test_no_kind_of_text_may_be_large() -> None:
    """Profiles and locks are read into memory."""

    def sized(path: str, kind: Any, size: int) -> form.Member:
        return msgspec.structs.replace(part(path, b"", kind).member, size=size)

    large = sized("locks/x.json", "lock", form.LARGEST_TEXT + 1)
    wrong = form.problem(made_of((), members=(large,)))
    assert wrong == f"locks/x.json is too large: {form.LARGEST_TEXT + 1} bytes"
    many = tuple(sized(f"locks/x{n}.json", "lock", form.LARGEST_TEXT - n) for n in range(5))
    assert "bytes together" in form.problem(made_of((), members=many))
    assert form.problem(made_of((), members=many[:4])) == ""
    large = sized(f"files/{sha(b'')}", "file", form.LARGEST_TEXTS + 1)
    assert form.problem(made_of((), members=(large,))) == ""


# --- the file itself


class Failing(io.BytesIO):
    """A file on a disk that fails once the manifest was read."""

    broken = False

    def read(self, size: int | None = -1) -> bytes:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(size)


def test_a_failing_disk_is_told() -> None:
    disk = Failing(whole(ONE))
    opened = form.Reader(disk, Path("x.tar"))
    disk.broken = True
    with pytest.raises(BuildError, match=r"x\.tar: cannot be read: Input/output error"):
        list(opened.members())


def test_what_cannot_be_opened_or_is_a_pipe_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with (
            pytest.raises(InvalidError, match=f"{path}: cannot be read: [A-Z]"),
            form.opened(path),
        ):
            pass
    receiving, sending = os.pipe()
    try:
        with (
            pytest.raises(InvalidError, match="a pipe cannot be checked"),
            form.opened(Path(f"/dev/fd/{receiving}")),
        ):
            pass
    finally:
        os.close(receiving)
        os.close(sending)


# --- Writing a bundle: what is reported, and failures of disks and parts


CONTENT = b"x" * 700
SMALL = part("wheels/a-1-py3-none-any.whl", b"a wheel", "wheel")


def on_disk(path: Path, content: bytes = CONTENT) -> Part:
    """A part whose content is a file; what the file holds may differ."""
    path.write_bytes(content)
    return Part(member=part(f"files/{sha(CONTENT)}", CONTENT, "file").member, content=path)


def test_it_reports_bytes_and_returns_the_manifests_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "_CHUNK", 300)
    parts = (SMALL, on_disk(tmp_path / "content"))
    manifest = made_of(parts)
    progress = Counting()
    path = tmp_path / "x.tar"
    digest = form.write(path, manifest, parts, progress)
    assert digest == sha(form.encode(manifest))
    assert path.read_bytes().startswith(form.manifest_name(digest).encode())
    assert progress.tasks == [("write x.tar", 707, "bytes")]
    assert progress.advanced == [7, 300, 300, 100]


def test_the_disk_that_is_written_to_needs_room_for_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[store.Room] = []
    monkeypatch.setattr(form, "require_rooms", asked.extend)
    monkeypatch.chdir(tmp_path)
    parts = (SMALL, on_disk(tmp_path / "content"))
    form.write(Path("x.tar"), made_of(parts), parts, QUIET)
    assert asked == [store.Room(folder=str(tmp_path), bytes=707)]


@pytest.mark.parametrize("content", [CONTENT[1:], CONTENT + b"x", b"y" + CONTENT[1:], b""])
def test_a_changed_file_is_named_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    changed = on_disk(tmp_path / "content", content)
    with pytest.raises(BuildError) as raised:
        form.write(tmp_path / "x.tar", made_of((changed,)), (changed,), QUIET)
    path = changed.member.path
    assert raised.value.message == (
        f"{path} (a part) was changed or damaged: expected sha256 {sha(CONTENT)}, found"
        f" {sha(content)}"
    )
    assert raised.value.hint == f"Remove {changed.content}, then run the same command again."


def test_bytes_that_differ_from_the_manifest_are_refused(tmp_path: Path) -> None:
    """Also if only the size is another: the manifest would be wrong."""
    member = msgspec.structs.replace(SMALL.member, size=8)
    with pytest.raises(BuildError, match="was changed or damaged") as raised:
        form.write(tmp_path / "x.tar", made_of((), members=(member,)), (SMALL,), QUIET)
    assert raised.value.hint == ""
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    gone = on_disk(tmp_path / "content")
    (tmp_path / "content").unlink()
    with pytest.raises(BuildError) as raised:
        form.write(tmp_path / "x.tar", made_of((gone,)), (gone,), QUIET)
    assert raised.value.message == f"{gone.content}: cannot be read: No such file or directory"


def test_a_disk_that_fills_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        files, "write_all", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    )
    with pytest.raises(BuildError) as raised:
        form.write(tmp_path / "x.tar", made_of((SMALL,)), (SMALL,), QUIET)
    assert raised.value.message == f"no space left on the disk of {tmp_path}"
    assert raised.value.hint == "Use --output to name a file on another disk."
    assert list(tmp_path.iterdir()) == []
