"""Signed images: found by tag and as referrers, judged by key, digest and type."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.oci import simple_signing
from envbuilder.containers.oci.descriptor import INDEX, MANIFEST, Descriptor, digest_of
from envbuilder.containers.registry import referrers, signed_images
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import (
    ChangedPayloadError,
    OtherSubjectError,
    UnknownKeyError,
    UnsignedError,
    WrongTypeError,
)
from envbuilder.signatures.statement import Subject
from tests.support import image_layouts as images
from tests.support import signing
from tests.support.registry_requests import connect, push

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core.settings import Settings
    from envbuilder.signatures.keys import PrivateKey
    from tests.support.registry_fixture import FakeRegistry

KIND = "https://slsa.dev/provenance/v1"


@pytest.fixture
def image(server: FakeRegistry, source: Layout, found: Settings) -> Descriptor:
    made = images.image(source, b"a layer")
    push(server, source, made, found)
    return made


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path_factory.mktemp("k") / "key.pem"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    folder = tmp_path_factory.mktemp("k")
    return signing.read_key(signing.lay_key(folder / "key.pem", "ed25519"))


@pytest.fixture
def sign(
    server: FakeRegistry, image: Descriptor, found: Settings, key: PrivateKey
) -> Callable[..., None]:
    """`sign(by=KEY, of=IMAGE)`."""

    def run(by: PrivateKey = key, of: Descriptor = image) -> None:
        signed_images.sign(connect(server), of, by, found.uploads_dir)

    return run


def signed(server: FakeRegistry, image: Descriptor, *trusted: PrivateKey) -> statements.Signed:
    public = [k.public for k in trusted]
    return signed_images.require_signed(connect(server), image.digest, public)[1]


def attested(server: FakeRegistry, image: Descriptor, *trusted: PrivateKey) -> statements.Signed:
    public = [k.public for k in trusted]
    return signed_images.require_attested(connect(server), image.digest, public, KIND)[1]


def about(image: Descriptor, kind: str = KIND, predicate: object = None) -> bytes:
    subject = Subject(name="a", digest={"sha256": image.digest.removeprefix("sha256:")})
    return statements.make([subject], kind, predicate)


def tag(image: Descriptor, suffix: str) -> str:
    return f"{image.digest.replace(':', '-')}.{suffix}"


def manifest(server: FakeRegistry, image: Descriptor, suffix: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(server.manifests["a", tag(image, suffix)][1])
    return read


def put(server: FakeRegistry, image: Descriptor, suffix: str, changed: dict[str, Any]) -> None:
    """What somebody who may push makes of the signatures, with no referrer left."""
    for name in [n for n in server.manifests if n[1].startswith("sha256-")]:
        del server.manifests[name]
    server.manifests["a", tag(image, suffix)] = (MANIFEST, json.dumps(changed).encode())


def put_layer(server: FakeRegistry, content: bytes, changed: dict[str, Any]) -> dict[str, Any]:
    """Replace the first layer's bytes by others, with their own digest."""
    server.blobs["a", digest_of(content)] = content
    layer = changed["layers"][0] | {"digest": digest_of(content), "size": len(content)}
    return changed | {"layers": [layer]}


@pytest.mark.parametrize("lists", [False, True])
def test_a_signature_is_found_by_tag_and_as_a_referrer(
    server: FakeRegistry,
    image: Descriptor,
    sign: Callable[..., None],
    key: PrivateKey,
    other: PrivateKey,
    lists: bool,
) -> None:
    server.lists_referrers = lists
    with pytest.raises(UnsignedError, match="not signed"):
        signed(server, image, key)
    sign()
    assert signed(server, image, other, key) == statements.Signed(
        name=f"{server.host}/a@{image.digest}",
        digest=image.digest,
        type=simple_signing.TYPE,
        keyid=key.public.id,
    )
    with pytest.raises(UnknownKeyError) as raised:
        signed(server, image, other)
    assert key.public.id in raised.value.message
    listed = referrers.find(connect(server), image.digest)
    assert [d.artifact_type for d in listed] == ["application/vnd.dev.cosign.artifact.sig.v1+json"]
    del server.manifests["a", tag(image, "sig")]
    assert signed(server, image, key).keyid == key.public.id


def test_the_payload_is_cosign_s(
    server: FakeRegistry, image: Descriptor, sign: Callable[..., None]
) -> None:
    sign()
    (layer,) = manifest(server, image, "sig")["layers"]
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    assert (
        server.blobs["a", layer["digest"]]
        == (
            f'{{"critical":{{"identity":{{"docker-reference":"{server.host}/a"}},"image":'
            f'{{"docker-manifest-digest":"{image.digest}"}},'
            '"type":"cosign container image signature"},"optional":null}'
        ).encode()
    )


def test_signatures_of_several_keys_stay_side_by_side(
    server: FakeRegistry,
    image: Descriptor,
    sign: Callable[..., None],
    key: PrivateKey,
    other: PrivateKey,
) -> None:
    sign()
    before = dict(server.manifests)
    sign()
    assert server.manifests == before  # signed already
    sign(other)
    assert len(manifest(server, image, "sig")["layers"]) == 2
    for one in (key, other):
        assert signed(server, image, one).keyid == one.public.id


