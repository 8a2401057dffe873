"""Unpacking: what needs room, what is reported, and failures of disks."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.bundle import contents, format as form
from envbuilder.bundle.format import Manifest, Part
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.interface import Image
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import transfer
from envbuilder.core import types
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError
from envbuilder.core.settings import Settings
from envbuilder.packages import store
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock, profile as profiles
from tests.support import image_layouts as made
from tests.support.bundles import (
    PROFILE,
    QUIET,
    WHEEL,
    Counting,
    made_of,
    part,
    sha,
    texts_of,
    unpack,
)
from tests.support.engines import FakeEngine
from tests.support.tools import tools


def test_the_result_says_what_was_unpacked(
    bundle: Path, manifest: Manifest, there: Settings
) -> None:
    total = sum(m.size for m in manifest.members)
    with form.opened(bundle) as reader:
        digest = reader.digest
    for _ in range(2):  # also where everything is there already
        progress = Counting()
        taken = contents.unpack(bundle, there, progress, force=False)
        assert progress.tasks == [(f"unpack {len(manifest.members)} members", total, "bytes")]
        assert sum(progress.advanced) == total
        assert (taken.manifest, taken.digest) == (manifest, digest)
        assert (taken.bases, taken.signed) == ((), None)


def test_room_is_needed_for_what_the_store_lacks(
    bundle: Path, manifest: Manifest, there: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[store.Room] = []
    monkeypatch.setattr(contents, "require_rooms", asked.extend)
    Store(there.store_dir).take(sha(WHEEL), [WHEEL])
    unpack(bundle, there)
    lacking = sum(m.size for m in manifest.members) - len(WHEEL)
    assert asked == [store.Room(folder=str(there.cache_dir), bytes=lacking)]


@pytest.mark.parametrize("named", [True, False])
def test_a_full_disk_is_told_by_its_folder(
    named: bool, bundle: Path, there: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, sha256: str, pieces: object) -> None:
        names = [str(tmp_path / "disk/x")] if named else []
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)

    monkeypatch.setattr(Store, "take", full)
    with pytest.raises(BuildError) as raised:
        unpack(bundle, there)
    folder = tmp_path / "disk" if named else there.cache_dir.parent
    assert raised.value.message == f"no space left on the disk of {folder}"


# --- Base images in a bundle: found by digest afterwards, complete or refused


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection, "connect", Mock(side_effect=ToolError("no container engine answers"))
    )


def with_base(found: Settings) -> tuple[types.Digest, tuple[Part, ...]]:
    """A base image as it is kept once it was fetched by its index: that digest, and its parts."""
    scratch = Layout.create(found.cache_dir / "scratch")
    listed = made.multi(scratch)
    layout = Layout.create(transfer.base_folder(found.cache_dir, listed.digest, "linux/amd64"))
    image = made.image(layout, b"layer for amd64")
    layout.add(scratch.blob(listed.digest), listed.media_type)
    wanted = contents.Needed(ref="python:3.11", platform="linux/amd64", digest=listed.digest)
    parts, lacks = contents.bases([wanted], found, QUIET)
    assert lacks == ()
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
    layout = transfer.obtain_base("python:3.11", digest, "linux/amd64", there, QUIET)
    assert str(layout.folder) == base.folder
    assert layout.manifest("linux/amd64").layers
    asked: list[store.Room] = []
    monkeypatch.setattr(contents, "require_rooms", asked.extend)
    assert unpack(path, there).new == 0
    texts = sum(p.member.size for p in parts if not Store.of(there).has(p.member.sha256))
    assert asked == [store.Room(folder=str(there.cache_dir), bytes=texts)]
    assert texts < 5000, "what is there needs no room"


@pytest.mark.usefixtures("no_engine")
def test_an_incomplete_base_image_is_refused(
    parts: tuple[Part, ...], found: Settings, there: Settings, tmp_path: Path
) -> None:
    _, base = with_base(found)
    for left_out in (p for p in base if "blobs" in p.member.path):
        fresh = replace(there, cache_dir=tmp_path / left_out.member.name)
        fewer = (*parts, *(p for p in base if p is not left_out))
        path = tmp_path / "fewer.tar"
        form.write(path, made_of(fewer), fewer, QUIET)
        with pytest.raises(EnvbuilderError, match=r"lacks|missing from the OCI layout"):
            unpack(path, fresh)
        assert not (there.config_dir / "profiles").exists()


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_that_cannot_be_had_is_named(found: Settings) -> None:
    wanted = contents.Needed(ref="python:3.11", platform="linux/amd64")
    said: list[str] = []
    parts, lacks = contents.bases([wanted], found, PlainProgress(said.append))
    assert parts == ()
    assert lacks == ("the base image python:3.11 for linux/amd64",)
    assert said == [f"note: {lacks[0]} is unavailable: no container engine has it"]


class Exporting(FakeEngine):
    """An engine that exports the same image, whatever it is asked for."""

    def save(self, image: Image, folder: Path) -> None:
        self.done.append(f"export {image.id}")
        made.image(Layout.create(folder), b"of the engine")


def test_the_engine_exports_a_base_image_only_if_it_is_not_on_this_disk(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Exporting("python:3.11")
    engine.serve(monkeypatch)
    with_base(found)
    assert engine.done == []
    image = made.image(Layout.create(found.cache_dir / "same"), b"of the engine")
    # As an index is named, of which engines keep the image for this machine alone.
    digest: types.Digest = f"sha256:{'0' * 64}"
    wanted = contents.Needed(ref="python:3.11", platform="linux/amd64", digest=digest)
    absent = contents.Needed(ref="absent:1", platform="linux/amd64")
    parts, lacks = contents.bases([wanted, absent], found, QUIET)
    assert engine.done == ["export sha256:python:3.11"]
    assert image.digest.removeprefix("sha256:") in {p.member.sha256 for p in parts}
    assert lacks == ("the base image absent:1 for linux/amd64",)


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_in_a_folder_needs_no_engine_and_gets_no_name(
    found: Settings, tmp_path: Path
) -> None:
    image = made.image(Layout.create(tmp_path / "layout"), b"layer")
    wanted = contents.Needed(ref=f"oci:{tmp_path / 'layout'}", platform="linux/amd64")
    parts, lacks = contents.bases([wanted], found, QUIET)
    assert lacks == ()
    *_, index = (part.content for part in parts)
    assert image.digest.encode() in index
    assert b"annotations" not in index


def second(settings: Settings, more: str = "", **changes: Any) -> tuple[Part, ...]:
    """The profile `other` and its lock, which has the files of `tiny`'s targets."""
    folder = settings.config_dir / "profiles"
    (folder / "other.yaml").write_text(PROFILE + more)
    lock = profile_lock.load(folder / "locks/tiny.json")
    lock = replace(lock, profile="other", **changes)
    other = profiles.load("other", [folder])
    lock = replace(lock, inputs=profile_lock.inputs_digest(other))
    text = profile_lock.dump(lock).encode()
    return (
        part("profiles/other.yaml", (PROFILE + more).encode(), "profile"),
        part("locks/other.json", text, "lock"),
    )


