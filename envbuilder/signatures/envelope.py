"""DSSE envelopes: a payload with its type, and signatures of both together.

https://github.com/secure-systems-lab/dsse: the type is signed, too, so that a payload cannot be
passed off as one of another type. Unknown keys are ignored, as the specification requires.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import Hint, InvalidError, SignatureError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.signatures.keys import PrivateKey, PublicKey


MOST_SIGNATURES = 16
"""More are refused: each costs a verification for every trusted key."""
_URL_SAFE = str.maketrans("-_", "+/")

_KeyId = Annotated[str, Meta(max_length=512)]
_Type = Annotated[str, Meta(max_length=256)]


class UnsignedError(SignatureError):
    """There is no signature at all."""


class UnknownKeyError(SignatureError):
    """None of the trusted keys made the signature."""


class ChangedPayloadError(SignatureError):
    """A trusted key is named, but its signature does not match the signed content."""


class WrongTypeError(SignatureError):
    """A trusted key signed it, but the statement is of another type, or names another builder."""


class OtherSubjectError(SignatureError):
    """A trusted key signed it, but it is about other bytes than those in hand."""


class Signature(Struct, frozen=True, kw_only=True):
    """A signature in base64, and a hint at the key that made it; some tools leave it empty."""

    keyid: _KeyId | None = ""
    sig: Annotated[str, Meta(max_length=4096)]


class Envelope(Struct, frozen=True, kw_only=True, rename={"payload_type": "payloadType"}):
    """A signed payload, in base64."""

    payload_type: _Type
    payload: str
    signatures: Annotated[tuple[Signature, ...], Meta(max_length=MOST_SIGNATURES)]

    @property
    def content(self) -> bytes:
        """The payload's bytes; the envelope was checked when it was read."""
        return _unpacked(self.payload)


def parse(data: bytes, where: str) -> Envelope:
    """Return an envelope; raise `InvalidError` if it is malformed or too large."""
    try:
        envelope = decoding.convert(decoding.strict_json(data), Envelope)
        _unpacked(envelope.payload)
        for signature in envelope.signatures:
            _unpacked(signature.sig)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidError(
            f"{where}: not a signature envelope (DSSE): {printable(str(error), 200)}",
            Hint(
                "It is damaged, or another kind of file. Sign again",
                ("sign", "--key", "KEY", "FILE"),
            ),
        ) from error
    return envelope


def sign(content: bytes, payload_type: str, key: PrivateKey) -> Envelope:
    """Return the envelope of a payload with one signature."""
    return Envelope(
        payload_type=payload_type,
        payload=base64.b64encode(content).decode(),
        signatures=(_signature(content, payload_type, key),),
    )


def also_signed(envelope: Envelope, key: PrivateKey) -> Envelope:
    """Return the envelope with a further signature; unchanged if this key has signed it before."""
    content = envelope.content
    payload_type = envelope.payload_type
    if _signs(envelope, key.public):
        return envelope
    others = [s for s in envelope.signatures if s.keyid != key.public.id]
    signatures = (*others, _signature(content, payload_type, key))
    if len(signatures) > MOST_SIGNATURES:
        raise InvalidError(f"more than {MOST_SIGNATURES} signatures of one file")
    return msgspec.structs.replace(envelope, signatures=signatures)


def _signature(content: bytes, payload_type: str, key: PrivateKey) -> Signature:
    made = key.sign(_to_sign(content, payload_type))
    return Signature(keyid=key.public.id, sig=base64.b64encode(made).decode())


def signer(envelope: Envelope, trusted: Sequence[PublicKey], where: str) -> PublicKey:
    """Return the trusted key that signed an envelope.

    Raise `ChangedPayloadError` if a trusted key is named but did not sign this payload,
    `UnknownKeyError` if no trusted key signed it.
    """
    for key in trusted:
        if _signs(envelope, key):
            return key
    named = {s.keyid or "" for s in envelope.signatures}
    if changed := sorted(named & {key.id for key in trusted}):
        raise ChangedPayloadError(
            f"{where}: the signed content was changed: the signature of key {changed[0]} does not"
            " match it",
            "Get it again from where it was signed, with its signature.",
        )
    listed = ", ".join(printable(n, 64) for n in sorted(named - {""})) or "a key that is not named"
    trusted_ids = ", ".join(key.id for key in trusted) or "none"
    raise UnknownKeyError(
        f"{where}: signed by {listed}, but not by a trusted key ({trusted_ids})"
        + ("" if named - {""} else "; or it was changed after it was signed"),
        "Compare the key ids with those of the maker, over another channel.",
    )


def _signs(envelope: Envelope, key: PublicKey) -> bool:
    content = _to_sign(envelope.content, envelope.payload_type)
    return any(key.verifies(_unpacked(s.sig), content) for s in envelope.signatures)


def _to_sign(content: bytes, payload_type: str) -> bytes:
    """Return DSSE's pre-authentication encoding, which is what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(content), content)


def _unpacked(text: str) -> bytes:
    """Return the bytes of base64 in either alphabet; raise `ValueError` unless it is canonical."""
    plain = text if {"+", "/"} & set(text) else text.translate(_URL_SAFE)
    try:
        data = base64.b64decode(plain, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    if base64.b64encode(data).decode() != plain:
        raise ValueError("not canonical base64")
    return data
