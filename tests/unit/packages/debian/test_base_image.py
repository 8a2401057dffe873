"""Which packages an image has, by its layers or by the engine that holds it."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import (
    CONFIG,
    LAYER,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    encode,
    oci_platform,
)
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.packages.debian import base_image
from tests.support import debs
from tests.support.engines import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

STATUS = "var/lib/dpkg/status"
Members = list[tuple[str, bytes | str | None]]


def says(*names: str) -> bytes:
    return "\n".join(
        f"Package: {n}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
        for n in names
    ).encode()


def layout(folder: Path, *layers: Members) -> Layout:
    made = Layout.create(folder)
    blobs = []
    for number, members in enumerate(layers):
        packed = gzip.compress(debs.layer(folder / "x.tar", members).read_bytes(), mtime=number)
        blobs.append(made.add(packed, f"{LAYER}+gzip"))
    config = made.add(b'{"os":"linux","architecture":"amd64"}', CONFIG)
    manifest = Manifest(schema_version=2, config=config, layers=tuple(blobs))
    found = made.add(
        encode(manifest),
        MANIFEST,
        platform=oci_platform("linux/amd64"),
    )
    made.write_index(Index(schema_version=2, manifests=(found,)))
    return made


def names(made: Layout) -> list[str]:
    contents = rootfs.read(made, made.manifest("linux/amd64")).contents
    return sorted(base_image.of_contents(contents, "linux/amd64", "base:1"))


def test_upper_layers_win(tmp_path: Path) -> None:
    lower: Members = [("etc/x", b""), (f"./{STATUS}", says("a"))]
    assert names(layout(tmp_path / "1", lower)) == ["a"]
    assert names(layout(tmp_path / "2", lower, [(STATUS, says("a", "b"))])) == ["a", "b"]
    assert names(layout(tmp_path / "3", lower, [("etc/y", b"")])) == ["a"]


@pytest.mark.parametrize(
    "gone",
    [
        "var/lib/dpkg/.wh.status", "var/lib/.wh.dpkg", "var/lib/dpkg/.wh..wh..opq", ".wh.var",
        ".wh..wh..opq",
    ],
)  # fmt: skip
def test_what_a_layer_removes_is_gone(tmp_path: Path, gone: str) -> None:
    lower: Members = [(STATUS, says("a"))]
    with pytest.raises(InvalidError, match="not a Debian system"):
        names(layout(tmp_path / "1", lower, [(gone, b"")]))
    # Wherever in the layer it stands: what the same layer adds is there.
    both: Members = [(STATUS, says("b")), (gone, b"")]
    assert names(layout(tmp_path / "2", lower, both)) == ["b"]
    assert names(layout(tmp_path / "3", lower, both[::-1])) == ["b"]


def test_a_link_in_place_of_a_folder_hides_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a Debian system"):
        names(layout(tmp_path, [(STATUS, says("a"))], [("var/lib/dpkg", "/elsewhere")]))


def test_one_file_a_package(tmp_path: Path) -> None:
    folder = "var/lib/dpkg/status.d"
    lower: Members = [(f"{folder}/a", says("a")), (f"{folder}/b", says("b"))]
    assert names(layout(tmp_path / "1", lower)) == ["a", "b"]
    upper: Members = [(f"{folder}/.wh.a", b""), (f"{folder}/c", says("c"))]
    assert names(layout(tmp_path / "2", lower, upper)) == ["b", "c"]


def test_a_damaged_layer_is_an_error(tmp_path: Path) -> None:
    made = layout(tmp_path, [(STATUS, says("a"))])
    blob = made.blob(made.manifest("linux/amd64").layers[0].digest)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(BuildError, match="damaged"):
        names(made)


# --- an engine


def test_an_image_of_the_engine_is_read() -> None:
    engine = FakeEngine("base:1")
    assert base_image.of_engine(engine, "base:1", "linux/amd64") is None
    for path, name in ((STATUS, "a"), ("var/lib/dpkg/status.d/b", "b")):
        engine.contents = {path: says(name)}
        assert base_image.of_engine(engine, "base:1", "linux/amd64") == {name: "1"}
    engine.contents = {}
    with pytest.raises(InvalidError, match="base:1: not a Debian system"):
        base_image.of_engine(engine, "base:1", "linux/amd64")
    assert set(engine.done) == {"read base:1 linux/amd64"}
