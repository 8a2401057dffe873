"""Attachments, listed by the registry or by us, never part of the image's digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.containers.oci.descriptor import INDEX, Descriptor, Index, encode
from envbuilder.containers.registry import manifests, referrers
from envbuilder.core.errors import BuildError
from tests.support import image_layouts as images
from tests.support.registry_requests import SILENT, attached, connect, push

if TYPE_CHECKING:
    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core.settings import Settings
    from tests.support.registry_fixture import FakeRegistry

SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"


@pytest.fixture
def image(server: FakeRegistry, source: Layout, found: Settings) -> Descriptor:
    made = images.image(source, b"a layer")
    push(server, source, made, found)
    return made


def attach(
    server: FakeRegistry, source: Layout, image: Descriptor, found: Settings, kind: str
) -> Descriptor:
    made = referrers.make(source, image, kind, kind, f"content of {kind}".encode(), {"a": "b"})
    referrers.attach(connect(server), source, made, found.uploads_dir, SILENT)
    return made


@pytest.mark.parametrize("lists", [False, True])
def test_attachments_are_found_by_the_image_s_digest(
    server: FakeRegistry, source: Layout, image: Descriptor, found: Settings, lists: bool
) -> None:
    server.lists_referrers = lists
    before = server.manifests["a", "t"]
    made = [attach(server, source, image, found, kind) for kind in (SBOM, PROVENANCE)]
    assert server.manifests["a", "t"] == before
    listed = attached(connect(server), image.digest)
    assert [d.digest for d in listed] == [d.digest for d in made]
    assert [d.artifact_type for d in listed] == [SBOM, PROVENANCE]
    assert any(tag.startswith("sha256-") for _, tag in server.manifests) is not lists


def test_what_was_attached_can_be_read(
    server: FakeRegistry, source: Layout, image: Descriptor, found: Settings
) -> None:
    made = attach(server, source, image, found, SBOM)
    listed = attached(connect(server), image.digest)[0]
    assert listed == made
    assert listed.annotations == {"a": "b"}
    manifest = source.read_manifest(listed)
    assert manifest.subject is not None
    assert manifest.subject.digest == image.digest
    assert manifest.subject.platform is None
    assert server.blobs["a", manifest.layers[0].digest] == f"content of {SBOM}".encode()


def test_attaching_again_changes_nothing(
    server: FakeRegistry, source: Layout, image: Descriptor, found: Settings
) -> None:
    attach(server, source, image, found, SBOM)
    before = dict(server.manifests)
    attach(server, source, image, found, SBOM)
    assert server.manifests == before


def test_a_list_that_others_write_too(
    server: FakeRegistry,
    source: Layout,
    image: Descriptor,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody writes an older list over ours right after it: it is added once more."""
    attach(server, source, image, found, SBOM)
    tag = image.digest.replace(":", "-")
    older = server.manifests["a", tag]
    real, spoiled = manifests.put, []

    def put(*arguments: object) -> int:
        done = real(*arguments)  # type: ignore[arg-type]
        if arguments[1] == tag and len(spoiled) < 1:
            spoiled.append(1)
            server.manifests["a", tag] = older
        return done

    monkeypatch.setattr(manifests, "put", put)
    attach(server, source, image, found, PROVENANCE)
    assert len(attached(connect(server), image.digest)) == 2


def test_a_registry_that_forgets_the_list_is_named(
    server: FakeRegistry,
    source: Layout,
    image: Descriptor,
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = manifests.put
    empty = encode(Index(schema_version=2, media_type=INDEX, manifests=()))

    def put(*arguments: object) -> int:
        done = real(*arguments)  # type: ignore[arg-type]
        if str(arguments[1]).startswith("sha256-"):
            server.manifests["a", str(arguments[1])] = (INDEX, empty)
        return done

    monkeypatch.setattr(manifests, "put", put)
    with pytest.raises(BuildError, match="loses what is added"):
        attach(server, source, image, found, SBOM)
