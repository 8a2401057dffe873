"""Cached layers: found by all that determines their bytes, hashed before use, never trusted."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from envbuilder.builds.image import layer_cache, system
from envbuilder.builds.image.layer_cache import LayerCache
from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Layer, Member
from tests.support import packed
from tests.support.packed import Content

INPUTS = {"packages": ["torch"], "python": "3.11"}


class Bench:
    """Caches below one folder, and what they report."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cache"
        self.notes: list[str] = []
        self._written = folder / "written"

    def cache(self, *, fresh: bool = False) -> LayerCache:
        return LayerCache(self.folder, self.notes.append, fresh=fresh)

    def find(self) -> Layer | None:
        return self.cache().find(INPUTS)

    def keep(self, inputs: dict[str, Any] = INPUTS, content: bytes = b"x") -> Layer:
        made = layer.write([Member(path="a", content=content)], self._written, 0)
        assert self.cache().keep(inputs, made, self._written) is made
        assert not self._written.exists()
        return made

    def entries(self) -> list[Path]:
        return sorted((self.folder / "made").iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_layer_is_found_by_its_inputs_whatever_their_order(bench: Bench) -> None:
    assert bench.find() is None
    made = bench.keep()
    bench.keep({**INPUTS, "python": "3.12"}, b"y")
    assert bench.cache().find(dict(reversed(INPUTS.items()))) == made
    assert bench.cache().layout.checked(made.descriptor).stat().st_size == made.size
    assert bench.cache().find({**INPUTS, "more": 1}) is None
    assert bench.notes == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("layer_cache.FORMAT", layer_cache.FORMAT + 1),
        ("layer_cache.compressor", lambda: {"zstd": "1.5.99"}),
    ],
)
def test_a_layer_of_another_format_or_compressor_is_not_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str, value: object
) -> None:
    bench.keep()
    monkeypatch.setattr(f"envbuilder.builds.image.{place}", value)
    assert bench.find() is None


def test_later_versions_find_the_same_entries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all users would make all layers again: `FORMAT` is there to cause that on purpose."""
    monkeypatch.setattr(layer_cache, "FORMAT", 4)
    monkeypatch.setattr(layer_cache, "compressor", lambda: {"zstd": "1.5.7"})
    bench.keep({"python": "3.11"})
    key = hashlib.sha256(b'{"facts":{"python":"3.11"},"format":4,"zstd":"1.5.7"}').hexdigest()
    assert [entry.name for entry in bench.entries()] == [f"{key}.json"]


def test_a_fresh_build_uses_no_layer_and_replaces_it(bench: Bench) -> None:
    bench.keep()
    assert bench.cache(fresh=True).find(INPUTS) is None
    made = bench.keep(content=b"of the fresh build")
    assert bench.find() == made


@pytest.mark.parametrize("damage", [b"", b"!", None])
def test_a_damaged_layer_is_reported_once_and_removed(bench: Bench, damage: bytes | None) -> None:
    made = bench.keep()
    blob = bench.cache().layout.blob(made.digest)
    whole = blob.read_bytes()
    blob.unlink()
    if damage is not None:
        blob.write_bytes(damage and damage + whole[1:])
    assert bench.find() is None
    (note,) = bench.notes
    assert note.startswith("warning: making a layer again: ")
    assert made.digest.removeprefix("sha256:") in note
    assert bench.entries() == []
    assert not blob.exists()
    assert bench.find() is None
    assert len(bench.notes) == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 9, b"\xff"])
def test_a_damaged_entry_is_reported_and_removed_but_no_blob(bench: Bench, text: bytes) -> None:
    made = bench.keep()
    (entry,) = bench.entries()
    entry.write_bytes(text)
    assert bench.find() is None
    assert [str(entry) in note for note in bench.notes] == [True]
    assert bench.entries() == []
    assert bench.cache().layout.blob(made.digest).is_file()


def test_a_result_is_remembered_until_its_entry_is_damaged(bench: Bench) -> None:
    made: list[dict[str, int]] = []

    def make() -> dict[str, int]:
        made.append({"size": len(made)})
        return made[-1]

    def remembered(kind: Any = dict[str, int]) -> Any:
        return bench.cache().remembered(INPUTS, kind, make)

    assert [remembered(), remembered()] == [{"size": 0}, {"size": 0}]
    (entry,) = bench.entries()
    whole = entry.read_bytes()
    for number, text in enumerate((whole.replace(b"0", b"9"), b"", whole[:-1]), 1):
        entry.write_bytes(text)
        assert [remembered(), remembered()] == [{"size": number}, {"size": number}]
    assert remembered(dict[str, str]) == {"size": 4}, "an entry of another type"


def test_a_fresh_cache_makes_what_exists_again(bench: Bench) -> None:
    bench.keep(content=b"of an earlier command")
    assert bench.cache(fresh=True).find(INPUTS) is None
    assert bench.cache(fresh=True).ensure(INPUTS, bench.keep) == bench.find()


EPOCH = 1000


def entry(name: str, time: int, content: Content = b"", **facts: Any) -> Any:
    return packed.entry(name, content, mtime=time, **facts)


LONG = f"usr/{'x' * 150}"
PACKAGES = [
    entry("etc", EPOCH, None),
    entry(LONG, EPOCH - 1, b"content" * 300_000),
    entry("usr/link", EPOCH, "x"),
    entry("usr/newer", EPOCH + 1, b"of a package that sets times itself"),
    entry("usr/none", EPOCH),
]


def settled(blob: Path, data: bytes) -> bytes:
    blob.write_bytes(zstandard.compress(data))
    sent = hashlib.sha256()
    found = b"".join(system._settled(blob, EPOCH, sent))
    assert sent.hexdigest() == hashlib.sha256(data).hexdigest()
    return found


def test_a_layer_without_anything_of_the_engine_stays_as_it_is(tmp_path: Path) -> None:
    plain = packed.tar(*PACKAGES)
    assert settled(tmp_path / "layer", plain) == plain


@pytest.mark.parametrize("moment", [0, EPOCH + 7, 2**33])
def test_what_the_engine_mounted_over_and_when_it_deleted_is_left_out(
    moment: int, tmp_path: Path
) -> None:
    plain = packed.tar(*PACKAGES, entry("var/.wh.gone", 0))
    (first, *rest), late = PACKAGES, EPOCH + 1 + moment
    there = packed.tar(
        first,
        entry("etc/hostname", late),
        entry("run", late, None),
        *rest,
        entry("var/.wh.gone", moment, linkname="left/from/the/one/before"),
    )
    found = settled(tmp_path / "layer", there)
    assert found != there
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        names = archive.getnames()
    assert names == [*(e.name for e, _ in PACKAGES), "var/.wh.gone"]
    length = len(found.rstrip(b"\0"))
    assert found[:length] == settled(tmp_path / "other", plain)[:length]
