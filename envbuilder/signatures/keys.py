"""Keys for signatures: P-256 (ECDSA with SHA-256) and ed25519, in PEM files.

Private keys are PKCS#8, with or without a passphrase; public keys are SubjectPublicKeyInfo, which
cosign, openssl and podman's policy share. The key id is the sha256 of the public key's DER form.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from envbuilder.core import files
from envbuilder.core.errors import InvalidError, ToolError, printable
from envbuilder.core.settings import is_key_text

LARGEST = 1 << 16
"""Maximum bytes of a key file; those of the supported kinds have less than 500."""
_KINDS = "P-256 (ECDSA) and ed25519 are supported"
_LABEL = re.compile(r"^-----BEGIN ([A-Z0-9 /]{1,64})-----", re.MULTILINE)
_ANYONE = stat.S_IRWXG | stat.S_IRWXO


class PublicKey:
    """A key that checks signatures."""

    def __init__(self, key: Any, where: str) -> None:
        ec, ed25519, serialization = _modules("ec", "ed25519", "serialization")
        is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        if not is_p256 and not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidError(f"{where}: another kind of key: {_KINDS}")
        self._key = key
        self._is_p256 = is_p256
        encoding = serialization.Encoding
        form = serialization.PublicFormat
        der = key.public_bytes(encoding.DER, form.SubjectPublicKeyInfo)
        self.id = hashlib.sha256(der).hexdigest()

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether this key made the signature of the content."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            if self._is_p256:
                self._key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
            else:
                self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """A key that signs."""

    def __init__(self, key: Any, where: str) -> None:
        if not hasattr(key, "sign"):
            raise InvalidError(f"{where}: another kind of key: {_KINDS}")
        self._key = key
        self.public = PublicKey(key.public_key(), where)

    def sign(self, content: bytes) -> bytes:
        """Return the signature of the content."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(content, ec.ECDSA(hashes.SHA256()))
        signature: bytes = self._key.sign(content)
        return signature


def private(
    path: Path, passphrase: Callable[[], bytes], note: Callable[[str], object]
) -> PrivateKey:
    """Read a private key; `passphrase` is called only if the key is encrypted.

    `note` gets a warning if other users may read an unencrypted key. Raise `InvalidError` if the
    file is not a usable private key, or the passphrase is wrong.
    """
    (serialization,) = _modules("serialization")
    content = files.read_named(path, LARGEST)
    where = str(path)
    label = _label(content, str(path))
    if "ENCRYPTED" in label and ("SIGSTORE" in label or "COSIGN" in label):
        raise InvalidError(
            f"{where}: a key file in cosign's own encrypted format, which only cosign reads",
            "Sign with cosign: its signatures are accepted here, by its public key. Or sign with a"
            " PKCS#8 key: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256"
            " -out key.pem",
        )
    if label not in {"PRIVATE KEY", "ENCRYPTED PRIVATE KEY"}:
        convert = f"openssl pkcs8 -topk8 -in {path.name} -out key.pem"
        raise InvalidError(
            f"{where}: not a PKCS#8 private key, but: {label}",
            f"Convert it: {convert}" if label.endswith("PRIVATE KEY") else "Give the private key.",
        )
    encrypted = label == "ENCRYPTED PRIVATE KEY"
    password = passphrase() if encrypted else None
    if not encrypted and path.stat().st_mode & _ANYONE:
        note(f"warning: {path}: other users may read this key: chmod 600 {path.name}")
    try:
        key = serialization.load_pem_private_key(content, password)
    except _unloadable() as error:
        if encrypted:
            raise InvalidError(f"{where}: the passphrase is wrong, or the key is damaged") from None
        raise _unreadable(where, error) from None
    return PrivateKey(key, where)


def public(named: str) -> PublicKey:
    """Return a public key from the path of a PEM file, or from the PEM text itself.

    Raise `InvalidError` if it is not a usable public key.
    """
    (serialization,) = _modules("serialization")
    inline = is_key_text(named)
    where = "the key in the configuration" if inline else named
    content = named.strip().encode() if inline else files.read_named(Path(named), LARGEST)
    label = _label(content, where)
    if label != "PUBLIC KEY":
        hint = "Give the public key."
        if label.endswith("PRIVATE KEY"):
            hint += " openssl pkey -in key.pem -pubout -out key.pub writes it."
        raise InvalidError(f"{where}: not a public key, but: {label}", hint)
    try:
        key = serialization.load_pem_public_key(content)
    except _unloadable() as error:
        raise _unreadable(where, error) from None
    return PublicKey(key, where)


def publics(named: Iterable[str]) -> tuple[PublicKey, ...]:
    """Return public keys, each once."""
    return tuple({key.id: key for key in map(public, named)}.values())


def _label(content: bytes, where: str) -> str:
    """Return what the only PEM block of a file claims to be."""
    labels = _LABEL.findall(content.decode("ascii", "replace"))
    if len(labels) != 1:
        problem = "several PEM blocks" if labels else "no PEM file"
        raise InvalidError(f"{where}: {problem}: a file with one key is needed", _MAKE)
    return str(labels[0])


_MAKE = (
    "Make one: openssl genpkey -algorithm ed25519 -out key.pem, then"
    " openssl pkey -in key.pem -pubout -out key.pub"
)


def _unloadable() -> tuple[type[Exception], ...]:
    """Return the errors that cryptography raises for something that is not a key."""
    from cryptography.exceptions import UnsupportedAlgorithm

    return ValueError, TypeError, UnsupportedAlgorithm


def _unreadable(where: str, error: Exception) -> InvalidError:
    """Return the error for a file that is not a key."""
    return InvalidError(f"{where}: not a readable key: {printable(str(error), 200)}", _MAKE)


def _modules(*names: str) -> tuple[Any, ...]:
    """Import parts of cryptography; raise `ToolError` if it is not installed."""
    from importlib import import_module

    primitives = "cryptography.hazmat.primitives"
    below = {"serialization": primitives}
    try:
        return tuple(
            import_module(f"{below.get(n, f'{primitives}.asymmetric')}.{n}") for n in names
        )
    except ImportError as error:
        raise ToolError(
            "signatures need the package cryptography, which is not installed",
            "Run: pip install 'envbuilder-ml[sign]'",
        ) from error
