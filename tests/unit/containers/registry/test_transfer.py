"""Pulling from a registry on loopback that misbehaves on request."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import (
    INDEX,
    MANIFEST,
    Descriptor,
    Layout,
    Platform,
    encode,
)
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.core.errors import BuildError, InvalidError, WrongHashError
from envbuilder.core.settings import Configuration, Settings
from tests.support import image_layouts as images
from tests.support.folders import names_in
from tests.support.images import index_of
from tests.support.progress import SILENT
from tests.support.registry_fixture import FakeRegistry
from tests.support.registry_requests import (
    BIG,
    SMALL,
    Send,
    attached,
    connect,
    impatient,
    pull,
)

Take = Callable[[str], int]
Attach = Callable[[str], Descriptor]


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """The folder that is pulled into."""
    return tmp_path / "b"


@pytest.fixture
def take(server: FakeRegistry, into: Path) -> Take:
    """`take("t")` pulls the image of a tag or digest."""
    return lambda wanted: pull(server, wanted, into)


def test_an_image_comes_back_as_it_went(
    take: Take, there: Descriptor, source: Layout, into: Path
) -> None:
    done = take(there.digest)
    pulled = Layout.open(into)
    assert pulled.find("linux/amd64").digest == there.digest
    manifest = pulled.manifest("linux/amd64")
    assert pulled.checked(manifest.layers[0]).read_bytes() == BIG
    assert pulled.read_config(manifest) == source.read_config(manifest)
    assert done == len(BIG) + len(SMALL) + manifest.config.size
    assert names_in(into) == {
        "blobs",
        "index.json",
        "oci-layout",
    }


def test_what_is_there_does_not_travel_again(
    take: Take, server: FakeRegistry, there: Descriptor
) -> None:
    take("t")
    server.log.clear()
    assert take("t") == 0
    assert server.log == ["GET /v2/a/manifests/t"]


def test_a_damaged_blob_is_brought_again(take: Take, there: Descriptor, into: Path) -> None:
    take("t")
    layout = Layout.open(into)
    layer = layout.manifest("linux/amd64").layers[1]
    layout.blob(layer.digest).chmod(0o644)
    layout.blob(layer.digest).write_bytes(SMALL.upper())
    assert take("t") == len(SMALL)
    assert layout.checked(layer).read_bytes() == SMALL


def test_of_an_index_one_platform_comes(send: Send, take: Take, source: Layout, into: Path) -> None:
    index = images.multi(source)
    send(index)
    take(index.digest)
    layout = Layout.open(into)
    assert [d.platform for d in layout.images()] == [Platform(os="linux", architecture="amd64")]
    names = {p.read_bytes() for p in (into / "blobs/sha256").iterdir()}
    assert b"layer for amd64" in names
    assert b"layer for arm64" not in names
    assert layout.blob(index.digest).is_file()


def test_a_platform_that_is_not_there(
    send: Send, server: FakeRegistry, source: Layout, there: Descriptor, into: Path
) -> None:
    index = images.multi(source)
    send(index, tag="index")
    layout = Layout.create(into)
    with pytest.raises(
        InvalidError, match="expected one image for macos/arm64, found none"
    ) as caught:
        transfer.pull(connect(server), "index", layout, "macos/arm64", SILENT)
    assert "linux/amd64, linux/arm64" in caught.value.hint
    with pytest.raises(InvalidError, match="is for linux/amd64, not for linux/arm64"):
        transfer.pull(connect(server), there.digest, layout, "linux/arm64", SILENT)
    assert layout.index().manifests == ()


@pytest.mark.parametrize("fault", ["500", "503 Retry-After: 1", "429", "drop", "hang", "cut"])
@pytest.mark.parametrize("request_", ["GET .*manifests", "GET .*blobs"])
def test_a_fault_that_passes_is_survived(
    take: Take,
    server: FakeRegistry,
    there: Descriptor,
    into: Path,
    fault: str,
    request_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, fault)
    server.faults = [(request_, fault)]
    take(there.digest)
    assert server.faults == []
    layout = Layout.open(into)
    for layer in layout.manifest("linux/amd64").layers:
        layout.checked(layer)


def test_a_later_pull_goes_on_where_an_earlier_one_broke_off(
    take: Take, server: FakeRegistry, there: Descriptor, source: Layout, into: Path
) -> None:
    big = source.manifest("linux/amd64").layers[0]
    server.faults = [(big.digest, "cut")] + [(big.digest, "drop")] * 16
    with pytest.raises(BuildError, match=rf"{big.digest}: .*connection reset"):
        take(there.digest)
    part = into / "partial" / big.digest.removeprefix("sha256:")
    kept = part.stat().st_size
    assert 0 < kept < len(BIG)
    assert Layout.open(into).index().manifests == ()
    server.faults = []
    assert take(there.digest) <= len(BIG) - kept + 1000
    assert not part.parent.exists()


def test_a_manifest_of_other_bytes(take: Take, server: FakeRegistry, there: Descriptor) -> None:
    server.faults = [("manifests", "wrong")]
    with pytest.raises(WrongHashError, match=rf"{there.digest}: the received content"):
        take(there.digest)


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[" * 100_000,
        b'{"schemaVersion": 1, "fsLayers": []}',
        b'{"schemaVersion": 2, "manifests": [], "layers": [], "config": {}}',
        b'{"schemaVersion": 2, "mediaType": "text/html", "layers": [], "config": {}}',
        b'{"schemaVersion": 2, "layers": [{"digest": "sha256:../../etc"}], "config": {}}',
        b'{"a": "' + b"x" * (4 << 20) + b'"}',
    ],
)
def test_what_is_no_image(take: Take, server: FakeRegistry, content: bytes) -> None:
    server.manifests["a", "t"] = (MANIFEST, content)
    with pytest.raises(InvalidError, match=rf"{server.host}/a: t: "):
        take("t")


def test_what_it_is_comes_from_the_bytes(
    take: Take, server: FakeRegistry, there: Descriptor, into: Path
) -> None:
    """A registry cannot make an index of an image: the digest does not cover its header."""
    _, data = server.manifests["a", "t"]
    server.manifests["a", "t"] = (INDEX, data)
    take("t")
    assert Layout.open(into).find("linux/amd64").digest == there.digest


def test_an_image_that_the_disk_has_no_room_for(
    take: Take, server: FakeRegistry, there: Descriptor
) -> None:
    _, data = server.manifests["a", "t"]
    read = json.loads(data)
    read["layers"][0]["size"] = 1 << 49
    server.manifests["a", "t"] = (MANIFEST, json.dumps(read).encode())
    with pytest.raises(BuildError, match=r"not enough space .* 562950\.0 GB needed"):
        take("t")
    assert server.requests("GET") == ["GET /v2/a/manifests/t"]


# --- what is listed, shown and stopped


def test_a_layout_lists_each_image_that_was_pulled_once(
    send: Send, take: Take, source: Layout, into: Path
) -> None:
    one = images.image(source, BIG)
    other = images.image(source, SMALL)
    for tag, image in (("one", one), ("other", other)):
        send(image, tag=tag)
    for tag in ("one", "other", "one"):
        take(tag)
    listed = Layout.open(into).index()
    assert [d.digest for d in listed.manifests] == [other.digest, one.digest]
    assert (listed.schema_version, listed.media_type) == (2, INDEX)


@pytest.mark.parametrize(("depth", "allowed"), [(2, True), (3, False)])
def test_an_index_of_indexes_goes_with_all_of_its_parts(
    send: Send, server: FakeRegistry, source: Layout, depth: int, allowed: bool
) -> None:
    image = images.image(source, SMALL)
    described = [image]
    for _ in range(depth):
        parts = (described[-1], image)
        index = index_of(*parts)
        described.append(source.add(encode(index), INDEX))
    if not allowed:
        with pytest.raises(InvalidError, match=f"^{described[1].digest}: .* nested too deeply"):
            send(described[-1])
        assert server.requests("PUT") == []
        return
    done = send(described[-1])
    puts = [p.rpartition("/")[2] for p in server.requests("PUT") if "manifests" in p]
    assert puts == [*[d.digest for d in described[:-1]], "t"]
    assert done.digest == described[-1].digest
    blobs = source.read_manifest(image).blobs
    assert done.bytes == sum(d.size for d in (*described, *blobs))
    assert (done.sent, done.present, done.mounted) == (2, 0, 0)


def test_the_first_failure_stops_the_other_transfers(
    server: FakeRegistry, there: Descriptor, source: Layout, into: Path
) -> None:
    config = source.read_manifest(there).config
    big = source.read_manifest(there).layers[0]
    server.faults = [(config.digest, "403"), (big.digest, "hang")]
    made = connect(server)
    started = time.monotonic()
    with pytest.raises(BuildError, match=rf"{config.digest}: HTTP 403"):
        transfer.pull(made, "t", Layout.create(into), "linux/amd64", SILENT)
    assert time.monotonic() - started < 10
    with pytest.raises(BuildError, match="does not answer"):
        made.ask("GET", made.url("x"), "later", accept=(404,))


@pytest.mark.parametrize(
    ("host", "scheme"), [("lab.example:5000", "http"), ("far.example", "https")]
)
def test_plain_http_is_what_the_user_configured(found: Settings, host: str, scheme: str) -> None:
    options = replace(found, configuration=Configuration(plain_http=("lab.example:5000",)))
    made = transfer.connect(reference.parse(f"{host}/a"), options)
    assert made.url("x") == f"{scheme}://{host}/v2/a/x"


SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"


@pytest.fixture
def image(send: Send, source: Layout) -> Descriptor:
    made = images.image(source, b"a layer")
    send(made)
    return made


@pytest.fixture
def attach(server: FakeRegistry, source: Layout, image: Descriptor, found: Settings) -> Attach:
    """`attach(kind)` attaches a document of this kind to the image."""

    def attached_now(kind: str) -> Descriptor:
        made = transfer.make_referrer(source, image, kind, f"content of {kind}".encode())
        transfer.attach(connect(server), source, made, image, found.uploads_dir, SILENT)
        return made

    return attached_now


@pytest.mark.parametrize("lists", [False, True])
def test_attachments_are_found_by_the_image_s_digest(
    server: FakeRegistry, source: Layout, image: Descriptor, attach: Attach, lists: bool
) -> None:
    server.lists_referrers = lists
    before = server.manifests["a", "t"]
    made = [attach(kind) for kind in (SBOM, PROVENANCE)]
    assert server.manifests["a", "t"] == before
    assert source.read_manifest(made[0]).subject.digest == image.digest
    listed = attached(connect(server), image.digest)
    assert [d.digest for d in listed] == [d.digest for d in made]
    assert [d.artifact_type for d in listed] == [SBOM, PROVENANCE]
    assert any(tag.startswith("sha256-") for _, tag in server.manifests) is not lists


def test_a_list_that_others_write_too(
    server: FakeRegistry, image: Descriptor, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes an older list over ours right after it: it is added once more."""
    attach(SBOM)
    tag = image.digest.replace(":", "-")
    older = server.manifests["a", tag]
    real = Connection.put_manifest
    spoiled = []

    def put(*arguments: object) -> int:
        done = real(*arguments)  # type: ignore[arg-type]
        if arguments[1] == tag and len(spoiled) < 1:
            spoiled.append(1)
            server.manifests["a", tag] = older
        return done

    monkeypatch.setattr(Connection, "put_manifest", put)
    attach(PROVENANCE)
    assert len(attached(connect(server), image.digest)) == 2


def test_a_registry_that_forgets_the_list_is_named(
    server: FakeRegistry, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Connection.put_manifest
    empty = encode(index_of())

    def put(*arguments: object) -> int:
        done = real(*arguments)  # type: ignore[arg-type]
        if str(arguments[1]).startswith("sha256-"):
            server.manifests["a", str(arguments[1])] = (INDEX, empty)
        return done

    monkeypatch.setattr(Connection, "put_manifest", put)
    with pytest.raises(BuildError, match="keep getting lost"):
        attach(SBOM)
