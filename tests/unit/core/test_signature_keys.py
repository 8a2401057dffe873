"""Key files of every kind: those that are used, and those that are refused by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519

from envbuilder.core import signatures
from envbuilder.core.errors import InvalidError, ToolError
from tests.support import signing


def read(
    path: Path, passphrase: bytes = b"", notes: list[str] | None = None
) -> signatures.PrivateKey:
    return signatures.read_private_key(
        path, lambda: passphrase, (notes if notes is not None else []).append
    )


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
@pytest.mark.parametrize("passphrase", [b"", "päss phräse".encode()])
def test_a_key_signs_and_its_public_key_verifies(
    kind: str, passphrase: bytes, tmp_path: Path
) -> None:
    path = signing.lay_key(tmp_path / "key.pem", kind, passphrase)
    key = read(path, passphrase)
    public = signatures.read_public_key(str(tmp_path / "key.pub"))
    assert public.id == key.public.id
    assert len(public.id) == 64
    signature = key.sign(b"content")
    assert public.verifies(signature, b"content")
    assert not public.verifies(signature, b"content!")
    assert not public.verifies(signature[:-1], b"content")
    assert not public.verifies(b"", b"content")
    other = signatures.read_public_key(
        str(signing.lay_key(tmp_path / "other.pem", kind).with_suffix(".pub"))
    )
    assert not other.verifies(signature, b"content")
    assert (
        signatures.read_public_key((tmp_path / "key.pub").read_text()).id == public.id
    )  # the text itself


def test_the_passphrase_is_asked_for_only_if_there_is_one(tmp_path: Path) -> None:
    signatures.read_private_key(
        signing.lay_key(tmp_path / "key.pem"),
        Mock(side_effect=AssertionError("nothing is encrypted")),
        print,
    )
    closed = signing.lay_key(tmp_path / "closed.pem", "p256", b"right")
    for wrong in (b"wrong", b""):
        with pytest.raises(InvalidError, match="passphrase is wrong") as raised:
            read(closed, wrong)
        assert "right" not in raised.value.message
        assert raised.value.__cause__ is None


def test_a_key_that_others_may_read_is_noted(tmp_path: Path) -> None:
    path = signing.lay_key(tmp_path / "key.pem")
    notes: list[str] = []
    read(path, notes=notes)
    assert notes == []
    for mode in (0o640, 0o604):
        path.chmod(mode)
        read(path, notes=notes)
    assert len(notes) == 2
    assert "chmod 600" in notes[0]


def test_a_key_through_a_pipe_or_after_a_remark(tmp_path: Path) -> None:
    """As a shell's `<(…)` and a file with a name above the key give it."""
    path = signing.lay_key(tmp_path / "key.pem").with_suffix(".pub")
    expected = signatures.read_public_key(str(path)).id
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb") as stream:
            stream.write(path.read_bytes())
        assert signatures.read_public_key(f"/dev/fd/{reading}").id == expected
    finally:
        os.close(reading)
    path.write_bytes("Schlüssel von Jürgen\n".encode() + path.read_bytes())
    assert signatures.read_public_key(str(path)).id == expected


def pem(key: Any, form: forms.PrivateFormat = forms.PrivateFormat.PKCS8) -> bytes:
    data: bytes = key.private_bytes(forms.Encoding.PEM, form, forms.NoEncryption())
    return data


OTHER_KEYS = {
    "rsa": lambda: rsa.generate_private_key(65537, 1024),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "ed448": ed448.Ed448PrivateKey.generate,
    "x25519": x25519.X25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", OTHER_KEYS)
def test_other_kinds_of_keys_are_refused(kind: str, tmp_path: Path) -> None:
    key = OTHER_KEYS[kind]()
    (tmp_path / "key.pem").write_bytes(pem(key))
    with pytest.raises(InvalidError, match=r"/key\.pem: unsupported key type: P-256"):
        read(tmp_path / "key.pem")
    form = forms.PublicFormat.SubjectPublicKeyInfo
    text = key.public_key().public_bytes(forms.Encoding.PEM, form).decode()
    with pytest.raises(InvalidError, match="the key in the configuration: unsupported key type"):
        signatures.read_public_key(text)


COSIGN = """\
-----BEGIN ENCRYPTED {} PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCJ9fQ==
-----END ENCRYPTED {} PRIVATE KEY-----
"""


@pytest.mark.parametrize("name", ["SIGSTORE", "COSIGN"])
def test_cosign_s_own_key_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cosign.key"
    path.write_text(COSIGN.format(name, name))
    with pytest.raises(InvalidError, match="cosign's own encrypted format") as raised:
        read(path)
    assert "Sign with cosign" in raised.value.hint
    assert "openssl genpkey" in raised.value.hint


def test_private_keys_of_other_forms_say_how_to_convert(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(signing.generated("p256"), forms.PrivateFormat.TraditionalOpenSSL))
    with pytest.raises(InvalidError, match="EC PRIVATE KEY") as raised:
        read(path)
    assert "openssl pkcs8 -topk8" in raised.value.hint


def test_private_and_public_are_not_confused(tmp_path: Path) -> None:
    path = signing.lay_key(tmp_path / "key.pem")
    with pytest.raises(InvalidError, match="PUBLIC KEY") as raised:
        read(path.with_suffix(".pub"))
    assert "private key" in raised.value.hint
    with pytest.raises(InvalidError, match="expected a public key, found: PRIVATE KEY") as raised:
        signatures.read_public_key(str(path))
    assert "-pubout" in raised.value.hint


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff\xfe", b"no key at all"])
def test_what_is_no_pem_file_says_how_to_make_a_key(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    for call in (lambda: read(path), lambda: signatures.read_public_key(str(path))):
        with pytest.raises(InvalidError, match=r"/key\.pem: not a PEM file, ") as raised:
            call()
        assert "openssl genpkey" in raised.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"-----BEGIN PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        b"x" * (signatures._LARGEST_KEY + 1),
    ],
)
def test_what_is_no_key_is_an_error_with_a_hint(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        read(path, b"x")
    with pytest.raises(InvalidError):
        signatures.read_public_key(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidError, match="cannot be read"):
            read(path)
        with pytest.raises(InvalidError, match="cannot be read"):
            signatures.read_public_key(str(path))


def test_the_same_key_twice_is_one_key(tmp_path: Path) -> None:
    path = signing.lay_key(tmp_path / "a.pem").with_suffix(".pub")
    assert len(signatures.read_public_keys([str(path), path.read_text()])) == 1


def test_without_cryptography_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = signing.lay_key(tmp_path / "a.pem")
    for name in [n for n in sys.modules if n.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for call in (
        lambda: read(path),
        lambda: signatures.read_public_key(str(path.with_suffix(".pub"))),
    ):
        with pytest.raises(ToolError, match="cryptography") as raised:
            call()
        assert "envbuilder-ml[sign]" in raised.value.hint
