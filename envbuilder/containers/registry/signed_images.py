"""Sign images in a registry, attach signed statements to them, and check both.

One manifest holds an image's signatures, another one its signed statements. Each is found under a
tag, where cosign and podman look, and as a referrer, since it names the image as its subject.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.containers.oci import simple_signing
from envbuilder.containers.oci.descriptor import (
    CONFIG,
    INDEXES,
    MANIFEST,
    Descriptor,
    Manifest,
    decode,
    encode,
)
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.oci.simple_signing import Signature
from envbuilder.containers.registry import manifests, referrers
from envbuilder.containers.registry.pull_blob import receive
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import InvalidError
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import first_accepted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.containers.registry.connection import Connection
    from envbuilder.core import types
    from envbuilder.signatures.keys import PrivateKey, PublicKey
    from envbuilder.signatures.statement import Signed, Statement

MOST_MANIFESTS = 16
MOST_LAYERS = 64
"""More in one manifest are refused: each is a download."""


class _Store(Struct, frozen=True):
    """Where what is attached to an image is found: its tag's suffix, and its type as a referrer."""

    suffix: str
    artifact_type: str
    media_type: str
    """Of the layers; others are passed over."""

    def tag(self, digest: types.Digest) -> str:
        """Return the tag that stands for an image's digest."""
        return f"{digest.replace(':', '-')}.{self.suffix}"


_SIGNATURES = _Store(
    "sig", "application/vnd.dev.cosign.artifact.sig.v1+json", simple_signing.MEDIA_TYPE
)
_STATEMENTS = _Store("att", envelopes.MEDIA_TYPE, envelopes.MEDIA_TYPE)


def sign(connection: Connection, image: Descriptor, key: PrivateKey, uploads: Path) -> None:
    """Sign an image or index by its digest, beside signatures by others.

    Nothing is written if the key has signed it before. Raise `BuildError` if the registry refuses.
    """
    payload = simple_signing.payload(connection.name, image.digest)
    with _layout() as layout:
        layers = _layers(connection, _SIGNATURES.tag(image.digest), _SIGNATURES, layout)
        for layer in layers:
            signature = Signature.of(layer.annotations, layout.read(layer))
            if signature.payload == payload and signature.is_by(key.public):
                return
        notes = simple_signing.layer_annotations(payload, key)
        layers = (*layers, layout.add(payload, simple_signing.MEDIA_TYPE, annotations=notes))
        _write(connection, image, _SIGNATURES, layers, layout, uploads)


def attach(
    connection: Connection, image: Descriptor, statement: bytes, key: PrivateKey, uploads: Path
) -> None:
    """Sign a statement and attach it to an image, beside the statements that it has."""
    kind = statements.parse(statement, connection.name).predicate_type
    with _layout() as layout:
        envelope = envelopes.sign(statement, statements.PAYLOAD_TYPE, key)
        others: list[Descriptor] = []
        for layer in _layers(connection, _STATEMENTS.tag(image.digest), _STATEMENTS, layout):
            other = envelopes.parse(layout.read(layer), layer.digest)
            if other.content != statement:
                others.append(layer)
            elif envelopes.also_signed(other, key) == other:
                return
            else:
                envelope = envelopes.also_signed(other, key)
        notes = {simple_signing.SIGNATURE: "", "predicateType": kind}
        added = layout.add(envelopes.encode(envelope), envelopes.MEDIA_TYPE, annotations=notes)
        _write(connection, image, _STATEMENTS, (*others, added), layout, uploads)


def require_signed(
    connection: Connection, digest: types.Digest, trusted: Sequence[PublicKey]
) -> tuple[Signature, Signed]:
    """Return the signature of an image's digest by a trusted key, and what it states.

    Raise the errors of `refusals` if there is none, `BuildError` if the registry does not answer.
    """
    where = f"{connection.name}@{digest}"

    def accept(attached: tuple[Descriptor, bytes]) -> tuple[Signature, Signed]:
        layer, payload = attached
        signature = Signature.of(layer.annotations, payload)
        return signature, simple_signing.accepted(signature, trusted, digest, where)

    with _layout() as layout:
        return first_accepted(
            _attached(connection, digest, _SIGNATURES, layout),
            accept,
            f"{where}: not signed: its registry has no signature of it",
        )