def test_the_files_of_all_profiles_are_known(parts: tuple[Part, ...], found: Settings) -> None:
    """What one profile needs belongs to the bundle, whichever profile comes last."""
    uv = b"another uv"
    newer = {p: replace(f, sha256=sha(uv), size=len(uv)) for p, f in tools("0.13.9").items()}
    brought = part(f"files/{sha(uv)}", uv, "file")
    both = (*parts, *second(found, tools=newer), brought)
    for names in (("tiny", "other"), ("other", "tiny")):
        contents.check(made_of(both, profiles=names), texts_of(*both))
    with pytest.raises(InvalidError, match=r"locks/other\.json, which belongs to none .*\(tiny\)"):
        contents.check(made_of(both), texts_of(*both))
    without_uv = tuple(p for p in both if p is not brought)
    with pytest.raises(InvalidError, match="lacks files that profile 'other' needs"):
        contents.check(made_of(without_uv, profiles=("tiny", "other")), texts_of(*without_uv))


@pytest.mark.parametrize("managed", [False, True])
def test_an_interpreter_may_come_along_and_must_where_it_is_managed(
    managed: bool, parts: tuple[Part, ...], found: Settings
) -> None:
    (target,) = profile_lock.load(found.config_dir / "profiles/locks/tiny.json").targets
    python = replace(
        target.files[0], kind="python", name="cpython", version="3.11.16", sha256=sha(b"x"), size=1,
        file="20260814/cpython-3.11.16+20260814-x86_64-unknown-linux-gnu-install_only.tar.gz",
    )  # fmt: skip
    more = 'python: {default: "3.11", supported: ["3.11"], managed: true}\n' if managed else ""
    both = (*parts, *second(found, more, targets=(replace(target, interpreter=python),)))
    names = ("tiny", "other")
    brought = (*both, part(f"files/{sha(b'x')}", b"x", "file"))
    contents.check(made_of(brought, profiles=names), texts_of(*brought))
    with pytest.raises(InvalidError, match="'other'") if managed else contextlib.nullcontext():
        contents.check(made_of(both, profiles=names), texts_of(*both))


