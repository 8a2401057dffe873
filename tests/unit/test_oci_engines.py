"""Images into an engine: only what it lacks, and never a success that is none."""

from __future__ import annotations

import io
import tarfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder import engine
from envbuilder.errors import BuildError
from envbuilder.oci import archive, engines
from envbuilder.oci.descriptor import INDEX, Index, decode, encode
from envbuilder.oci.layer import Member
from envbuilder.oci.layout import Layout
from tests.unit.images import BASE, image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.oci.descriptor import Manifest


class Engine:
    """Stands in for Docker with its containerd store: keeps blobs, and names images by manifest."""

    def __init__(self) -> None:
        self.blobs: set[str] = set()
        self.sent: list[set[str]] = []
        self.refs: dict[str, str] = {}
        self.api = SimpleNamespace(timeout=60, load_image=self.load_image, get_image=self.get_image)
        self.images = SimpleNamespace(list=self.list, get=self.get)
        self.loses = False
        self.wanted: set[str] = set()
        self.saved = b""

    def load_image(self, pieces: Iterator[bytes], quiet: bool) -> Iterator[dict[str, Any]]:
        assert self.api.timeout > 60, "it unpacks before it answers"
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            self.sent.append({n.rpartition("/")[2] for n in tar.getnames() if "sha256" in n})
            self.blobs |= self.sent[-1]
            stream = tar.extractfile("index.json")
            assert stream is not None
            listed = decode(stream.read(), Index, "index.json").manifests
        for found in listed:
            if not self.wanted <= self.blobs:
                yield {"error": "content digest: not found"}
                return
            if not self.loses:
                self.refs[found.annotations[archive.NAME]] = found.digest
        yield {"stream": "Loaded image"}

    def get_image(self, ref: str) -> Iterator[bytes]:
        yield from (self.saved[i : i + 999] for i in range(0, len(self.saved), 999))

    def list(self) -> list[Any]:
        return [SimpleNamespace(id=i) for i in set(self.refs.values())]

    def get(self, ref: str) -> Any:
        from docker.errors import ImageNotFound

        if ref not in self.refs:
            raise ImageNotFound(ref)
        return SimpleNamespace(id=self.refs[ref], tags=[ref], labels={})


def named(folder: Path, *more: Member, ref: str = "envbuilder/x:1") -> tuple[Layout, Manifest]:
    layout = image(folder, (BASE, more))
    (found,) = layout.index().manifests
    stated = replace(found, annotations=archive.named(ref))
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(stated,)))
    return layout, layout.manifest("linux/amd64")


def hexes(manifest: Manifest) -> set[str]:
    blobs = {manifest.config.digest, *(d.digest for d in manifest.layers)}
    return {b.removeprefix("sha256:") for b in blobs}


def test_what_an_image_of_the_engine_is_made_of_is_not_sent_again(tmp_path: Path) -> None:
    there, made = Engine(), Layout.create(tmp_path / "made")
    first, one = named(tmp_path / "one", Member(path="a", content=b"1"))
    ids = engines.load(there, first, made)
    assert ids == (one.config.digest, first.index().manifests[0].digest)
    second, other = named(tmp_path / "two", Member(path="a", content=b"2"), ref="envbuilder/x:2")
    engines.load(there, second, made)
    base = one.layers[0].digest.removeprefix("sha256:")
    assert base in there.sent[0]
    assert base not in there.sent[1]
    assert hexes(other) - {base} <= there.sent[1]


def test_what_the_engine_dropped_meanwhile_is_sent_after_all(tmp_path: Path) -> None:
    there, made = Engine(), Layout.create(tmp_path / "made")
    first, one = named(tmp_path / "one", Member(path="a", content=b"1"))
    engines.load(there, first, made)
    there.blobs.clear()
    there.wanted = {one.layers[0].digest.removeprefix("sha256:")}
    second, other = named(tmp_path / "two", Member(path="a", content=b"2"), ref="envbuilder/x:2")
    engines.load(there, second, made)
    assert len(there.sent) == 3
    assert hexes(other) <= there.sent[2]


def test_an_engine_that_fails_is_an_error(tmp_path: Path) -> None:
    there = Engine()
    there.wanted = {"missing"}
    layout, _ = named(tmp_path / "one")
    with pytest.raises(BuildError, match="the engine cannot load the image: content digest"):
        engines.load(there, layout, Layout.create(tmp_path / "made"))
    assert there.api.timeout == 60


def test_an_engine_that_says_yes_and_has_nothing_is_an_error(tmp_path: Path) -> None:
    there = Engine()
    there.loses = True
    layout, _ = named(tmp_path / "one")
    with pytest.raises(BuildError, match="the engine has no such image after it was loaded"):
        engines.load(there, layout, Layout.create(tmp_path / "made"))


def test_an_exported_base_is_kept_and_known(tmp_path: Path) -> None:
    there, made = Engine(), Layout.create(tmp_path / "made")
    layout, manifest = named(tmp_path / "base", ref="base:1")
    there.saved = b"".join(archive.pieces(layout))
    digest = layout.index().manifests[0].digest
    there.refs["docker.io/library/base:1"] = digest
    found = engine.Image(id=digest, tags=("base:1",), labels={})
    exported = engines.export(there, found, tmp_path / "bases")
    assert exported.manifest("linux/amd64") == manifest
    there.saved = b""
    assert engines.export(there, found, tmp_path / "bases").folder == exported.folder
    engines.remember(exported, made)
    above, _ = named(tmp_path / "above", Member(path="a"))
    engines.load(there, above, made)
    assert not hexes(manifest) & there.sent[0] - {manifest.config.digest}


def test_a_broken_off_export_leaves_nothing(tmp_path: Path) -> None:
    there = Engine()
    layout, _ = named(tmp_path / "base")
    there.saved = b"".join(archive.pieces(layout))[:5000]
    found = engine.Image(id=f"sha256:{'1' * 64}", tags=(), labels={})
    with pytest.raises(Exception, match="archive"):
        engines.export(there, found, tmp_path / "bases")
    assert list((tmp_path / "bases").iterdir()) == []


def test_an_index_in_the_engine_is_known_by_its_images(tmp_path: Path) -> None:
    there, made = Engine(), Layout.create(tmp_path / "made")
    layout, manifest = named(tmp_path / "base", ref="base:1")
    (found,) = layout.index().manifests
    within = encode(Index(schema_version=2, media_type=INDEX, manifests=(found,)))
    outer = layout.add(within, INDEX)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(outer,)))
    engines.remember(layout, made)
    there.refs["base:1"] = outer.digest
    assert engines._known(there, made) == {d.digest for d in manifest.layers}
