"""Unpacking: what needs room, what is reported, and failures of disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.bundle import collect
from envbuilder.bundle import format as form
from envbuilder.bundle import unpack as unpacking
from envbuilder.containers.engine import connection
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import base_images as bases
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, EnvbuilderError, ToolError
from envbuilder.core.settings import Configuration, Signatures
from envbuilder.packages import space
from envbuilder.packages.store import Store
from tests.support import absence, signing
from tests.support import image_layouts as made
from tests.support.bundles import QUIET, WHEEL, made_of, sha, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.bundle.format import Manifest, Part
    from envbuilder.core import types
    from envbuilder.core.settings import Settings


class Counting(PlainProgress):
    """Notes its tasks and how far they came."""

    def __init__(self) -> None:
        super().__init__(lambda line: None)
        self.tasks: list[tuple[str, int | None, str]] = []
        self.done = 0

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Any]:
        self.tasks.append((name, total, unit))
        yield self

    def advance(self, amount: int) -> None:
        self.done += amount


def test_the_result_says_what_was_unpacked(
    bundle: Path, manifest: Manifest, there: Settings
) -> None:
    total = sum(m.size for m in manifest.members)
    with form.opened(bundle) as reader:
        digest = reader.digest
    for _ in range(2):  # also where everything is there already
        progress = Counting()
        taken = unpacking.unpack(bundle, there, progress, force=False)
        assert progress.tasks == [(f"unpack {len(manifest.members)} members", total, "bytes")]
        assert progress.done == total
        assert (taken.manifest, taken.digest) == (manifest, digest)
        assert (taken.bases, taken.signed) == ((), None)


def test_texts_larger_than_a_piece_arrive_whole(
    bundle: Path, there: Settings, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "_CHUNK", 16)
    unpack(bundle, there)
    for name in ("tiny.yaml", "locks/tiny.json"):
        written = there.config_dir / "profiles" / name
        assert written.read_bytes() == (found.config_dir / "profiles" / name).read_bytes()


def test_room_is_needed_for_what_the_store_lacks(
    bundle: Path, manifest: Manifest, there: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[space.Room] = []
    monkeypatch.setattr(space, "require_rooms", asked.extend)
    Store(there.store_dir).take(sha(WHEEL), [WHEEL])
    unpack(bundle, there)
    lacking = sum(m.size for m in manifest.members) - len(WHEEL)
    assert asked == [space.Room(folder=str(there.cache_dir), bytes=lacking)]


def test_nothing_is_read_into_the_store_without_room(
    bundle: Path, there: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = (space.Disk(folder="/", free=10, needed=10**9),)
    monkeypatch.setattr(space, "disks", lambda rooms: full if [*rooms] else ())
    with pytest.raises(BuildError, match="not enough space"):
        unpack(bundle, there)
    assert not there.config_dir.parent.exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_full_disk_is_told_by_its_folder(
    named: bool, bundle: Path, there: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, sha256: str, pieces: object) -> None:
        names = [str(tmp_path / "disk" / "x")] if named else []
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)

    monkeypatch.setattr(Store, "take", full)
    with pytest.raises(BuildError) as raised:
        unpack(bundle, there)
    folder = tmp_path / "disk" if named else there.cache_dir.parent
    assert raised.value.message == f"no space left on the disk that holds {folder}"


def test_profiles_come_last(bundle: Path, there: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a bundle that was broken off is not taken for a whole one."""

    def refuse(drafts: object) -> None:
        assert Store(there.store_dir).sound(sha(WHEEL))
        raise BuildError("no room for profiles")

    monkeypatch.setattr(unpacking, "write", refuse)
    with pytest.raises(BuildError, match="no room for profiles"):
        unpack(bundle, there)


def packed(document: Any, parts: Sequence[Part]) -> bytes:
    """A bundle of this manifest and these parts, whether or not they belong together."""
    text = json.dumps(document).encode()
    members = [(form.manifest_name(sha(text)), text)]
    members += [(p.member.path, content_of(p)) for p in parts]
    pieces = [form.header(n, len(c)) + c + form.padding(len(c)) for n, c in members]
    return b"".join([*pieces, form.END])


def content_of(part: Part) -> bytes:
    return part.content if isinstance(part.content, bytes) else part.content.read_bytes()


def accepts(content: bytes, tmp_path: Path, settings: Settings) -> bool:
    """Whether an empty machine unpacks a bundle; anything but a refusal fails the test."""
    path, home = tmp_path / "some.tar", Path(tempfile.mkdtemp(dir=tmp_path))
    path.write_bytes(content)
    folders = {"config_dir": home / "1", "cache_dir": home / "2", "data_dir": home / "3"}
    try:
        unpack(path, replace(settings, **folders))
    except EnvbuilderError:
        assert not (home / "1").exists()
        return False
    return True


