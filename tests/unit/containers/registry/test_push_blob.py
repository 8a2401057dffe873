"""Pushing to a registry on loopback that misbehaves on request."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import BuildError, InvalidError, WrongHashError
from tests.support import image_layouts as images
from tests.support.registry_fixture import FakeRegistry, digest_of
from tests.support.registry_requests import BIG, SMALL, impatient, push

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.containers.oci.descriptor import Descriptor, Manifest
    from envbuilder.containers.oci.layout import Layout
    from envbuilder.containers.registry import transfer as registry
    from envbuilder.core.settings import Settings


def test_only_what_is_missing_travels(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    first = images.image(source, BIG, SMALL)
    second = images.image(source, BIG, b"another layer")
    done = push(server, source, first, found)
    assert (done.sent, done.present, done.mounted) == (3, 0, 0)
    assert done.bytes == sum(b.size for b in _blobs(source, first)) + first.size
    done = push(server, source, second, found, "u")
    assert (done.sent, done.present) == (1, 2)
    assert done.bytes == len(b"another layer") + second.size
    assert push(server, source, second, found, "u").bytes == 0
    assert server.manifests["a", "t"] == server.manifests["a", first.digest]


def _blobs(layout: Layout, image: Descriptor) -> tuple[Descriptor, ...]:
    manifest: Manifest = layout.read_manifest(image)
    return (manifest.config, *manifest.layers)


def test_blobs_are_mounted_from_another_repository(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings, tmp_path: Path
) -> None:
    done = push(server, source, there, found, name="b")
    assert (done.mounted, done.sent, done.bytes) == (3, 0, there.size)
    forgetful = replace(found, cache_dir=tmp_path / "elsewhere")
    assert push(server, source, there, forgetful, name="c").sent == 3
    forgetful = replace(found, cache_dir=tmp_path / "nowhere")
    assert push(server, source, there, forgetful, name="d", mount_from="a").mounted == 3


def test_a_note_of_a_repository_that_is_none(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings
) -> None:
    for note in found.uploads_dir.glob("*.repository"):
        note.write_bytes(b"../../x?y=z\n")
    assert push(server, source, there, found, name="b").sent == 3


def test_a_registry_that_does_not_mount_gets_the_blobs(
    server: FakeRegistry, source: Layout, there: Descriptor, found: Settings
) -> None:
    server.mounts = False
    assert push(server, source, there, found, name="b", mount_from="a").sent == 3
    server.faults = [("mount=", "403")] * 3
    assert push(server, source, there, found, name="c", mount_from="a").sent == 3


def test_an_index_goes_with_its_images(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    index = images.multi(source)
    push(server, source, index, found)
    puts = [p.rpartition("/")[2] for p in server.requests("PUT") if "manifests" in p]
    assert puts == [*(d.digest for d in source.index().manifests), "t"]


def test_a_tag_or_the_right_digest(server: FakeRegistry, source: Layout, found: Settings) -> None:
    image = images.image(source, SMALL)
    push(server, source, image, found, image.digest)
    with pytest.raises(InvalidError, match="the image has another digest"):
        push(server, source, image, found, digest_of(b"other"))


REQUESTS = ["HEAD .*blobs", "POST", "PATCH", "PUT .*uploads", "PUT .*manifests"]


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        *((request, fault) for request in REQUESTS for fault in ("500", "503", "drop", "hang")),
        ("PATCH", "partly 100000"),
    ],
)
def test_a_push_survives_a_fault_that_passes(
    server: FakeRegistry,
    source: Layout,
    found: Settings,
    fault: str,
    request_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, fault)
    image = images.image(source, BIG, SMALL)
    server.faults = [(request_, fault)]
    done = push(server, source, image, found)
    assert server.faults == []
    assert all(("a", b.digest) in server.blobs for b in _blobs(source, image))
    assert server.manifests["a", "t"][1] == source.read(image)
    if fault != "hang":  # then a slow machine may send more than once
        assert done.bytes < 2 * len(BIG)


@pytest.mark.parametrize("signs", [False, True])
def test_a_push_that_breaks_off_goes_on_later(
    server: FakeRegistry, source: Layout, found: Settings, signs: bool
) -> None:
    server.signs = signs
    image = images.image(source, BIG)
    patches = 0
    original = server.take_fault

    def third_piece_fails(request: str) -> str:
        nonlocal patches
        patches += request.startswith("PATCH")
        return "500" if patches >= 3 else original(request)

    server.take_fault = third_piece_fails  # type: ignore[method-assign]
    with pytest.raises(BuildError, match="HTTP 500"):
        push(server, source, image, found)
    server.take_fault = original  # type: ignore[method-assign]
    assert 1 << 20 in [len(u) for u in server.uploads.values()]
    done = push(server, source, image, found)
    assert done.bytes - image.size - (1 << 20) <= 100  # the other half, and the configuration
    assert ("a", digest_of(BIG)) in server.blobs
    assert [p for p in found.uploads_dir.iterdir() if p.suffix == ".json"] == []


def test_an_upload_that_is_gone_begins_anew(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG[::-1])
    server.faults = [("PATCH", "413")]
    with pytest.raises(BuildError, match="HTTP 413"):
        push(server, source, image, found)
    assert any(p.suffix == ".json" for p in found.uploads_dir.iterdir())
    server.uploads.clear()
    push(server, source, image, found)
    assert ("a", digest_of(BIG[::-1])) in server.blobs


def test_a_damaged_note_is_no_hindrance(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG)
    server.faults = [("PATCH", "413")]
    with pytest.raises(BuildError):
        push(server, source, image, found)
    for content in (b"{", b'{"location": "http://10.255.255.1/x", "offset": 9, "piece": 1}'):
        for note in found.uploads_dir.glob("*.json"):
            note.write_bytes(content)
        server.faults = [("PATCH", "413")]
        with pytest.raises(BuildError, match="413"):
            push(server, source, image, found)
    push(server, source, image, found)


def test_only_what_is_right_is_sent(server: FakeRegistry, source: Layout, found: Settings) -> None:
    image = images.image(source, BIG)
    layer = source.read_manifest(image).layers[0]
    source.blob(layer.digest).chmod(0o644)
    source.blob(layer.digest).write_bytes(b"!" + BIG[1:])
    with pytest.raises(WrongHashError, match="damaged"):
        push(server, source, image, found)
    assert ("a", layer.digest) not in server.blobs
    assert server.manifests == {}


def test_a_registry_that_keeps_refusing(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, SMALL)
    server.faults = [("POST", "507")] * 8
    with pytest.raises(BuildError, match=r"HTTP 507") as caught:
        push(server, source, image, found)
    assert "Try again later" in caught.value.hint


def test_a_registry_that_changes_manifests_is_found_out(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, SMALL)
    server.faults = [("PUT .*manifests", f"201 Docker-Content-Digest: {digest_of(b'other')}")]
    with pytest.raises(WrongHashError, match="the registry reports digest"):
        push(server, source, image, found)


def test_two_pushes_at_once_send_each_blob_once(
    server: FakeRegistry, source: Layout, found: Settings
) -> None:
    image = images.image(source, BIG, SMALL)
    results: list[registry.Pushed] = []
    threads = [
        threading.Thread(target=lambda: results.append(push(server, source, image, found)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(r.sent for r in results) == 3
    assert sum(r.present for r in results) == 6
