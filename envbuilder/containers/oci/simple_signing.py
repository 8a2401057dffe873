"""Signed images as cosign and podman's policy read them: "simple signing" payloads; pure.

A signature is a layer of a manifest under the tag `sha256-DIGEST.sig`: the layer is the payload,
its annotation the signature. Attestations are envelopes in layers, under `sha256-DIGEST.att`.
https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, strict_json, types
from envbuilder.core.text import printable
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures.refusals import WrongTypeError
from envbuilder.signatures.statement import Signed, other_subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.containers.oci.descriptor import Descriptor
    from envbuilder.signatures.keys import PrivateKey, PublicKey

MEDIA_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
TYPE = "cosign container image signature"
SIGNATURE = "dev.cosignproject.cosign/signature"
KEY_ID = "io.envbuilder.keyid"
"""Which key signed; cosign does not record it, and without it a changed payload looks like one
signed by another key."""
_LONGEST = 4096


class _Identity(Struct, frozen=True, kw_only=True, rename="kebab"):
    docker_reference: Annotated[str, Meta(max_length=1024)]


class _Image(Struct, frozen=True, kw_only=True, rename="kebab"):
    docker_manifest_digest: types.Digest


class _Critical(Struct, frozen=True, kw_only=True):
    """What must be understood: an unknown key in it is an error."""

    identity: _Identity
    image: _Image
    type: Literal["cosign container image signature"]


class _Payload(Struct, frozen=True, kw_only=True):
    critical: _Critical
    optional: dict[str, Any] | None = None


class Signature(Struct, frozen=True, kw_only=True):
    """A payload with its signature in base64, and the id of the key if it is stated."""

    payload: bytes
    signature: str
    keyid: str = ""

    @classmethod
    def of(cls, annotations: Mapping[str, str], payload: bytes) -> Signature:
        """Return the signature of a payload from its layer's annotations."""
        text = annotations.get(SIGNATURE, "")[:_LONGEST]
        return cls(payload=payload, signature=text, keyid=annotations.get(KEY_ID, ""))

    def is_by(self, key: PublicKey) -> bool:
        """Return whether a key made the signature."""
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except (binascii.Error, ValueError):  # not ASCII
            return False
        return key.verifies(signature, self.payload)


def payload(name: str, digest: types.Digest) -> bytes:
    """Return the payload for an image's manifest; the same bytes as cosign's."""
    critical = {
        "identity": {"docker-reference": name},
        "image": {"docker-manifest-digest": digest},
        "type": TYPE,
    }
    return json.dumps({"critical": critical, "optional": None}, separators=(",", ":")).encode()


def layer_annotations(content: bytes, key: PrivateKey) -> dict[str, str]:
    """Return the annotations of a payload's layer: its signature, and the key's id."""
    return {SIGNATURE: base64.b64encode(key.sign(content)).decode(), KEY_ID: key.public.id}


def accepted(
    signature: Signature, trusted: Sequence[PublicKey], digest: types.Digest, where: str
) -> Signed:
    """Return what a signature states if a trusted key signed an image's manifest digest.

    Raise the errors of `refusals`; the signature is checked before the payload is read.
    """
    key = next(filter(signature.is_by, trusted), None)
    if key is None:
        raise envelopes.refused({signature.keyid}, trusted, where)
    try:
        signed = decoding.convert(strict_json.loads(signature.payload), _Payload).critical.image
    except (ValueError, msgspec.ValidationError) as error:
        problem = printable(str(error), 200)
        raise WrongTypeError(f"{where}: what is signed is no image's digest: {problem}") from error
    if signed.docker_manifest_digest != digest:
        algorithm, _, value = digest.partition(":")
        about = signed.docker_manifest_digest.partition(":")
        raise other_subject(where, {algorithm: value}, [(about[0], about[2])])
    return Signed(name=where, digest=digest, type=TYPE, keyid=key.id)


def config(layers: Sequence[Descriptor]) -> Mapping[str, Any]:
    """Return the image configuration of a manifest of signatures, as cosign writes it."""
    return {
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": [{"created": "0001-01-01T00:00:00Z"} for _ in layers],
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
    }