def test_files_have_the_size_that_their_lock_states(
    parts: tuple[Part, ...], manifest: Manifest
) -> None:
    contents.check(manifest, texts_of(*parts))
    resized = tuple(
        replace(m, size=m.size + 1) if m.sha256 == sha(WHEEL) else m for m in manifest.members
    )
    with pytest.raises(InvalidError, match=f"no lock in the bundle lists files/{sha(WHEEL)}"):
        contents.check(made_of((), members=resized), texts_of(*parts))


@pytest.mark.parametrize(
    "changes", [{"platforms": ("linux/arm64",)}, {"pythons": ("3.12",)}, {"platforms": ()}]
)
def test_a_bundle_has_the_files_of_a_target_it_is_for(
    changes: dict[str, Any], parts: tuple[Part, ...]
) -> None:
    with pytest.raises(InvalidError) as raised:
        contents.check(made_of(parts, **changes), texts_of(*parts))
    assert raised.value.message == "the bundle lacks files that profile 'tiny' needs"
    assert raised.value.hint.startswith("Another program made it, or it was changed.")


def test_nothing_is_left_of_a_check(
    parts: tuple[Part, ...],
    manifest: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    contents.check(manifest, texts_of(*parts))
    with pytest.raises(InvalidError) as raised:
        contents.check(manifest, {**texts_of(*parts), "locks/tiny.json": b"garbage"})
    assert list(scratch.iterdir()) == []
    assert str(scratch) not in raised.value.message + raised.value.hint


# --- what is written


def changed(texts: dict[str, bytes], settings: Settings, *, force: bool = False) -> list[str]:
    drafts = contents.drafts(texts, settings, force=force)
    return [str(d.path.relative_to(settings.config_dir)) for d in drafts]


def test_only_what_differs_is_written(there: Settings) -> None:
    texts = {"profiles/a.yaml": b"a", "profiles/b.yaml": b"b", "locks/a.json": b"{}"}
    everything = ["profiles/a.yaml", "profiles/b.yaml", "profiles/locks/a.json"]
    assert changed(texts, there) == everything
    folder = there.config_dir / "profiles"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_bytes(b"a")
    assert changed(texts, there) == everything[1:]


def test_every_file_in_the_way_is_named(there: Settings) -> None:
    folder = there.config_dir / "profiles"
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / f"{name}.yaml").write_bytes(b"mine")
    texts = {f"profiles/{name}.yaml": b"theirs" for name in "abc"}
    with pytest.raises(InvalidError) as raised:
        contents.drafts(texts, there, force=False)
    assert raised.value.message == (
        f"existing files differ from the bundle's: {folder}/a.yaml, {folder}/b.yaml"
    )
    assert changed(texts, there, force=True) == [f"profiles/{n}.yaml" for n in "abc"]


def test_a_lock_is_there_before_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(contents.files, "save", lambda path, *_: written.append(path.name))
    names = ("b.yaml", "b.json", "a.yaml", "a.conda.json")
    contents.write(contents.Draft(path=tmp_path / name, content=b"") for name in names)
    assert written == ["b.json", "a.conda.json", "b.yaml", "a.yaml"]
