"""Base images: fetched once by digest, offline afterwards, checked whenever they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Descriptor, Layout
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Settings
from tests.support import image_layouts as images
from tests.support.progress import SILENT
from tests.support.registry_fixture import FakeRegistry
from tests.support.registry_requests import connect, push

Obtain = Callable[..., Layout]


@pytest.fixture
def index(server: FakeRegistry, tmp_path: Path, found: Settings) -> Descriptor:
    """An index of two platforms that the registry has."""
    source = Layout.create(tmp_path / "source")
    made = images.multi(source)
    push(server, source, made, found)
    server.log.clear()
    return made


@pytest.fixture(autouse=True)
def patient(server: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "connect", lambda *args: connect(server))


@pytest.fixture
def notes() -> list[str]:
    """What is said while a base is obtained."""
    return []


@pytest.fixture
def obtain(server: FakeRegistry, index: Descriptor, found: Settings, notes: list[str]) -> Obtain:
    """`obtain()` returns the base of the index; another image or other settings may be given."""

    def obtained(of: Descriptor = index, settings: Settings = found) -> Layout:
        progress = PlainProgress(notes.append)
        ref = f"{server.host}/a:t"
        return transfer.obtain_base(ref, of.digest, "linux/amd64", settings, progress)

    return obtained


def test_a_base_is_fetched_once(
    server: FakeRegistry, index: Descriptor, found: Settings, obtain: Obtain
) -> None:
    first = obtain()
    assert server.log
    server.log.clear()
    again = obtain()
    assert server.log == []
    assert (
        again.folder
        == first.folder
        == transfer.base_folder(found.cache_dir, index.digest, "linux/amd64")
    )
    assert [d.platform.architecture for d in again.images() if d.platform] == ["amd64"]


def test_a_base_of_the_shared_store_is_used_where_it_is(
    server: FakeRegistry, index: Descriptor, found: Settings, obtain: Obtain, tmp_path: Path
) -> None:
    admin = replace(found, cache_dir=tmp_path / "shared")
    shared = obtain(settings=admin)
    server.log.clear()
    user = replace(found, shared_store=tmp_path / "shared")
    assert obtain(settings=user).folder == shared.folder
    assert transfer.has_base(index.digest, "linux/amd64", user)
    assert not transfer.has_base(index.digest, "linux/amd64", found)
    assert server.log == []
    layer = shared.manifest("linux/amd64").layers[0]
    shared.blob(layer.digest).unlink()
    own = obtain(settings=user)
    assert own.folder == transfer.base_folder(user.cache_dir, index.digest, "linux/amd64")
    assert not shared.blob(layer.digest).exists(), "it is somebody else's"


def test_the_digest_of_an_image_works_as_that_of_an_index(
    server: FakeRegistry, obtain: Obtain
) -> None:
    image = obtain().find("linux/amd64")
    server.manifests["a", image.digest] = server.manifests["a", image.digest]
    assert obtain(image).find("linux/amd64").digest == image.digest


@pytest.mark.parametrize("victim", ["index", "manifest", "config", "layer"])
@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_damage_is_named_and_mended(
    server: FakeRegistry,
    index: Descriptor,
    obtain: Obtain,
    notes: list[str],
    victim: str,
    harm: str,
) -> None:
    layout = obtain()
    image = layout.find("linux/amd64")
    manifest = layout.read_manifest(image)
    of = {"index": index, "manifest": image, "config": manifest.config}
    path = layout.blob(of.get(victim, manifest.layers[0]).digest)
    if harm == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    notes.clear()
    obtain()
    assert "fetching the base image again" in notes[0]
    assert path.name in notes[0]
    notes.clear()
    server.log.clear()
    obtain()
    assert (notes, server.log) == ([], [])


def test_a_base_of_another_index_is_not_taken(
    index: Descriptor, found: Settings, obtain: Obtain, notes: list[str]
) -> None:
    """A folder under a digest's name with a right image of something else."""
    layout = Layout.create(transfer.base_folder(found.cache_dir, index.digest, "linux/amd64"))
    images.image(layout, b"something else")
    found_ = obtain().manifest("linux/amd64")
    assert "fetching the base image again" in notes[0]
    assert found_.layers[0].size == len(b"layer for amd64")


def test_a_mirror_that_lacks_it_or_lies_is_passed_over(
    server: FakeRegistry, index: Descriptor, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_to(place: reference.Reference, options: Settings) -> Connection:
        return connect(server, "a" if place.host == "docker.io" else "b")

    monkeypatch.setattr(transfer, "connect", connect_to)
    mirrors = {"docker.io": "mirror.example/hub"}
    mirrored = replace(found, configuration=replace(found.configuration, mirrors=mirrors))
    with pytest.raises(BuildError, match=r"/b: .*404.*; .*/a: .*404"):
        transfer.obtain_base("a", "sha256:" + "0" * 64, "linux/amd64", mirrored, SILENT)
    media_type, data = server.manifests["a", index.digest]
    server.manifests["b", index.digest] = (media_type, data.replace(b"amd64", b"amd46"))
    layout = transfer.obtain_base("a", index.digest, "linux/amd64", mirrored, SILENT)
    assert layout.blob(index.digest).read_bytes() == data


def test_a_fetch_that_broke_off_is_no_base(
    server: FakeRegistry, obtain: Obtain, notes: list[str]
) -> None:
    server.faults = [("blobs", "drop")] * 40
    with pytest.raises(BuildError):
        obtain()
    server.faults = []
    notes.clear()
    obtain()
    assert not [n for n in notes if "warning" in n]