@pytest.mark.parametrize("fault", ["", "damaged", "unsigned"])
def test_a_bundle_that_lacks_a_part_is_not_judged_better(
    fault: str, parts: tuple[Part, ...], manifest: Manifest, there: Settings, tmp_path: Path
) -> None:
    """A part is lacking in the manifest, among the members, or in both."""
    ordered = [next(p for p in parts if p.member == member) for member in manifest.members]
    if fault == "damaged":
        wrong = next(n for n, p in enumerate(ordered) if p.member.sha256 == sha(WHEEL))
        ordered[wrong] = replace(ordered[wrong], content=WHEEL[:-1] + b"?")
    if fault == "unsigned":
        key = signing.lay_key(tmp_path / "key.pem").with_suffix(".pub")
        required = Configuration(signatures=Signatures(bundles=(str(key),)))
        there = replace(there, configuration=required)
    document = json.loads(form.encode(manifest))
    assert accepts(packed(document, ordered), tmp_path, there) == (not fault)
    for name, lacking in absence.without_each(document):
        assert not accepts(packed(lacking, ordered), tmp_path, there), name
    accepted = set()
    for number, part in enumerate(ordered):
        fewer = [p for p in ordered if p is not part]
        assert not accepts(packed(document, fewer), tmp_path, there), part.member.path
        members = [m for n, m in enumerate(document["members"]) if n != number]
        if accepts(packed(document | {"members": members}, fewer), tmp_path, there):
            accepted.add(part.member.kind)
    # envbuilder's own wheel, for pip: `unbundle` runs without it.
    assert accepted == (set() if fault else {"wheel"})


# --- Base images in a bundle: found by digest afterwards, complete or refused


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ToolError("no container engine answers")

    monkeypatch.setattr(connection, "connect", refuse)


def with_base(found: Settings) -> tuple[types.Digest, tuple[Part, ...]]:
    """A base image as it is kept once it was fetched by its index: that digest, and its parts."""
    scratch = Layout.create(found.cache_dir / "scratch")
    listed = made.multi(scratch)
    layout = Layout.create(bases.folder(listed.digest, "linux/amd64", found))
    image = made.image(layout, b"layer for amd64")
    layout.add(scratch.blob(listed.digest), listed.media_type)
    wanted = collect.Needed(ref="python:3.11", platform="linux/amd64", digest=listed.digest)
    parts, lacks = collect.bases([wanted], found, QUIET)
    assert lacks == ()
    assert isinstance(parts[-1].content, bytes)
    assert image.digest.encode() in parts[-1].content, "the index is the last"
    return listed.digest, parts


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_is_found_by_its_digest_afterwards(
    parts: tuple[Part, ...],
    found: Settings,
    there: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    digest, base_parts = with_base(found)
    parts = (*parts, *base_parts)
    path = tmp_path / "with.tar"
    form.write(path, made_of(parts), parts, QUIET)
    (base,) = unpack(path, there).bases
    assert (base.name, base.loaded) == ("docker.io/library/python:3.11", False)
    # No registry is asked: what is there is right.
    layout = bases.obtain("python:3.11", digest, "linux/amd64", there, QUIET)
    assert str(layout.folder) == base.folder
    assert layout.manifest("linux/amd64").layers
    asked: list[space.Room] = []
    monkeypatch.setattr(space, "require_rooms", asked.extend)
    assert unpack(path, there).new == 0
    texts = sum(p.member.size for p in parts if not Store.of(there).has(p.member.sha256))
    assert asked == [space.Room(folder=str(there.cache_dir), bytes=texts)]
    assert texts < 5000, "what is there needs no room"


@pytest.mark.usefixtures("no_engine")
def test_an_incomplete_base_image_is_refused(
    parts: tuple[Part, ...], found: Settings, there: Settings, tmp_path: Path
) -> None:
    _, base = with_base(found)
    for left_out in (p for p in base if "blobs" in p.member.path):
        fresh = msgspec.structs.replace(there, cache_dir=tmp_path / left_out.member.name)
        fewer = (*parts, *(p for p in base if p is not left_out))
        path = tmp_path / "fewer.tar"
        form.write(path, made_of(fewer), fewer, QUIET)
        with pytest.raises(EnvbuilderError, match=r"lacks|not in the OCI layout"):
            unpack(path, fresh)
        assert not (there.config_dir / "profiles").exists()


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_that_cannot_be_had_is_named(found: Settings) -> None:
    wanted = collect.Needed(ref="python:3.11", platform="linux/amd64")
    said: list[str] = []
    parts, lacks = collect.bases([wanted], found, PlainProgress(said.append))
    assert parts == ()
    assert lacks == ("the base image python:3.11 for linux/amd64",)
    assert said == [f"note: {lacks[0]} is unavailable: no container engine has it"]
