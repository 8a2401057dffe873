"""DSSE envelopes: who signed, and what hostile ones do."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core import signatures
from envbuilder.core.errors import InvalidError
from envbuilder.core.signatures import ChangedPayloadError, Envelope, PrivateKey, UnknownKeyError
from tests.support.envelopes import signed_envelope

KIND = "application/vnd.in-toto+json"


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def changed(envelope: Envelope, **values: Any) -> Envelope:
    """What somebody else makes of an envelope, read again."""
    document = {**json.loads(msgspec.json.encode(envelope)), **values}
    return signatures.parse_envelope(json.dumps(document).encode(), "it")


def signer(envelope: Envelope, *trusted: PrivateKey) -> signatures.PublicKey:
    return signatures.signer(envelope, [each.public for each in trusted], "it")


def test_the_specification_s_own_encoding() -> None:
    """From the test vector in dsse's protocol.md."""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert signatures._to_sign(b"hello world", "http://example.com/HelloWorld") == expected


def test_the_trusted_key_that_signed_is_returned(key: PrivateKey, other: PrivateKey) -> None:
    envelope = signatures.parse_envelope(
        msgspec.json.encode(signed_envelope(b"x", KIND, key)), "it"
    )
    assert envelope.content == b"x"
    assert signer(envelope, other, key).id == key.public.id
    with pytest.raises(UnknownKeyError) as raised:
        signer(envelope, other)
    assert key.public.id in raised.value.message
    assert other.public.id in raised.value.message
    with pytest.raises(UnknownKeyError):
        signer(envelope)


def test_a_changed_payload_is_told_from_an_unknown_key(key: PrivateKey, other: PrivateKey) -> None:
    envelope = signed_envelope(b"x", KIND, key)
    for forged in (
        changed(envelope, payload=text(b"y")),
        changed(envelope, payloadType="text/plain"),  # the type is signed, too
        changed(envelope, signatures=[{"keyid": key.public.id, "sig": text(b"no")}]),
        changed(envelope, signatures=[{"keyid": key.public.id, "sig": ""}]),
    ):
        with pytest.raises(ChangedPayloadError, match="was changed"):
            signer(forged, key)
        with pytest.raises(UnknownKeyError):
            signer(forged, other)


def test_the_key_id_decides_nothing(key: PrivateKey, other: PrivateKey) -> None:
    """It is a hint that is not signed."""
    made = signed_envelope(b"x", KIND, other).signatures[0].sig
    claims = changed(
        signed_envelope(b"x", KIND, other),
        signatures=[{"keyid": key.public.id, "sig": made}],
    )
    with pytest.raises(ChangedPayloadError):
        signer(claims, key)
    assert signer(claims, other).id == other.public.id
    for unnamed in ({"sig": made}, {"keyid": "", "sig": made}, {"keyid": None, "sig": made}):
        envelope = changed(claims, signatures=[unnamed])  # as cosign writes it
        assert signer(envelope, other).id == other.public.id
        with pytest.raises(UnknownKeyError, match="or changed after"):
            signer(envelope, key)


def test_a_second_signature_is_added_once(key: PrivateKey, other: PrivateKey) -> None:
    envelope = signed_envelope(b"x", KIND, key)
    assert signatures.also_signed(envelope, key) is envelope
    both = signatures.also_signed(envelope, other)
    for one in (key, other):
        assert signer(both, one).id == one.public.id
    damaged = changed(envelope, signatures=[{"keyid": key.public.id, "sig": ""}])
    assert len(signatures.also_signed(damaged, key).signatures) == 1
    others = [{"keyid": str(n), "sig": ""} for n in range(16)]
    nearly = changed(envelope, signatures=others[:15])
    assert len(signatures.also_signed(nearly, key).signatures) == 16
    full = changed(envelope, signatures=others)
    with pytest.raises(InvalidError, match="16"):
        signatures.also_signed(full, key)


def test_unknown_keys_are_ignored_and_both_alphabets_read(key: PrivateKey) -> None:
    content = b"\xfb\xff\xfe"
    envelope = signed_envelope(content, KIND, key)
    assert "+" in envelope.payload or "/" in envelope.payload
    url_safe = envelope.payload.replace("+", "-").replace("/", "_")
    more = [{**json.loads(msgspec.json.encode(envelope))["signatures"][0], "cert": "…"}]
    read = changed(envelope, payload=url_safe, signatures=more, something={"else": 1})
    assert read.content == content
    assert signer(read, key).id == key.public.id


VALID = {"payloadType": KIND, "payload": "eA==", "signatures": [{"keyid": "", "sig": "eA=="}]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b"[" * 100_000,
        *(json.dumps({k: v for k, v in VALID.items() if k != gone}).encode() for gone in VALID),
        *(
            json.dumps({**VALID, **wrong}).encode()
            for wrong in (
                {"payload": 1},
                {"payload": None},
                {"payload": "eA"},  # no padding
                {"payload": "eB=="},  # bits that decode to nothing: two texts for one content
                {"payload": "e A=="},
                {"payload": "eA==\n"},
                {"payload": "ä"},
                {"payload": "-_-_/w=="},  # both alphabets
                {"payload": "-A+A"},
                {"payload": "_A/A"},
                {"payloadType": "x" * 257},
                {"signatures": {}},
                {"signatures": [1]},
                {"signatures": [{"keyid": ""}]},
                {"signatures": [{"keyid": "", "sig": "!"}]},
                {"signatures": [{"keyid": 1, "sig": ""}]},
                {"signatures": [{"keyid": "", "sig": "A" * 5000}]},
                {"signatures": [{"keyid": "", "sig": ""}] * 17},
            )
        ),
        b'{"payloadType": "a", "payloadType": "b", "payload": "", "signatures": []}',
        b'{"payload": "", "payload": "eA==", "payloadType": "b", "signatures": []}',
        b'{"payload": "", "payloadType": "\\ud800", "signatures": []}',
        b" " * ((16 << 20) + 1),
    ],
    ids=range(32),
)
def test_hostile_envelopes_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidError, match="it: not a signature envelope") as raised:
        signatures.parse_envelope(content, "it")
    assert len(raised.value.message) < 300


def test_an_envelope_without_signatures_is_nobody_s(key: PrivateKey) -> None:
    envelope = signatures.parse_envelope(json.dumps({**VALID, "signatures": []}).encode(), "it")
    with pytest.raises(UnknownKeyError):
        signer(envelope, key)


@given(st.binary(max_size=200), st.text(max_size=40))
def test_any_content_and_type_come_back(content: bytes, kind: str) -> None:
    envelope = signatures.Envelope(payload_type=kind, payload=text(content), signatures=())
    assert signatures.parse_envelope(msgspec.json.encode(envelope), "it").content == content


@given(st.binary(max_size=300))
def test_any_bytes_are_an_envelope_or_an_error(content: bytes) -> None:
    with contextlib.suppress(InvalidError):
        signatures.parse_envelope(content, "it")
