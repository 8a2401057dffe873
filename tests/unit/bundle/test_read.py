"""Reading a bundle: every refusal names the part, and the manifest is checked beyond its types."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.bundle import format as form
from envbuilder.bundle import read as reading
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from tests.support.bundles import made_of, part, sha

if TYPE_CHECKING:
    from envbuilder.bundle.contents import Part
    from envbuilder.bundle.format import Manifest

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
        assert isinstance(content, bytes)
        pieces += [form.header(member.path, member.size), content, form.padding(member.size)]
    return b"".join([*pieces, form.END])


def reader(data: bytes) -> reading.Reader:
    return reading.Reader(io.BytesIO(data), Path("x.tar"))


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


def test_a_member_of_which_a_part_was_taken_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK", 300)
    counted: list[int] = []
    for member, content in reader(whole(ONE, OTHER)).members(counted.append):
        assert next(content) == {OTHER.member.path: b"a wheel"}.get(member.path, b"x" * 300)
    assert counted == [7, 300, 400]


def test_large_members_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK", 300)
    for _, content in reader(whole(ONE)).members():
        assert [len(c) for c in content] == [300, 300, 100]


def read_all(data: bytes, *, skip: bool) -> None:
    for _, content in reader(data).members():
        if not skip:
            list(content)


def refused(data: bytes, error: type[EnvbuilderError] = BuildError, *, skip: bool = False) -> str:
    with pytest.raises(error) as raised:
        read_all(data, skip=skip)
    if error is BuildError:
        assert raised.value.hint.startswith("It was damaged in transit or changed: copy it again")
    return raised.value.message


def test_what_is_damaged_is_named() -> None:
    good = whole(ONE)
    path, start = ONE.member.path, good.index(b"x" * 700)
    changed = good[:start] + b"y" + good[start + 1 :]
    assert refused(changed) == (
        f"x.tar: damaged: {path} (a part): expected sha256 {sha(b'x' * 700)}, found"
        f" {sha(b'y' + b'x' * 699)}"
    )
    cut = f"x.tar: damaged: {path}: the bundle ends in the middle of it"
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


def test_a_manifest_may_be_as_large_as_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(form.encode(made_of((ONE,))))
    monkeypatch.setattr(form, "LARGEST_MANIFEST", size)
    assert reader(whole(ONE)).manifest == made_of((ONE,))
    monkeypatch.setattr(form, "LARGEST_MANIFEST", size - 1)
    assert refused(whole(ONE)) == "x.tar: damaged: its manifest"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("../x.yaml", "profile"), ("profiles/../x.yaml", "profile"), ("wheels//etc/x.whl", "wheel")],
)
def test_paths_that_lead_elsewhere_are_refused_when_a_manifest_is_read(
    path: str, kind: Any
) -> None:
    """In a bundle that is otherwise sound."""
    evil = part(path, b"evil", kind)
    message = refused(whole(evil), InvalidError)
    assert message.startswith(f"x.tar: its manifest is invalid: {path!r} is not a valid path")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "x.tar: its manifest is not valid JSON: "),
        (b"[]", "x.tar: bundle schema None is not known"),
        (b"1", "x.tar: bundle schema None is not known"),
        (
            b'{"schema": 99}',
            "x.tar: bundle schema 99 is not known to this envbuilder (it knows 2 and 3)",
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

    for path, kind in (("profiles/x.yaml", "profile"), ("locks/x.json", "lock")):
        large = sized(path, kind, form.LARGEST_TEXT + 1)
        wrong = form.problem(made_of((), members=(large,)))
        assert wrong == f"{path} is too large: {form.LARGEST_TEXT + 1} bytes"
        many = tuple(
            sized(path.replace("x", f"x{n}"), kind, form.LARGEST_TEXT - n) for n in range(5)
        )
        assert "bytes together" in form.problem(made_of((), members=many))
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
    opened = reading.Reader(disk, Path("x.tar"))
    disk.broken = True
    with pytest.raises(BuildError, match=r"x\.tar: cannot be read: Input/output error"):
        list(opened.members())


def test_what_cannot_be_opened_or_is_a_pipe_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with (
            pytest.raises(InvalidError, match=f"{path}: cannot be read: [A-Z]"),
            reading.opened(path),
        ):
            pass
    receiving, sending = os.pipe()
    try:
        with (
            pytest.raises(InvalidError, match="a pipe cannot be checked"),
            reading.opened(Path(f"/dev/fd/{receiving}")),
        ):
            pass
    finally:
        os.close(receiving)
        os.close(sending)


def test_an_open_bundle_is_closed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(whole(ONE))
    with reading.opened(path) as opened:
        stream = opened._stream
    assert stream.closed
