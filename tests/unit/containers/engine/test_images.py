"""Images into an engine: only what it lacks, and never a success that is none."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.containers.engine import images
from envbuilder.containers.engine.docker import DockerEngine
from envbuilder.containers.engine.interface import Endpoint, Image
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import (
    INDEX,
    LAYER,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Manifest,
    decode,
    encode,
)
from envbuilder.core import process, types
from envbuilder.core.errors import BuildError
from tests.support.folders import names_in
from tests.support.images import BASE, image, index_of
from tests.support.programs import completed


class Docker:
    """Stands in for Docker with its containerd store: keeps blobs, and names images by manifest."""

    def __init__(self) -> None:
        self.blobs: set[str] = set()
        self.sent: list[set[str]] = []
        self.refs: dict[str, str] = {}
        self.api = SimpleNamespace(
            timeout=60,
            load_image=self.load_image,
            get_image=self.get_image,
            inspect_image=self.inspect,
        )
        sdk: Any = SimpleNamespace(api=self.api, close=lambda: None)
        self.engine = DockerEngine(sdk, "26.1.5", Endpoint(url=None))
        self.questions: list[str] = []
        self.loses = False
        self.wanted: set[str] = set()
        self.saved = b""

    def load_image(self, pieces: Iterator[bytes], quiet: bool) -> Iterator[dict[str, Any]]:
        assert self.api.timeout > 60, "it unpacks before it answers"
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            self.sent.append({n.rpartition("/")[2] for n in tar.getnames() if "sha256" in n})
            self.blobs |= self.sent[-1]
            stream = tar.extractfile("index.json")
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

    def inspect(self, ref: str) -> dict[str, Any]:
        from docker.errors import ImageNotFound

        self.questions.append(ref)
        digest = self.refs.get(ref, ref)
        if digest not in self.refs.values():
            raise ImageNotFound(ref)
        return {"Id": digest, "RepoTags": [ref]}


def named(folder: Path, *more: Member, ref: str = "envbuilder/x:1") -> tuple[Layout, Manifest]:
    layout = image(folder, (BASE, more))
    (found,) = layout.index().manifests
    stated = replace(found, annotations=archive.named(ref))
    layout.write_index(index_of(stated))
    return layout, layout.manifest("linux/amd64")


@pytest.fixture
def there() -> Docker:
    return Docker()


@pytest.fixture
def made(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "made")


def hexes(manifest: Manifest) -> set[str]:
    blobs = {manifest.config.digest, *(d.digest for d in manifest.layers)}
    return {b.removeprefix("sha256:") for b in blobs}


def test_what_an_image_of_the_engine_is_made_of_is_not_sent_again(
    there: Docker, made: Layout, tmp_path: Path
) -> None:
    first, one = named(tmp_path / "one", Member(path="a", content=b"1"))
    ids = images.load(there.engine, first, made)
    assert ids == (one.config.digest, first.index().manifests[0].digest)
    second, other = named(tmp_path / "two", Member(path="a", content=b"2"))
    images.load(there.engine, second, made)
    base = one.layers[0].digest.removeprefix("sha256:")
    assert base in there.sent[0]
    assert base not in there.sent[1]
    assert hexes(other) - {base} <= there.sent[1]


def test_what_the_engine_dropped_meanwhile_is_sent_after_all(
    there: Docker, made: Layout, tmp_path: Path
) -> None:
    first, one = named(tmp_path / "one", Member(path="a", content=b"1"))
    images.load(there.engine, first, made)
    there.blobs.clear()
    there.wanted = {one.layers[0].digest.removeprefix("sha256:")}
    second, other = named(tmp_path / "two", Member(path="a", content=b"2"))
    images.load(there.engine, second, made)
    assert len(there.sent) == 3
    assert hexes(other) <= there.sent[2]


def test_an_engine_that_fails_is_an_error(there: Docker, made: Layout, tmp_path: Path) -> None:
    there.wanted = {"missing"}
    layout, _ = named(tmp_path / "one")
    with pytest.raises(BuildError, match="the engine cannot load the image: content digest"):
        images.load(there.engine, layout, made)
    assert there.api.timeout == 60


def test_an_engine_that_says_yes_and_has_nothing_is_an_error(there: Docker, tmp_path: Path) -> None:
    there.loses = True
    layout, _ = named(tmp_path / "one")
    with pytest.raises(BuildError, match="loaded, but the engine has no such image"):
        images.load(there.engine, layout, Layout.create(tmp_path / "made"))


def test_an_exported_base_is_kept(there: Docker, tmp_path: Path) -> None:
    layout, manifest = named(tmp_path / "base", ref="base:1")
    there.saved = b"".join(archive.pieces(layout))
    digest = layout.index().manifests[0].digest
    there.refs["docker.io/library/base:1"] = digest
    found = Image(id=digest, tags=("base:1",), labels={})
    exported = images.export(there.engine, found, tmp_path / "bases")
    assert exported.manifest("linux/amd64") == manifest
    there.saved = b""
    assert images.export(there.engine, found, tmp_path / "bases").folder == exported.folder


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (lambda whole: whole[:5000], "not a tar archive: truncated header"),
        (lambda whole: bytes(1024), "not an archive of an OCI layout"),
        (lambda whole: b"no tar" * 999, "not a tar archive"),
        (lambda whole: b"", "not a tar archive"),
    ],
)
def test_an_engine_that_sends_no_layout_has_failed_and_leaves_nothing(
    sent: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    """Exit 1: nothing that the user gave is invalid."""
    there = Docker()
    layout, _ = named(tmp_path / "base")
    there.saved = sent(b"".join(archive.pieces(layout)))
    found = Image(id=f"sha256:{'1' * 64}", tags=(), labels={})
    with pytest.raises(BuildError, match=f"the image {found.id} of the engine: {said}"):
        images.export(there.engine, found, tmp_path / "bases")
    assert list((tmp_path / "bases").iterdir()) == []


def test_a_base_that_lost_a_part_is_exported_again_and_never_kept(
    there: Docker, tmp_path: Path
) -> None:
    layout, manifest = named(tmp_path / "base", Member(path="a"), ref="base:1")
    whole = b"".join(archive.pieces(layout))
    layer = manifest.layers[0].digest
    found = Image(id=layout.index().manifests[0].digest, tags=("base:1",), labels={})
    there.refs["docker.io/library/base:1"] = found.id
    there.saved = b"".join(archive.pieces(layout, {layer}))
    with pytest.raises(BuildError, match=f"base:1: the engine has lost {layer}") as raised:
        images.export(there.engine, found, tmp_path / "bases")
    assert "docker rmi base:1" in raised.value.hint
    assert list((tmp_path / "bases").iterdir()) == []
    there.saved = whole
    kept = images.export(there.engine, found, tmp_path / "bases")
    kept.blob(layer).unlink()
    assert images.export(there.engine, found, tmp_path / "bases").has(manifest.layers[0])


class ByCommand:
    """Stands in for podman: what it is asked to do, and the layout or archive that it then sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.given: list[Index] = []
        self.images: dict[str, str] = {}
        monkeypatch.setattr(process, "run", self.run)

    def run(self, argv: list[str], *, cwd: Path | None = None, **options: Any) -> process.Completed:
        command = tuple(argv[argv.index("/x") + 1 :] if "--url" in argv else argv[1:])
        self.asked.append(command)
        code = 0
        out = ""
        match command:
            case ("pull", "--quiet", source):
                found = Layout.open(cwd / source.removeprefix("oci:"))
                self._take(found)
            case ("load", "--quiet", "--input", file):
                with tempfile.TemporaryDirectory() as scratch:
                    self._take(archive.unpack(Path(file), Path(scratch) / "there"))
            case ("tag", image, name):
                assert image in self.images
                self.images[name] = image
            case ("image", "inspect", name):
                code = 0 if name in self.images else 125
                out = msgspec.json.encode([{"Id": self.images.get(name)}]).decode()
        return completed(code, out, "Error: image not known")

    def _take(self, layout: Layout) -> None:
        self.given.append(layout.index())
        manifest = layout.manifest("linux/amd64")
        for layer in manifest.layers:
            layout.checked(layer)
        ident = manifest.config.digest.removeprefix("sha256:")
        self.images[ident] = ident


