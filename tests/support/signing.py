"""Keys for tests, and files signed with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from envbuilder.core import signatures
from envbuilder.core.signatures import PrivateKey

PEM = forms.Encoding.PEM


def generated(kind: str) -> Any:
    """A new key: `p256` or `ed25519`."""
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def lay(key: Any, path: Path, passphrase: bytes = b"") -> Path:
    """Write a key as PKCS#8 to `path`, its public key to `path.pub`; return the former."""
    hidden: Any = forms.NoEncryption()
    if passphrase:
        hidden = forms.BestAvailableEncryption(passphrase)
    path.write_bytes(key.private_bytes(PEM, forms.PrivateFormat.PKCS8, hidden))
    path.chmod(0o600)
    form = forms.PublicFormat.SubjectPublicKeyInfo
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(PEM, form))
    return path


def lay_key(path: Path, kind: str = "p256", passphrase: bytes = b"") -> Path:
    """Write a new key pair; return the path of the private one."""
    return lay(generated(kind), path, passphrase)


def read_key(path: Path) -> PrivateKey:
    """Read a private key without a passphrase."""
    return signatures.read_private_key(path, lambda: b"", lambda line: None)
