"""What an engine has of an image: its layers, by few questions about images."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.engine import stored
from envbuilder.containers.oci.descriptor import (
    INDEX,
    LAYER,
    MANIFEST,
    Descriptor,
    Index,
    Manifest,
    encode,
)
from envbuilder.containers.oci.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core import types

MB = 1 << 20


def layer(number: int, size: int) -> Descriptor:
    return Descriptor(media_type=LAYER, digest=f"sha256:{number:064x}", size=size)


TORCH, COMPILER, SMALL, PAYLOAD = (
    layer(1, 500 * MB),
    layer(2, 100 * MB),
    layer(3, 31 * MB),
    layer(4, MB),
)


def image(*layers: Descriptor) -> Manifest:
    config = Descriptor(media_type="application/json", digest=f"sha256:{0:064x}", size=1)
    return Manifest(schema_version=2, media_type=MANIFEST, config=config, layers=layers)


class Engine:
    """Has some images, and notes what it was asked for."""

    receives_layers = True

    def __init__(self, *present: types.Digest, **named: types.Digest) -> None:
        self.present = {digest: digest for digest in present} | named
        self.questions: list[str] = []

    def image(self, ref: str) -> Any:
        self.questions.append(ref)
        return SimpleNamespace(id=self.present[ref]) if ref in self.present else None

    def layers(
        self, recorded: Layout, manifest: Manifest, *names: str, preload: str = ""
    ) -> set[types.Digest]:
        engine: Any = self
        return stored.layers(engine, recorded, manifest, names, preload)


@pytest.fixture
def recorded(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "recorded")


def record(recorded: Layout, *layers: Descriptor, age: int = 0) -> types.Digest:
    """Record an image; return its digest."""
    digest = recorded.add(encode(image(*layers)), MANIFEST).digest
    os.utime(recorded.blob(digest), (10**9 - age, 10**9 - age))
    return digest


def digests(*layers: Descriptor) -> set[types.Digest]:
    return {found.digest for found in layers}


WHOLE = image(TORCH, COMPILER, SMALL, PAYLOAD)


def test_what_has_the_name_comes_first_and_is_enough_if_it_lacks_little(recorded: Layout) -> None:
    replaced = record(recorded, TORCH, COMPILER, PAYLOAD)
    other = record(recorded, SMALL)
    engine = Engine(other, latest=replaced)
    assert engine.layers(recorded, WHOLE, "new", "latest") == digests(TORCH, COMPILER, PAYLOAD)
    assert engine.questions == ["new", "latest"]


def test_images_with_most_of_what_is_lacking_are_asked_for_next(recorded: Layout) -> None:
    compiler = record(recorded, COMPILER)
    torch = record(recorded, TORCH, PAYLOAD)
    record(recorded, layer(9, 900 * MB))
    engine = Engine(compiler, torch)
    assert engine.layers(recorded, WHOLE) == digests(TORCH, COMPILER, PAYLOAD)
    assert engine.questions == [torch, compiler]


def test_of_equals_the_latest_is_asked_for_first(recorded: Layout) -> None:
    ages = {age: record(recorded, TORCH, layer(100 + age, 1), age=age) for age in (2, 0, 1)}
    engine = Engine(ages[2])
    assert engine.layers(recorded, image(TORCH)) == digests(TORCH)
    assert engine.questions == [ages[0], ages[1], ages[2]]


def test_the_questions_end(recorded: Layout) -> None:
    last = [record(recorded, TORCH, layer(100 + age, 1), age=age) for age in range(20)][-1]
    engine = Engine(last)
    assert engine.layers(recorded, image(TORCH)) == set()
    assert len(engine.questions) == stored._QUESTIONS


def test_nothing_is_asked_for_what_is_sent_in_no_time(recorded: Layout) -> None:
    record(recorded, SMALL, PAYLOAD)
    engine = Engine()
    assert engine.layers(recorded, image(SMALL)) == set()
    assert engine.questions == []


def test_preloaded_layers_are_all_that_is_asked_for(recorded: Layout) -> None:
    ahead, other = record(recorded, TORCH), record(recorded, COMPILER)
    engine = Engine(other, ahead=ahead)
    assert engine.layers(recorded, WHOLE, "latest", preload="ahead") == digests(TORCH)
    assert engine.questions == ["ahead"]


def test_an_engine_that_reads_what_it_lacks_is_asked_for_nothing(recorded: Layout) -> None:
    engine = Engine(record(recorded, TORCH))
    engine.receives_layers = False
    assert engine.layers(recorded, WHOLE, "latest") == set()
    assert engine.questions == []


def test_an_index_stands_for_its_recorded_images(recorded: Layout) -> None:
    held = recorded.add(encode(image(TORCH)), MANIFEST)
    elsewhere = Descriptor(media_type=MANIFEST, digest=f"sha256:{7:064x}", size=7)
    index = Index(schema_version=2, media_type=INDEX, manifests=(held, elsewhere))
    outer = recorded.add(encode(index), INDEX).digest
    assert Engine(base=outer).layers(recorded, WHOLE, "base") == digests(TORCH)
    assert Engine(outer).layers(recorded, WHOLE) == digests(TORCH)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x00", b'{"layers": 1}', b"{}", b"[" * 9999])
def test_other_blobs_are_no_images(content: bytes, recorded: Layout) -> None:
    digest = recorded.add(content, "x").digest
    engine = Engine(named=digest)
    assert engine.layers(recorded, WHOLE, "named") == set()
    assert engine.questions == ["named"]


def test_an_id_that_is_no_digest_is_of_no_recorded_image(recorded: Layout) -> None:
    assert Engine(odd="1234").layers(recorded, WHOLE, "odd") == set()


def test_nothing_needs_to_be_recorded(tmp_path: Path) -> None:
    """The folder of layers appears with the first of them."""
    assert Engine().layers(Layout(tmp_path / "none"), WHOLE) == set()
