"""Five ways in which a signature is not accepted, each an error of its own."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core.errors import VERIFY_FAILED
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import (
    ChangedPayloadError,
    OtherSubjectError,
    UnknownKeyError,
    UnsignedError,
    WrongTypeError,
    first_accepted,
)
from envbuilder.signatures.statement import Subject
from tests.support import signing

if TYPE_CHECKING:
    from envbuilder.signatures.keys import PrivateKey

KIND = "urn:test:v1"
DIGEST = {"sha256": "a" * 64}
SUBJECT = Subject(name="it", digest=DIGEST)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path_factory.mktemp("k") / "key.pem"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path_factory.mktemp("k") / "key.pem"))


def judged(
    content: bytes, signer: PrivateKey, trusted: PrivateKey, **changes: Any
) -> statements.Signed:
    kind = changes.pop("payload_type", statements.PAYLOAD_TYPE)
    document = json.loads(envelopes.encode(envelopes.sign(content, kind, signer))) | changes
    envelope = envelopes.parse(json.dumps(document).encode(), "it")
    return statements.accepted(envelope, [trusted.public], KIND, DIGEST, "it")[1]


def test_a_statement_about_the_bytes_in_hand_is_accepted(key: PrivateKey) -> None:
    further = Subject(name="more", digest={"sha512": "c" * 128, "sha256": "b" * 64})
    signed = judged(statements.make([further, SUBJECT], KIND, {}), key, key)
    assert signed == statements.Signed(
        name="it", digest=f"sha256:{'a' * 64}", type=KIND, keyid=key.public.id
    )


def test_cosign_s_older_statements_are_accepted(key: PrivateKey) -> None:
    document = json.loads(statements.make([SUBJECT], KIND, {}))
    document["_type"] = "https://in-toto.io/Statement/v0.1"
    assert judged(json.dumps(document).encode(), key, key).keyid == key.public.id


def test_each_refusal_has_its_own_error(key: PrivateKey, other: PrivateKey) -> None:
    good = statements.make([SUBJECT], KIND, {})
    payload = base64.b64encode(statements.make([SUBJECT], KIND, {"a": 1})).decode()
    elsewhere = statements.make([Subject(digest={"sha256": "b" * 64})], KIND, {})
    cases = {
        UnknownKeyError: lambda: judged(good, other, key),
        ChangedPayloadError: lambda: judged(good, key, key, payload=payload),
        WrongTypeError: lambda: judged(statements.make([SUBJECT], "urn:other", {}), key, key),
        OtherSubjectError: lambda: judged(elsewhere, key, key),
        UnsignedError: lambda: first_accepted((), lambda e: e, "it: not signed"),
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
    """A digest under another name is another digest."""
    for digest in ({"sha512": "a" * 64}, {"envbuilderTree": "a" * 64}, {}, {"sha256": "A" * 64}):
        with pytest.raises(OtherSubjectError):
            judged(statements.make([Subject(digest=digest)], KIND, {}), key, key)


def test_the_payload_type_is_part_of_what_is_accepted(key: PrivateKey) -> None:
    good = statements.make([SUBJECT], KIND, {})
    with pytest.raises(WrongTypeError, match="text/plain"):
        judged(good, key, key, payload_type="text/plain")
    with pytest.raises(ChangedPayloadError):  # and cannot be exchanged afterwards
        judged(good, key, key, payloadType="text/plain")


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


def test_a_refusal_says_what_is_signed_in_few_words(key: PrivateKey) -> None:
    with pytest.raises(WrongTypeError, match=r"no in-toto statement: .*missing required field"):
        judged(b"{}", key, key)
    document = json.loads(statements.make([SUBJECT], KIND, {}))
    document["_type"] = "https://example.org/" + "x" * 9_999
    with pytest.raises(WrongTypeError, match=r"unknown version: https://example\.org/x+") as raised:
        judged(json.dumps(document).encode(), key, key)
    assert len(raised.value.message) < 200
    document["_type"] = ["x" * 9_999]
    with pytest.raises(WrongTypeError) as raised:
        judged(json.dumps(document | {"x" * 9_999: 1}).encode(), key, key)
    assert len(raised.value.message) < 300
    subjects = [Subject(digest={"sha256": f"{n}{'b' * 500}"}) for n in range(2)]
    digests = {"sha256": "a" * 64, "sha512": "c" * 128}
    pairs = [d for s in subjects for d in s.digest.items()]
    refusal = statements.other_subject("it", digests, pairs)
    assert refusal.message.endswith(f"this is sha256:{'a' * 64}, sha512:{'c' * 128}")
    assert "it names sha256:0bbb" in refusal.message
    assert len(refusal.message) < 800
    many = statements.other_subject("it", digests, [("sha256", str(n)) for n in range(9)])
    assert "it names sha256:0, sha256:1, sha256:2; " in many.message


def test_the_payload_is_not_read_before_its_signature(key: PrivateKey, other: PrivateKey) -> None:
    with pytest.raises(UnknownKeyError):
        judged(b"{", other, key)


def test_of_several_the_error_closest_to_acceptance_is_raised() -> None:
    def refuse(error: type[Exception]) -> None:
        raise error("it: no")

    order = (UnknownKeyError, OtherSubjectError, ChangedPayloadError)
    with pytest.raises(OtherSubjectError):
        first_accepted(order, refuse, "")
    assert first_accepted((1, 2), lambda e: e, "") == 1


def test_the_same_statement_has_the_same_bytes() -> None:
    first = statements.make([SUBJECT], KIND, {"b": 1, "a": 2})
    assert first == statements.make([SUBJECT], KIND, {"a": 2, "b": 1})
    assert "Übung".encode() in statements.make([Subject(name="Übung", digest=DIGEST)], KIND, {})
