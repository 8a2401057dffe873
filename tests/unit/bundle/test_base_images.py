"""Base images in a bundle: found by digest afterwards, complete or refused."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import msgspec
import pytest

from envbuilder.bundle import base_images as images
from envbuilder.bundle import contents
from envbuilder.bundle import write as packing
from envbuilder.containers.engine import connection
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import base_images as bases
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import EnvbuilderError, ToolError
from envbuilder.packages import space
from envbuilder.packages.store import Store
from tests.support import image_layouts as made
from tests.support.bundles import QUIET, made_of, unpack

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.bundle.contents import Part
    from envbuilder.core.settings import Settings


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ToolError("no container engine answers")

    monkeypatch.setattr(connection, "connect", refuse)


def with_base(found: Settings) -> images.Packed:
    """A base image as it is kept once it was fetched by the digest of its index."""
    scratch = Layout.create(found.cache_dir / "scratch")
    listed = made.multi(scratch)
    layout = Layout.create(bases.folder(listed.digest, "linux/amd64", found))
    image = made.image(layout, b"layer for amd64")
    layout.add(scratch.blob(listed.digest), listed.media_type)
    wanted = images.Needed(ref="python:3.11", platform="linux/amd64", digest=listed.digest)
    packed, lacks = images.collect([wanted], found, QUIET)
    assert lacks == ()
    assert packed[0].index.manifests[0].digest == image.digest
    return packed[0]


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_is_found_by_its_digest_afterwards(
    parts: tuple[Part, ...],
    found: Settings,
    there: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    packed = with_base(found)
    parts = (*parts, *contents.of_bases([packed]))
    path = tmp_path / "with.tar"
    packing.write(path, made_of(parts), parts, QUIET)
    (base,) = unpack(path, there).bases
    assert (base.name, base.loaded) == ("docker.io/library/python:3.11", False)
    # No registry is asked: what is there is right.
    layout = bases.obtain("python:3.11", packed.digest, "linux/amd64", there, QUIET)
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
    base = contents.of_bases([with_base(found)])
    for left_out in (p for p in base if "blobs" in p.member.path):
        fresh = msgspec.structs.replace(there, cache_dir=tmp_path / left_out.member.name)
        fewer = (*parts, *(p for p in base if p is not left_out))
        path = tmp_path / "fewer.tar"
        packing.write(path, made_of(fewer), fewer, QUIET)
        with pytest.raises(EnvbuilderError, match=r"lacks|not in the OCI layout"):
            unpack(path, fresh)
        assert not (there.config_dir / "profiles").exists()


@pytest.mark.usefixtures("no_engine")
def test_a_base_image_that_cannot_be_had_is_named(found: Settings) -> None:
    wanted = images.Needed(ref="python:3.11", platform="linux/amd64")
    said: list[str] = []
    packed, lacks = images.collect([wanted], found, PlainProgress(said.append))
    assert packed == ()
    assert lacks == ("the base image python:3.11 for linux/amd64",)
    assert said == [f"note: {lacks[0]} is unavailable: no container engine has it"]
