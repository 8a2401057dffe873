"""What a base has installed is read wherever the base is, or said to be unknown."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.containers.engine import connection
from envbuilder.containers.oci import descriptor
from envbuilder.containers.oci.descriptor import Index, Manifest
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import base_images as bases
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError
from envbuilder.packages.debian import base_image as base_status
from envbuilder.profiles.lock import LockedBase, Target
from tests.support import debs
from tests.support.engines import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings

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
        blobs.append(made.add(packed, f"{descriptor.LAYER}+gzip"))
    config = made.add(b'{"os":"linux","architecture":"amd64"}', descriptor.CONFIG)
    manifest = Manifest(schema_version=2, config=config, layers=tuple(blobs))
    found = made.add(
        descriptor.encode(manifest),
        descriptor.MANIFEST,
        platform=descriptor.platform("linux/amd64"),
    )
    made.write_index(Index(schema_version=2, manifests=(found,)))
    return made


def names(made: Layout) -> list[str]:
    return sorted(base_status.of_layout(made, "linux/amd64").packages)


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
    with pytest.raises(InvalidError, match="no Debian system"):
        names(layout(tmp_path / "1", lower, [(gone, b"")]))
    # Wherever in the layer it stands: what the same layer adds is there.
    both: Members = [(STATUS, says("b")), (gone, b"")]
    assert names(layout(tmp_path / "2", lower, both)) == ["b"]
    assert names(layout(tmp_path / "3", lower, both[::-1])) == ["b"]


def test_a_link_in_place_of_a_folder_hides_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no Debian system"):
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
    assert base_status.of_engine(engine, "base:1", "linux/amd64") is None
    for path, name in ((STATUS, "a"), ("var/lib/dpkg/status.d/b", "b")):
        engine.contents = {path: says(name)}
        status = base_status.of_engine(engine, "base:1", "linux/amd64")
        assert status is not None
        assert sorted(status.packages) == [name]
    engine.contents = {}
    with pytest.raises(InvalidError, match="base:1: no Debian system"):
        base_status.of_engine(engine, "base:1", "linux/amd64")
    assert set(engine.done) == {"read base:1 linux/amd64"}


# --- whoever has it


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No engine, and a registry that is out of reach; notes who was asked."""
    asked: list[str] = []

    def refuse(*_: Any) -> Layout:
        asked.append("registry")
        raise BuildError("the registry cannot be reached")

    def unconfigured() -> bool:
        asked.append("engine")
        return False

    monkeypatch.setattr(base_status, "_silent", set())
    monkeypatch.setattr(connection, "configured", unconfigured)
    monkeypatch.setattr(bases, "obtain", refuse)
    return asked


REF = f"python:3.11@sha256:{'d' * 64}"


def test_what_was_fetched_is_read_first(found: Settings, nobody: list[str]) -> None:
    folder = bases.folder(REF.partition("@")[2], "linux/amd64", found)
    layout(folder, [(STATUS, says("a"))])
    status = base_status.read(REF, "linux/amd64", found)
    assert status is not None
    assert sorted(status.packages) == ["a"]
    assert nobody == []


def test_an_image_on_disk_is_read_where_it_is(
    found: Settings, nobody: list[str], tmp_path: Path
) -> None:
    layout(tmp_path / "own", [(STATUS, says("a"))])
    status = base_status.read(f"oci:{tmp_path / 'own'}", "linux/amd64", found)
    assert status is not None
    assert sorted(status.packages) == ["a"]
    notes: list[str] = []
    assert base_status.read(f"oci:{tmp_path}", "linux/amd64", found, notes.append) is None
    assert "no OCI image layout" in notes[0]
    assert nobody == []


def test_what_cannot_be_read_is_noted(found: Settings, nobody: list[str]) -> None:
    notes: list[str] = []
    assert base_status.read(REF, "linux/amd64", found, notes.append) is None
    assert nobody == ["engine", "registry"]
    assert "the registry cannot be reached" in notes[0]
    assert "any minimal system is assumed" in notes[0]
    # A tag says nothing about bytes: no registry is asked for one.
    assert base_status.read("python:3.11", "linux/amd64", found, notes.append) is None
    assert nobody == ["engine", "registry", "engine"]
    # A registry that failed is not waited for again; another one is.
    other = REF.replace("3.11", "3.12")
    assert base_status.read(other, "linux/amd64", found, notes.append) is None
    assert nobody == ["engine", "registry", "engine", "engine"]
    assert "docker.io gave no image before" in notes[-1]
    assert base_status.read(f"own.example/{REF}", "linux/amd64", found, notes.append) is None
    assert nobody[-1] == "registry"


def test_a_build_on_another_base_than_the_locks_is_noticed(
    found: Settings, nobody: list[str], tmp_path: Path
) -> None:
    made = layout(tmp_path / "own", [(STATUS, says("a"))])
    ref = f"oci:{made.folder}"
    base = LockedBase(
        ref="python:3.11", digest=f"sha256:{'d' * 64}", date=None, python_path="/usr/bin/python3",
        python_version="3.11.2", status="5" * 64,
    )  # fmt: skip

    def said(named: str, **changes: str | None) -> str:
        changed = msgspec.structs.replace(base, **changes)
        target = Target(platform="linux/amd64", python="3.11", base=changed, files=())
        return base_status.unlike(target, named, found)

    assert f"--base-image {ref}" in said(ref)
    assert said(ref, status=base_status.of_layout(made, "linux/amd64").digest) == ""
    assert said(ref, status=None) == ""
    assert said(REF) == ""  # the lock's own
    assert said("unknown:1") == ""


def test_an_engine_that_fails_does_not_stop_the_lock(
    found: Settings, nobody: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise ToolError("no container engine answers")

    monkeypatch.setattr(connection, "configured", lambda: True)
    monkeypatch.setattr(connection, "connect", fail)
    notes: list[str] = []
    assert base_status.read(REF, "linux/amd64", found, notes.append) is None
    assert "no container engine answers; the registry cannot" in notes[0]
    assert issubclass(ToolError, EnvbuilderError)