def test_a_changed_payload_another_image_and_another_type(
    server: FakeRegistry,
    source: Layout,
    image: Descriptor,
    sign: Callable[..., None],
    key: PrivateKey,
    other: PrivateKey,
    found: Settings,
) -> None:
    sign()
    original = manifest(server, image, "sig")
    put(server, image, "sig", put_layer(server, b"{}", original))
    with pytest.raises(ChangedPayloadError):
        signed(server, image, key)
    with pytest.raises(UnknownKeyError):
        signed(server, image, other)
    second = images.image(source, b"another layer")
    push(server, source, second, found, "u")
    put(server, second, "sig", original)
    with pytest.raises(OtherSubjectError, match=image.digest):
        signed(server, second, key)
    content = b'{"critical": {}, "optional": null}'
    notes = simple_signing.layer_annotations(content, key)
    forged = put_layer(server, content, original)
    forged["layers"][0]["annotations"] = notes
    put(server, image, "sig", forged)
    with pytest.raises(WrongTypeError):
        signed(server, image, key)


def test_cosign_names_no_key(
    server: FakeRegistry, image: Descriptor, sign: Callable[..., None], key: PrivateKey
) -> None:
    sign()
    changed = manifest(server, image, "sig")
    del changed["layers"][0]["annotations"][simple_signing.KEY_ID]
    put(server, image, "sig", changed)
    assert signed(server, image, key).keyid == key.public.id
    put(server, image, "sig", put_layer(server, b"{}", changed))
    with pytest.raises(UnknownKeyError, match="or it was changed"):
        signed(server, image, key)


@pytest.mark.parametrize("text", ["", "!", "ä", "AAAA" * 5000, base64.b64encode(b"x").decode()])
def test_hostile_annotations(
    server: FakeRegistry, image: Descriptor, sign: Callable[..., None], key: PrivateKey, text: str
) -> None:
    sign()
    changed = manifest(server, image, "sig")
    changed["layers"][0]["annotations"][simple_signing.SIGNATURE] = text
    put(server, image, "sig", changed)
    with pytest.raises(ChangedPayloadError):
        signed(server, image, key)
    sign()  # another one beside it
    assert signed(server, image, key).keyid == key.public.id


def test_the_registry_s_answers_are_bounded(
    server: FakeRegistry, image: Descriptor, sign: Callable[..., None], key: PrivateKey
) -> None:
    sign()
    original = manifest(server, image, "sig")
    (layer,) = original["layers"]
    for layers in (
        [layer] * 65,
        [layer | {"size": (4 << 20) + 1}],
    ):
        put(server, image, "sig", original | {"layers": layers})
        with pytest.raises(InvalidError):
            signed(server, image, key)
    put(server, image, "sig", original | {"layers": [layer | {"mediaType": "a/b"}] * 64})
    before = len(server.log)
    with pytest.raises(UnsignedError):
        signed(server, image, key)
    assert len(server.log) - before < 5  # none of those layers was received
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    server.manifests["a", tag(image, "sig")] = (INDEX, json.dumps(index).encode())
    with pytest.raises(InvalidError, match="index"):
        signed(server, image, key)


def test_a_registry_that_refuses(
    server: FakeRegistry, image: Descriptor, sign: Callable[..., None], key: PrivateKey
) -> None:
    server.faults = [("PUT", "403")]
    with pytest.raises(BuildError):
        sign()
    server.faults = [("GET", "403")]
    with pytest.raises(BuildError):
        signed(server, image, key)


def test_statements_are_attached_and_judged(
    server: FakeRegistry,
    source: Layout,
    image: Descriptor,
    found: Settings,
    key: PrivateKey,
    other: PrivateKey,
) -> None:
    with pytest.raises(UnsignedError):
        attested(server, image, key)

    def attach(statement: bytes, by: PrivateKey = key) -> None:
        signed_images.attach(connect(server), image, statement, by, found.uploads_dir)

    attach(about(image, "urn:other"))
    with pytest.raises(WrongTypeError, match="urn:other"):
        attested(server, image, key)
    attach(about(image))
    assert attested(server, image, key).keyid == key.public.id
    with pytest.raises(UnknownKeyError):
        attested(server, image, other)
    layers = manifest(server, image, "att")["layers"]
    assert [one["annotations"]["predicateType"] for one in layers] == ["urn:other", KIND]
    attach(about(image))
    assert manifest(server, image, "att")["layers"] == layers  # signed already
    attach(about(image), other)
    assert len(manifest(server, image, "att")["layers"]) == 2
    assert attested(server, image, other).keyid == other.public.id
    original = manifest(server, image, "att")
    envelope = envelopes.sign(about(image), statements.PAYLOAD_TYPE, key)
    changed = json.loads(envelopes.encode(envelope))
    changed["payload"] = base64.b64encode(about(image, predicate={"builder": "me"})).decode()
    put(server, image, "att", put_layer(server, json.dumps(changed).encode(), original))
    with pytest.raises(ChangedPayloadError):
        attested(server, image, key)
    put(server, image, "att", put_layer(server, b"{}", original))
    with pytest.raises(InvalidError, match="not a signature envelope"):
        attested(server, image, key)
    second = images.image(source, b"another layer")
    put(server, second, "att", original)
    with pytest.raises(OtherSubjectError):
        attested(server, second, key)


def test_nothing_is_left_in_the_temporary_folder(
    server: FakeRegistry,
    image: Descriptor,
    sign: Callable[..., None],
    key: PrivateKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    sign()
    signed(server, image, key)
    assert [*scratch.iterdir()] == []
