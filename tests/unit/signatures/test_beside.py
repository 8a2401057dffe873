"""Signature files next to what they sign."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core.errors import BuildError, InvalidError, SignatureError
from envbuilder.signatures import beside
from envbuilder.signatures import envelope as envelopes
from envbuilder.signatures import statement as statements
from envbuilder.signatures.refusals import OtherSubjectError, UnsignedError
from envbuilder.signatures.statement import Subject
from tests.support import absence, signing

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.signatures.keys import PrivateKey

KIND = "urn:test:v1"
DIGEST = {"sha256": "a" * 64}
STATEMENT = statements.make([Subject(name="it", digest=DIGEST)], KIND, {})


@pytest.fixture
def key(tmp_path: Path) -> PrivateKey:
    return signing.read_key(signing.lay_key(tmp_path / "key.pem"))


def require(files: list[Path], *trusted: PrivateKey) -> statements.Signed:
    return beside.require("it", files, [k.public for k in trusted], KIND, DIGEST)[1]


def test_one_line_that_several_keys_sign(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "it.intoto.jsonl"
    assert beside.path_for(tmp_path / "it") == path
    beside.write(path, STATEMENT, key)
    before = path.read_bytes()
    beside.write(path, STATEMENT, key)
    assert path.read_bytes() == before  # signed already
    other = signing.read_key(signing.lay_key(tmp_path / "other.pem", "ed25519"))
    beside.write(path, STATEMENT, other)
    assert path.read_bytes().count(b"\n") == 1
    assert len(json.loads(path.read_bytes())["signatures"]) == 2
    assert require([path], key).keyid == key.public.id
    assert require([path], other).keyid == other.public.id


def test_another_content_replaces_the_signature(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "it.intoto.jsonl"
    changed = statements.make([Subject(digest={"sha256": "b" * 64})], KIND, {})
    beside.write(path, changed, key)
    with pytest.raises(OtherSubjectError):
        require([path], key)
    beside.write(path, STATEMENT, key)
    assert require([path], key).keyid == key.public.id
    path.write_bytes(b"")
    beside.write(path, STATEMENT, key)
    assert require([path], key).keyid == key.public.id


@pytest.mark.parametrize("content", ["{}", "-----BEGIN PRIVATE KEY-----\n", "notes", "\x00"])
def test_nothing_is_replaced_that_is_no_signature_file(
    content: str, key: PrivateKey, tmp_path: Path
) -> None:
    path = tmp_path / "it.intoto.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidError, match="exists, and is no signature file") as refused:
        beside.write(path, STATEMENT, key)
    assert "--output" in refused.value.hint
    assert path.read_text() == content


def test_lines_of_other_tools_are_read(key: PrivateKey, tmp_path: Path) -> None:
    first, second, path = (tmp_path / f"{n}.intoto.jsonl" for n in (1, 2, 3))
    beside.write(first, statements.make([Subject(digest={"a": "b"})], "urn:other", {}), key)
    beside.write(second, STATEMENT, key)
    spaced = json.dumps(json.loads(second.read_bytes())).encode()  # blanks after commas, as others
    path.write_bytes(first.read_bytes() + b"\n" + spaced)
    assert require([path], key).type == KIND
    path.write_bytes(second.read_bytes() * 16)
    assert len(beside.read(path)) == 16
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
        beside.write(tmp_path / "key.pem" / "x", STATEMENT, key)


OTHER = {"sha256": "b" * 64}
DOCUMENT = json.loads(STATEMENT)
REFUSED: dict[str, dict[str, Any]] = {
    "another subject": {**DOCUMENT, "subject": [{"name": "it", "digest": OTHER}]},
    "another digest": {**DOCUMENT, "subject": [{"name": "it", "digest": {"sha512": "a" * 64}}]},
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


def signed(statement: Any, key: PrivateKey, kind: str = statements.PAYLOAD_TYPE) -> dict[str, Any]:
    made = envelopes.sign(json.dumps(statement).encode(), kind, key)
    envelope: dict[str, Any] = json.loads(envelopes.encode(made))
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
    kind = "text/plain" if reason == "another payload type" else statements.PAYLOAD_TYPE
    envelope = signed(statement, signer, kind)
    if reason == "changed":
        envelope["payload"] = signed(REFUSED["another subject"], key)["payload"]
    lacking = [*absence.without_each(envelope)]
    if reason != "changed":
        lacking += [(n, signed(each, signer, kind)) for n, each in absence.without_each(statement)]
    for name, each in [("", envelope), *lacking]:
        assert not accepts(json.dumps(each), key, tmp_path), name