def require_attested(
    connection: Connection,
    digest: types.Digest,
    trusted: Sequence[PublicKey],
    predicate_type: str,
) -> tuple[Statement, Signed]:
    """Return the statement of a type about an image by a trusted key; raise as `require_signed`."""
    where = f"{connection.name}@{digest}"
    in_hand = {"sha256": digest.removeprefix("sha256:")}
    with _layout() as layout:
        return first_accepted(
            _attached(connection, digest, _STATEMENTS, layout),
            lambda a: statements.accepted(
                envelopes.parse(a[1], where), trusted, predicate_type, in_hand, where
            ),
            f"{where}: its registry has no signed statement about it",
        )


@contextlib.contextmanager
def _layout() -> Iterator[Layout]:
    with tempfile.TemporaryDirectory(prefix="envbuilder-signatures-") as scratch:
        yield Layout.create(Path(scratch))


def _attached(
    connection: Connection, digest: types.Digest, store: _Store, layout: Layout
) -> Iterator[tuple[Descriptor, bytes]]:
    """Yield the layers of everything of a kind that is attached to an image, by tag or referrer."""
    seen: set[tuple[str, str]] = set()
    for reference in _references(connection, digest, store):
        for layer in _layers(connection, reference, store, layout):
            identity = layer.digest, layer.annotations.get(simple_signing.SIGNATURE, "")
            if identity not in seen:
                seen.add(identity)
                yield layer, layout.read(layer)


def _references(connection: Connection, digest: types.Digest, store: _Store) -> Iterator[str]:
    yield store.tag(digest)
    listed = referrers.find(connection, digest, store.artifact_type)
    yield from (manifest.digest for manifest in listed[:MOST_MANIFESTS])


def _layers(
    connection: Connection, reference: str, store: _Store, layout: Layout
) -> tuple[Descriptor, ...]:
    """Return a manifest's layers of a kind, received into the layout; none if it is missing."""
    answer = manifests.find(connection, reference)
    if answer is None:
        return ()
    described, data = answer
    where = f"{connection.name}: {reference}"
    if described.media_type in INDEXES:
        raise InvalidError(f"{where}: an index, where signatures belong into a manifest")
    layers = decode(data, Manifest, where).layers
    if len(layers) > MOST_LAYERS:
        raise InvalidError(f"{where}: {len(layers)} signatures; at most {MOST_LAYERS} are read")
    chosen = tuple(layer for layer in layers if layer.media_type == store.media_type)
    for layer in chosen:
        if layer.size > _LARGEST:
            raise InvalidError(f"{where}: a signature of {layer.size} bytes")
        if not layout.has(layer):
            receive(connection, layer, layout, lambda count: None)
    return chosen


_LARGEST = 4 << 20
"""Maximum bytes of an attached document; the SBOM of `cuda` in an envelope has 0.3 MB."""


def _write(
    connection: Connection,
    image: Descriptor,
    store: _Store,
    layers: tuple[Descriptor, ...],
    layout: Layout,
    uploads: Path,
) -> None:
    """Push a manifest of these layers, list it as a referrer, and point the tag to it."""
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        artifact_type=store.artifact_type,
        config=layout.add(encode(simple_signing.config(layers)), CONFIG),
        layers=layers,
        subject=Descriptor(media_type=image.media_type, digest=image.digest, size=image.size),
    )
    data = encode(manifest)
    described = layout.add(data, MANIFEST, artifact_type=store.artifact_type)
    silent = PlainProgress(lambda line: None)  # they are small
    referrers.attach(connection, layout, described, uploads, silent)
    manifests.put(connection, store.tag(image.digest), MANIFEST, data)
