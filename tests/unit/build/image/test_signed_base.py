"""Base images that must be signed: by digest, in their registry, and later without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from envbuilder.build.image import signed_base
from envbuilder.containers.registry import signed_images
from envbuilder.core import settings
from envbuilder.core.errors import BuildError
from envbuilder.signatures.refusals import UnknownKeyError, UnsignedError
from tests.support import image_layouts, signing
from tests.support.registry_requests import connect, push

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core.settings import Settings
    from tests.support.registry_fixture import FakeRegistry


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("key.pem", "other.pem"):
        signing.lay_key(tmp_path / name)
    return tmp_path


@pytest.fixture
def ref(server: FakeRegistry, source: Layout, found: Settings) -> str:
    image = image_layouts.image(source, b"a layer")
    push(server, source, image, found)
    return f"{connect(server).name}@{image.digest}"


def requiring(found: Settings, key: Path, **more: object) -> Settings:
    signatures = settings.Signatures(images=(str(key),))
    stated = settings.Configuration(signatures=signatures, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(found, configuration=stated)


def sign(server: FakeRegistry, ref: str, key: Path, found: Settings, name: str = "a") -> None:
    from envbuilder.containers.registry import manifests

    connection = connect(server, name)
    image, _ = manifests.read(connection, ref.partition("@")[2])
    signed_images.sign(connection, image, signing.read_key(key), found.uploads_dir)


def test_nothing_is_asked_unless_it_is_required(found: Settings) -> None:
    assert signed_base.require("127.0.0.1:1/a:b", found) == ()


def test_a_signed_base_is_accepted_and_needs_no_network_later(
    server: FakeRegistry, ref: str, keys: Path, found: Settings
) -> None:
    with pytest.raises(UnsignedError):
        signed_base.require(ref, requiring(found, keys / "key.pub"))
    sign(server, ref, keys / "key.pem", found)
    trusted = requiring(found, keys / "key.pub")
    (signed,) = signed_base.require(ref, trusted)
    assert signed.digest == ref.partition("@")[2]
    server.manifests.clear()
    requests = len(server.log)
    assert signed_base.require(ref, trusted) == (signed,)
    assert len(server.log) == requests
    with pytest.raises(UnsignedError):  # the copy is checked, too, and then the registry
        signed_base.require(ref, requiring(found, keys / "other.pub"))


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b"[" * 100_000, None])
def test_a_damaged_copy_is_not_believed(
    server: FakeRegistry, ref: str, keys: Path, found: Settings, damage: bytes | None
) -> None:
    sign(server, ref, keys / "key.pem", found)
    trusted = requiring(found, keys / "key.pub")
    before = signed_base.require(ref, trusted)
    (copy,) = found.bases_dir.glob("*.signature.json")
    if damage is None:  # one of another image
        document = json.loads(copy.read_text())
        other = found.bases_dir / f"{'a' * 64}.signature.json"
        other.write_text(json.dumps(document))
        elsewhere = f"{ref.partition('@')[0]}@sha256:{'a' * 64}"
        with pytest.raises(UnsignedError):
            signed_base.require(elsewhere, trusted)
    else:
        copy.write_bytes(damage)
        assert signed_base.require(ref, trusted) == before


def test_what_has_no_digest_in_a_registry_is_refused(keys: Path, found: Settings) -> None:
    for ref in ("python:3.11", "127.0.0.1:1/a:b", "oci:/somewhere", "/somewhere/a.tar"):
        with pytest.raises(UnsignedError, match="not named by a digest"):
            signed_base.require(ref, requiring(found, keys / "key.pub"))


def test_a_mirror_may_lack_the_signature(
    server: FakeRegistry, source: Layout, ref: str, keys: Path, found: Settings
) -> None:
    mirrors = {server.host: f"{server.host}/mirror"}
    trusted = requiring(found, keys / "key.pub", mirrors=mirrors)
    sign(server, ref, keys / "other.pem", found)
    with pytest.raises(UnknownKeyError):
        signed_base.require(ref, trusted)
    sign(server, ref, keys / "key.pem", found)
    assert len(signed_base.require(ref, trusted)) == 1


def test_a_registry_that_does_not_answer_is_no_yes(
    server: FakeRegistry, ref: str, keys: Path, found: Settings
) -> None:
    sign(server, ref, keys / "key.pem", found)
    server.faults = [("GET", "403")]
    with pytest.raises(BuildError):
        signed_base.require(ref, requiring(found, keys / "key.pub"))