@pytest.mark.parametrize("remote", [False, True])
def test_podman_gets_one_image_without_a_name_and_then_its_names(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ByCommand(monkeypatch)
    command = ("podman", "--url", "/x") if remote else ("podman",)
    client = PodmanEngine(command, rootless=False, remote=remote)
    layout, manifest = named(tmp_path / "with:colon", ref="me/x:1")
    (first,) = layout.index().manifests
    second = replace(first, annotations=archive.named("me/x:2"))
    both = index_of(first, second)
    layout.write_index(both)
    ids = images.load(client, layout, Layout.create(tmp_path / "made"), ["me/x:1", "me/x:2"])
    assert ids == (manifest.config.digest, first.digest)
    assert there.images.keys() == {ids[0].removeprefix("sha256:"), "me/x:1", "me/x:2"}
    assert [[d.annotations for d in i.manifests] for i in there.given] == [[{}]]
    assert [a[0] for a in there.asked].count("load") == remote
    # The base of a bundle has the name that it has everywhere.
    images.load(client, layout, Layout.create(tmp_path / "made"))
    assert "docker.io/me/x:2" in there.images
    assert layout.index() == both
    assert names_in(tmp_path) == {"made", "with:colon"}


MB = 1 << 20


def layer(number: int, size: int) -> Descriptor:
    return Descriptor(media_type=LAYER, digest=f"sha256:{number:064x}", size=size)


TORCH, COMPILER, SMALL, PAYLOAD = (
    layer(1, 500 * MB),
    layer(2, 100 * MB),
    layer(3, 31 * MB),
    layer(4, MB),
)


def manifest_of(*layers: Descriptor) -> Manifest:
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
        return images.layers(engine, recorded, manifest, names, preload)


@pytest.fixture
def recorded(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "recorded")


def record(recorded: Layout, *layers: Descriptor, age: int = 0) -> types.Digest:
    """Record an image; return its digest."""
    digest = recorded.add(encode(manifest_of(*layers)), MANIFEST).digest
    os.utime(recorded.blob(digest), (10**9 - age, 10**9 - age))
    return digest


def digests(*layers: Descriptor) -> set[types.Digest]:
    return {found.digest for found in layers}


WHOLE = manifest_of(TORCH, COMPILER, SMALL, PAYLOAD)


def test_layers_of_what_has_the_name_are_not_sent(recorded: Layout) -> None:
    replaced = record(recorded, TORCH, COMPILER, PAYLOAD)
    other = record(recorded, SMALL)
    engine = Engine(other, latest=replaced)
    assert engine.layers(recorded, WHOLE, "new", "latest") == digests(TORCH, COMPILER, PAYLOAD)
    assert engine.questions == ["new", "latest"]


def test_preloaded_layers_are_all_that_is_asked_for(recorded: Layout) -> None:
    ahead = record(recorded, TORCH)
    other = record(recorded, COMPILER)
    engine = Engine(other, ahead=ahead)
    assert engine.layers(recorded, WHOLE, "latest", preload="ahead") == digests(TORCH)
    assert engine.questions == ["ahead"]


def test_an_engine_that_reads_what_it_lacks_is_asked_for_nothing(recorded: Layout) -> None:
    engine = Engine(record(recorded, TORCH))
    engine.receives_layers = False
    assert engine.layers(recorded, WHOLE, "latest") == set()
    assert engine.questions == []


def test_an_index_stands_for_its_recorded_images(recorded: Layout) -> None:
    held = recorded.add(encode(manifest_of(TORCH)), MANIFEST)
    elsewhere = Descriptor(media_type=MANIFEST, digest=f"sha256:{7:064x}", size=7)
    index = index_of(held, elsewhere)
    outer = recorded.add(encode(index), INDEX).digest
    assert Engine(base=outer).layers(recorded, WHOLE, "base") == digests(TORCH)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x00", b'{"layers": 1}', b"{}", b"[" * 9999])
def test_other_blobs_are_no_images(content: bytes, recorded: Layout) -> None:
    digest = recorded.add(content, "x").digest
    engine = Engine(named=digest)
    assert engine.layers(recorded, WHOLE, "named") == set()
    assert engine.questions == ["named"]


def test_nothing_needs_to_be_recorded(tmp_path: Path) -> None:
    """The folder of layers appears with the first of them."""
    assert Engine().layers(Layout(tmp_path / "none"), WHOLE) == set()
