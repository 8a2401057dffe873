"""Five ways in which a signature is not accepted, each an error of its own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.core import signatures
from envbuilder.core.errors import VERIFY_FAILED, BuildError, InvalidError, SignatureError
from envbuilder.core.signatures import (
    ChangedPayloadError,
    OtherSubjectError,
    PrivateKey,
    Subject,
    UnknownKeyError,
    UnsignedError,
    WrongTypeError,
)
from tests.support import absence, signing
from tests.support.envelopes import signed_envelope
from tests.support.folders import read_json

KIND = "urn:test:v1"
DIGEST = {"sha256": "a" * 64}
SUBJECT = Subject(name="it", digest=DIGEST)
STATEMENT = signatures.make_statement([SUBJECT], KIND, {})
OTHER = {"sha256": "b" * 64}
ELSEWHERE = signatures.make_statement([Subject(digest=OTHER)], KIND, {})


def judged(
    content: bytes, signer: PrivateKey, trusted: PrivateKey, **changes: Any
) -> signatures.Signed:
    kind = changes.pop("payload_type", signatures.PAYLOAD_TYPE)
    document = json.loads(msgspec.json.encode(signed_envelope(content, kind, signer))) | changes
    envelope = signatures.parse_envelope(json.dumps(document).encode(), "it")
    return signatures.accepted(envelope, [trusted.public], KIND, DIGEST, "it")[1]


def require(files: list[Path], *trusted: PrivateKey) -> signatures.Signed:
    return signatures.require_signed("it", files, [k.public for k in trusted], KIND, DIGEST)[1]


def test_a_statement_about_the_bytes_in_hand_is_accepted(key: PrivateKey) -> None:
    further = Subject(name="more", digest={"sha512": "c" * 128, **OTHER})
    signed = judged(signatures.make_statement([further, SUBJECT], KIND, {}), key, key)
    assert signed == signatures.Signed(
        name="it", digest=f"sha256:{'a' * 64}", type=KIND, keyid=key.public.id
    )


def test_cosign_s_older_statements_are_accepted(key: PrivateKey) -> None:
    document = json.loads(STATEMENT)
    document["_type"] = "https://in-toto.io/Statement/v0.1"
    assert judged(json.dumps(document).encode(), key, key).keyid == key.public.id


def test_each_refusal_has_its_own_error(key: PrivateKey, other: PrivateKey) -> None:
    payload = base64.b64encode(signatures.make_statement([SUBJECT], KIND, {"a": 1})).decode()
    cases = {
        UnknownKeyError: lambda: judged(STATEMENT, other, key),
        ChangedPayloadError: lambda: judged(STATEMENT, key, key, payload=payload),
        WrongTypeError: lambda: judged(
            signatures.make_statement([SUBJECT], "urn:other", {}), key, key
        ),
        OtherSubjectError: lambda: judged(ELSEWHERE, key, key),
        UnsignedError: lambda: require([], key),
    }
    messages = set()
    for error, case in cases.items():
        with pytest.raises(error) as raised:
            case()
        assert raised.value.exit_code == VERIFY_FAILED
        assert raised.value.message.startswith("it: ")
        assert raised.value.hint
        messages.add(raised.value.message.split(":")[1].split()[0] + raised.value.hint)
    assert len(messages) == 5


def test_the_subject_s_algorithm_must_match(key: PrivateKey) -> None:
    """A digest under another name is a different digest."""
    for digest in ({"sha512": "a" * 64}, {"envbuilderTree": "a" * 64}, {}, {"sha256": "A" * 64}):
        with pytest.raises(OtherSubjectError):
            judged(signatures.make_statement([Subject(digest=digest)], KIND, {}), key, key)


def test_the_payload_type_is_part_of_what_is_accepted(key: PrivateKey) -> None:
    with pytest.raises(WrongTypeError, match="text/plain"):
        judged(STATEMENT, key, key, payload_type="text/plain")
    with pytest.raises(ChangedPayloadError):  # and cannot be exchanged afterwards
        judged(STATEMENT, key, key, payloadType="text/plain")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'{"_type": "https://in-toto.io/Statement/v1"}',
        (
            b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:test:v1",'
            b' "subject": []}'
        ),
        b'{"_type": "https://in-toto.io/Statement/v9", "predicateType": "urn:test:v1",'
        b' "subject": [{"digest": {"sha256": "%s"}}]}' % (b"a" * 64),
        b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:test:v1",'
        b' "predicateType": "urn:test:v1", "subject": [{"digest": {"sha256": "%s"}}]}'
        % (b"a" * 64),
        (
            b'{"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:test:v1",'
            b' "subject": [{"digest": {"sha256": 1}}]}'
        ),
    ],
)
def test_what_is_signed_but_no_statement_is_of_the_wrong_type(
    content: bytes, key: PrivateKey
) -> None:
    with pytest.raises(WrongTypeError):
        judged(content, key, key)


def test_the_payload_is_not_read_before_its_signature(key: PrivateKey, other: PrivateKey) -> None:
    with pytest.raises(UnknownKeyError):
        judged(b"{", other, key)


def test_of_several_the_error_closest_to_acceptance_is_raised(
    key: PrivateKey, other: PrivateKey, tmp_path: Path
) -> None:
    purpose = signatures.make_statement([SUBJECT], "urn:other", {})
    refused = {
        UnknownKeyError: signed_envelope(purpose, signatures.PAYLOAD_TYPE, other),
        WrongTypeError: signed_envelope(purpose, signatures.PAYLOAD_TYPE, key),
        OtherSubjectError: signed_envelope(ELSEWHERE, signatures.PAYLOAD_TYPE, key),
    }
    path = tmp_path / "it.intoto.jsonl"
    for error, envelope in refused.items():  # each is closer than those before it
        lines = path.read_bytes() if path.exists() else b""
        path.write_bytes(msgspec.json.encode(envelope) + b"\n" + lines)
        with pytest.raises(error):
            require([path], key)
    good = signed_envelope(STATEMENT, signatures.PAYLOAD_TYPE, key)
    path.write_bytes(path.read_bytes() + msgspec.json.encode(good))
    assert require([path], key).keyid == key.public.id


def test_the_same_statement_has_the_same_bytes() -> None:
    first = signatures.make_statement([SUBJECT], KIND, {"b": 1, "a": 2})
    assert first == signatures.make_statement([SUBJECT], KIND, {"a": 2, "b": 1})
    assert "Übung".encode() in signatures.make_statement(
        [Subject(name="Übung", digest=DIGEST)], KIND, {}
    )


# --- Signature files next to what they sign


def test_one_line_that_several_keys_sign(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "it.intoto.jsonl"
    assert signatures.path_beside(tmp_path / "it") == path
    signatures.write_signatures(path, STATEMENT, key)
    before = path.read_bytes()
    signatures.write_signatures(path, STATEMENT, key)
    assert path.read_bytes() == before  # signed already
    other = signing.read_key(signing.lay_key(tmp_path / "other.pem", "ed25519"))
    signatures.write_signatures(path, STATEMENT, other)
    assert path.read_bytes().count(b"\n") == 1
    assert len(read_json(path)["signatures"]) == 2
    assert require([path], key).keyid == key.public.id
    assert require([path], other).keyid == other.public.id


@pytest.mark.parametrize("content", ["{}", "-----BEGIN PRIVATE KEY-----\n", "notes", "\x00"])
def test_nothing_is_replaced_that_is_no_signature_file(
    content: str, key: PrivateKey, tmp_path: Path
) -> None:
    path = tmp_path / "it.intoto.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidError, match="already exists and is not a signature file") as refused:
        signatures.write_signatures(path, STATEMENT, key)
    assert refused.value.hint == "Move the file away."
    assert path.read_text() == content


def test_lines_of_other_tools_are_read(key: PrivateKey, tmp_path: Path) -> None:
    first, second, path = (tmp_path / f"{n}.intoto.jsonl" for n in (1, 2, 3))
    signatures.write_signatures(
        first, signatures.make_statement([Subject(digest={"a": "b"})], "urn:other", {}), key
    )
    signatures.write_signatures(second, STATEMENT, key)
    spaced = json.dumps(read_json(second)).encode()  # blanks after commas, as others
    path.write_bytes(first.read_bytes() + b"\n" + spaced)
    assert require([path], key).type == KIND
    path.write_bytes(second.read_bytes() * 16)
    assert len(signatures.read_signatures(path)) == 16
    path.write_bytes(second.read_bytes() * 17)
    with pytest.raises(InvalidError, match="16 envelopes"):
        require([path], key)


def test_without_a_signature(key: PrivateKey, tmp_path: Path) -> None:
    missing = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(UnsignedError, match="not signed") as raised:
        require(missing, key)
    assert raised.value.message.endswith(f"no signature in {missing[0]} or {missing[1]}")
    (tmp_path / "a").write_bytes(b"\n")
    with pytest.raises(UnsignedError):
        require(missing, key)


def test_files_that_are_damaged_or_too_large(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"{}\n")
    with pytest.raises(InvalidError, match="a:1: not a signature envelope"):
        require([path], key)
    with path.open("wb") as stream:
        stream.truncate((16 << 20) + 1)
    with pytest.raises(InvalidError, match="16 MiB"):
        require([path], key)
    with pytest.raises(InvalidError, match="cannot be read"):
        require([tmp_path], key)
    with pytest.raises(BuildError, match="cannot be written"):
        signatures.write_signatures(path / "x", STATEMENT, key)


DOCUMENT = json.loads(STATEMENT)
REFUSED: dict[str, dict[str, Any]] = {
    "another subject": {**DOCUMENT, "subject": [{"name": "it", "digest": OTHER}]},
    "a different digest": {**DOCUMENT, "subject": [{"name": "it", "digest": {"sha512": "a" * 64}}]},
    "another purpose": {**DOCUMENT, "predicateType": "urn:other"},
    "another version": {**DOCUMENT, "_type": "https://in-toto.io/Statement/v9"},
}


def accepts(content: str, key: PrivateKey, folder: Path) -> bool:
    """Whether a signature file is accepted; anything but a refusal fails the test."""
    path = folder / "it.intoto.jsonl"
    path.write_text(content)
    try:
        return require([path], key).digest == f"sha256:{DIGEST['sha256']}"
    except (InvalidError, SignatureError):
        return False


def signed(statement: Any, key: PrivateKey, kind: str = signatures.PAYLOAD_TYPE) -> dict[str, Any]:
    made = signed_envelope(json.dumps(statement).encode(), kind, key)
    envelope: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return envelope


def test_a_signature_that_lacks_a_part_proves_no_more(key: PrivateKey, tmp_path: Path) -> None:
    """A part of the envelope is lacking, or of the statement, which is signed without it."""
    parts = [(n, signed(each, key)) for n, each in absence.without_each(DOCUMENT)]
    parts += absence.without_each(signed(DOCUMENT, key))
    accepted = {name for name, each in parts if accepts(json.dumps(each), key, tmp_path)}
    assert accepted == {"predicate", "subject.0.name", "signatures.0.keyid"}
    assert accepts(json.dumps(signed(DOCUMENT, key)), key, tmp_path)
    assert not accepts("", key, tmp_path)


@pytest.mark.parametrize("reason", [*REFUSED, "another key", "another payload type", "changed"])
def test_a_refused_signature_is_not_accepted_for_what_it_lacks(
    reason: str, key: PrivateKey, tmp_path: Path
) -> None:
    statement = REFUSED.get(reason, DOCUMENT)
    signer = key
    if reason == "another key":
        signer = signing.read_key(signing.lay_key(tmp_path / "other.pem"))
    kind = "text/plain" if reason == "another payload type" else signatures.PAYLOAD_TYPE
    envelope = signed(statement, signer, kind)
    if reason == "changed":
        envelope["payload"] = signed(REFUSED["another subject"], key)["payload"]
    lacking = [*absence.without_each(envelope)]
    if reason != "changed":
        lacking += [(n, signed(each, signer, kind)) for n, each in absence.without_each(statement)]
    for name, each in [("", envelope), *lacking]:
        assert not accepts(json.dumps(each), key, tmp_path), name
