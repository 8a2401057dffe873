"""Pushing to a registry on loopback that misbehaves on request."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.oci.layout import Descriptor, Layout
from envbuilder.containers.registry.transfer import Pushed
from envbuilder.core.errors import InvalidError, WrongHashError
from envbuilder.core.settings import Settings
from tests.support import image_layouts as images
from tests.support.registry_fixture import FakeRegistry, digest_of
from tests.support.registry_requests import BIG, SMALL, Send, impatient


def test_only_what_is_missing_travels(send: Send, server: FakeRegistry, source: Layout) -> None:
    first = images.image(source, BIG, SMALL)
    second = images.image(source, BIG, b"another layer")
    done = send(first)
    assert (done.sent, done.present, done.mounted) == (3, 0, 0)
    assert done.bytes == sum(b.size for b in source.read_manifest(first).blobs) + first.size
    done = send(second, tag="u")
    assert (done.sent, done.present) == (1, 2)
    assert done.bytes == len(b"another layer") + second.size
    assert send(second, tag="u").bytes == 0
    assert server.manifests["a", "t"] == server.manifests["a", first.digest]


def test_blobs_are_mounted_from_another_repository(
    send: Send, there: Descriptor, found: Settings, tmp_path: Path
) -> None:
    done = send(there, name="b")
    assert (done.mounted, done.sent, done.bytes) == (3, 0, there.size)
    forgetful = replace(found, cache_dir=tmp_path / "elsewhere")
    assert send(there, found=forgetful, name="c").sent == 3


def test_a_note_of_a_repository_that_is_none(
    send: Send, there: Descriptor, found: Settings
) -> None:
    for note in found.uploads_dir.glob("*.repository"):
        note.write_bytes(b"../../x?y=z\n")
    assert send(there, name="b").sent == 3


def test_a_tag_or_the_right_digest(send: Send, source: Layout) -> None:
    image = images.image(source, SMALL)
    send(image, tag=image.digest)
    with pytest.raises(InvalidError, match="the image has a different digest"):
        send(image, tag=digest_of(b"other"))


REQUESTS = ["HEAD .*blobs", "POST", "PATCH", "PUT .*uploads", "PUT .*manifests"]


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        *((request, fault) for request in REQUESTS for fault in ("500", "503", "drop", "hang")),
        ("PATCH", "partly 100000"),
    ],
)
def test_a_push_survives_a_fault_that_passes(
    send: Send,
    server: FakeRegistry,
    source: Layout,
    fault: str,
    request_: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient(monkeypatch, fault)
    image = images.image(source, BIG, SMALL)
    server.faults = [(request_, fault)]
    done = send(image)
    assert server.faults == []
    for b in source.read_manifest(image).blobs:
        assert ("a", b.digest) in server.blobs
    assert server.manifests["a", "t"][1] == source.read(image)
    if fault != "hang":  # then a slow machine may send more than once
        assert done.bytes < 2 * len(BIG)


def test_only_what_is_right_is_sent(send: Send, server: FakeRegistry, source: Layout) -> None:
    image = images.image(source, BIG)
    layer = source.read_manifest(image).layers[0]
    source.blob(layer.digest).chmod(0o644)
    source.blob(layer.digest).write_bytes(b"!" + BIG[1:])
    with pytest.raises(WrongHashError, match="damaged"):
        send(image)
    assert ("a", layer.digest) not in server.blobs
    assert server.manifests == {}


def test_a_registry_that_changes_manifests_is_found_out(
    send: Send, server: FakeRegistry, source: Layout
) -> None:
    image = images.image(source, SMALL)
    server.faults = [("PUT .*manifests", f"201 Docker-Content-Digest: {digest_of(b'other')}")]
    with pytest.raises(WrongHashError, match="the registry reports digest"):
        send(image)


def test_a_registry_that_reports_no_digest_is_believed(
    send: Send, server: FakeRegistry, source: Layout
) -> None:
    """The header is required of an answer to a pull alone (OCI distribution 1.1)."""
    image = images.image(source, SMALL)
    server.faults = [("PUT .*manifests", "201 X-Served-By: me")]
    send(image)
    assert server.requests("PUT")


def test_two_pushes_at_once_send_each_blob_once(send: Send, source: Layout) -> None:
    image = images.image(source, BIG, SMALL)
    results: list[Pushed] = []
    threads = [threading.Thread(target=lambda: results.append(send(image))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(r.sent for r in results) == 3
    assert sum(r.present for r in results) == 6
