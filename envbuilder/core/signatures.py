"""Sign and verify files with keys.

Signatures are DSSE envelopes over in-toto statements, in `FILE.intoto.jsonl`. Locks and bundles are
signed in the same way, and this module knows neither format. Keys are P-256 (ECDSA with SHA-256) or
ed25519 keys in PEM files. Private keys are PKCS#8, with or without a passphrase. Public keys are
SubjectPublicKeyInfo, as used by cosign, openssl and podman's policy. The id of a key is the sha256
of the public key in DER form. cryptography is an optional dependency that is imported only when a
key is read.

The signature of an envelope (https://github.com/secure-systems-lab/dsse) also covers the type of
the payload, so that no payload can be passed off as one of another type. Unknown keys in the JSON
are ignored, as the specification requires. The in-toto project recommends the suffix
`.intoto.jsonl` for files with one envelope per line. cosign, gh and slsa-verifier read such files.
envbuilder writes a single envelope, which several keys can sign, because cosign reads only one
envelope.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files
from envbuilder.core.errors import (
    BuildError,
    Hint,
    InvalidError,
    SignatureError,
    ToolError,
    printable,
)
from envbuilder.core.settings import is_key_text

_LARGEST_KEY = 1 << 16
"""Maximum size in bytes of a key file. Its path is set by a project or a user.

Supported keys have fewer than 500 bytes.
"""
_KINDS = "P-256 (ECDSA) and ed25519 are supported"
_LABEL = re.compile(r"^-----BEGIN ([A-Z0-9 /]{1,64})-----", re.MULTILINE)
_ANYONE = stat.S_IRWXG | stat.S_IRWXO


class PublicKey:
    """A public key that verifies signatures."""

    def __init__(self, key: Any, where: str) -> None:
        ec, ed25519, serialization = _modules("ec", "ed25519", "serialization")
        is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        if not is_p256 and not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidError(f"{where}: unsupported key type: {_KINDS}")
        self._key = key
        self._is_p256 = is_p256
        der = key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.id = hashlib.sha256(der).hexdigest()

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether `signature` was made by this key for `content`."""
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
    """A private key that makes signatures."""

    def __init__(self, key: Any, where: str) -> None:
        if not hasattr(key, "sign"):
            raise InvalidError(f"{where}: unsupported key type: {_KINDS}")
        self._key = key
        self.public = PublicKey(key.public_key(), where)

    def sign(self, content: bytes) -> bytes:
        """Sign the content and return the signature."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(content, ec.ECDSA(hashes.SHA256()))
        signature: bytes = self._key.sign(content)
        return signature


def read_private_key(
    path: Path, passphrase: Callable[[], bytes], note: Callable[[str], object]
) -> PrivateKey:
    """Read a private key from a file. `passphrase` is only called if the key is encrypted.

    `note` is called with a warning if other users may read an unencrypted key. Raise `InvalidError`
    if the file is not a usable private key, or if the passphrase is wrong.
    """
    (serialization,) = _modules("serialization")
    content = files.read_named(path, _LARGEST_KEY)
    where = str(path)
    label = _label(content, str(path))
    if "ENCRYPTED" in label and ("SIGSTORE" in label or "COSIGN" in label):
        raise InvalidError(
            f"{where}: this key is in cosign's own encrypted format, which only cosign can read",
            "Sign with cosign: envbuilder verifies its signatures with the public key. Or sign"
            " with a PKCS#8 key: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
            " -aes256 -out key.pem",
        )
    if label not in {"PRIVATE KEY", "ENCRYPTED PRIVATE KEY"}:
        convert = f"openssl pkcs8 -topk8 -in {path.name} -out key.pem"
        raise InvalidError(
            f"{where}: expected a PKCS#8 private key, found: {label}",
            f"Convert it: {convert}" if label.endswith("PRIVATE KEY") else "Name the private key.",
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


def read_public_key(text: str) -> PublicKey:
    """Read a public key. `text` is either the path of a PEM file or the PEM text itself.

    Raise `InvalidError` if the text or file is not a usable public key.
    """
    (serialization,) = _modules("serialization")
    inline = is_key_text(text)
    where = "the key in the configuration" if inline else text
    content = text.strip().encode() if inline else files.read_named(Path(text), _LARGEST_KEY)
    label = _label(content, where)
    if label != "PUBLIC KEY":
        hint = "Name the public key."
        if label.endswith("PRIVATE KEY"):
            hint += " To write it: openssl pkey -in key.pem -pubout -out key.pub"
        raise InvalidError(f"{where}: expected a public key, found: {label}", hint)
    try:
        key = serialization.load_pem_public_key(content)
    except _unloadable() as error:
        raise _unreadable(where, error) from None
    return PublicKey(key, where)


def read_public_keys(keys: Iterable[str]) -> tuple[PublicKey, ...]:
    """Read public keys from paths or PEM texts, and return them without duplicates."""
    return tuple({key.id: key for key in map(read_public_key, keys)}.values())


def _label(content: bytes, where: str) -> str:
    """Return the label of the only PEM block. Raise `InvalidError` unless there is exactly one."""
    labels = _LABEL.findall(content.decode("ascii", "replace"))
    if len(labels) != 1:
        problem = "several PEM blocks" if labels else "not a PEM file"
        raise InvalidError(f"{where}: {problem}, expected a file with one key", _MAKE)
    return str(labels[0])


_MAKE = (
    "Make one: openssl genpkey -algorithm ed25519 -out key.pem, then"
    " openssl pkey -in key.pem -pubout -out key.pub"
)


def _unloadable() -> tuple[type[Exception], ...]:
    """Return the exceptions that cryptography raises for data that is not a supported key."""
    from cryptography.exceptions import UnsupportedAlgorithm

    return ValueError, TypeError, UnsupportedAlgorithm


def _unreadable(where: str, error: Exception) -> InvalidError:
    """Return the `InvalidError` for a file that cryptography cannot read as a key."""
    return InvalidError(f"{where}: not a readable key: {printable(str(error), 200)}", _MAKE)


def _modules(*names: str) -> tuple[Any, ...]:
    """Import modules of the cryptography package by name.

    Raise `ToolError` if the package is not installed.
    """
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


# --- envelopes

MOST_SIGNATURES = 16
"""Maximum number of signatures in an envelope.

Anybody can write an envelope, and each signature is checked against every trusted key.
"""
_URL_SAFE = str.maketrans("-_", "+/")

_KeyId = Annotated[str, Meta(max_length=512)]
_Type = Annotated[str, Meta(max_length=256)]


class UnsignedError(SignatureError):
    """Error raised if a file has no signature at all."""


class UnknownKeyError(SignatureError):
    """Error raised if none of the signatures was made by a trusted key."""


class ChangedPayloadError(SignatureError):
    """Error raised if a signature has a trusted key's id but does not match the content."""


class WrongTypeError(SignatureError):
    """Error raised if a trusted key signed a statement of another type or about another builder."""


class OtherSubjectError(SignatureError):
    """Error raised if a trusted key signed a statement about different content."""


class Signature(Struct, frozen=True, kw_only=True):
    """A signature in base64 with the id of its key. Some tools leave the id empty."""

    keyid: _KeyId | None = ""
    sig: Annotated[str, Meta(max_length=4096)]


class Envelope(Struct, frozen=True, kw_only=True, rename={"payload_type": "payloadType"}):
    """A signed payload in base64 and its signatures."""

    payload_type: _Type
    payload: str
    signatures: Annotated[tuple[Signature, ...], Meta(max_length=MOST_SIGNATURES)]

    @property
    def content(self) -> bytes:
        """The payload's bytes. The base64 was already checked when the envelope was parsed."""
        return _unpacked(self.payload)


def parse_envelope(data: bytes, where: str) -> Envelope:
    """Parse an envelope. Raise `InvalidError` if it is malformed or too large."""
    try:
        envelope = decoding.convert(decoding.strict_json(data), Envelope)
        _unpacked(envelope.payload)
        for signature in envelope.signatures:
            _unpacked(signature.sig)
    except ValueError as error:
        raise InvalidError(
            f"{where}: not a signature envelope (DSSE): {printable(str(error), 200)}",
            Hint(
                "The file is damaged or of another kind. Sign again",
                ("sign", "--key", "KEY", "FILE"),
            ),
        ) from error
    return envelope


def also_signed(envelope: Envelope, key: PrivateKey) -> Envelope:
    """Return an envelope with an additional signature by `key`.

    If the key has already signed the envelope, return it unchanged. Raise `InvalidError` if the
    envelope already has `MOST_SIGNATURES` signatures.
    """
    if _signs(envelope, key.public):
        return envelope
    others = [s for s in envelope.signatures if s.keyid != key.public.id]
    made = key.sign(_to_sign(envelope.content, envelope.payload_type))
    signature = Signature(keyid=key.public.id, sig=base64.b64encode(made).decode())
    signatures = (*others, signature)
    if len(signatures) > MOST_SIGNATURES:
        raise InvalidError(f"a file can have at most {MOST_SIGNATURES} signatures")
    return replace(envelope, signatures=signatures)


def signer(envelope: Envelope, trusted: Sequence[PublicKey], where: str) -> PublicKey:
    """Return the trusted key that signed an envelope.

    Raise `ChangedPayloadError` if a signature has the id of a trusted key but does not match this
    payload, and `UnknownKeyError` if no trusted key signed the envelope.
    """
    for key in trusted:
        if _signs(envelope, key):
            return key
    key_ids = {s.keyid or "" for s in envelope.signatures}
    if changed := sorted(key_ids & {key.id for key in trusted}):
        raise ChangedPayloadError(
            f"{where}: the signed content was changed, so the signature of key {changed[0]} does"
            " not match it",
            "Get the file and its signature again from the signer.",
        )
    shown = ", ".join(printable(n, 64) for n in sorted(key_ids - {""})) or "an unnamed key"
    trusted_ids = ", ".join(key.id for key in trusted) or "none"
    raise UnknownKeyError(
        f"{where}: signed by {shown}, but not by a trusted key ({trusted_ids})"
        + ("" if key_ids - {""} else ", or changed after it was signed"),
        "Ask the signer for the key ids over another channel, and compare them.",
    )


def _signs(envelope: Envelope, key: PublicKey) -> bool:
    content = _to_sign(envelope.content, envelope.payload_type)
    return any(key.verifies(_unpacked(s.sig), content) for s in envelope.signatures)


def _to_sign(content: bytes, payload_type: str) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding of the payload and its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(content), content)


def _unpacked(text: str) -> bytes:
    """Decode base64 in either alphabet. Raise `ValueError` if the text is not canonical base64."""
    plain = text if {"+", "/"} & set(text) else text.translate(_URL_SAFE)
    try:
        data = base64.b64decode(plain, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    if base64.b64encode(data).decode() != plain:
        raise ValueError("not canonical base64")
    return data


# --- statements and their files

SUFFIX = ".intoto.jsonl"
MOST_ENVELOPES = 16
"""Maximum number of envelopes in a signature file.

Anybody may put a signature file next to a signed file.
"""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPE = "https://in-toto.io/Statement/v1"
TYPES = frozenset({TYPE, "https://in-toto.io/Statement/v0.1"})
"""Accepted types of statements. Both have the same keys. cosign 2 writes the second one."""


class Subject(Struct, frozen=True, kw_only=True):
    """A file that a statement is about, with its name and its digests by algorithm."""

    name: Annotated[str, Meta(max_length=4096)] = ""
    digest: dict[str, str]


class Statement(Struct, frozen=True, kw_only=True, rename={"predicate_type": "predicateType"}):
    """An in-toto statement. Unknown keys are ignored, as the specification requires."""

    type: str = msgspec.field(name="_type")
    subject: Annotated[tuple[Subject, ...], Meta(min_length=1, max_length=4096)]
    predicate_type: str
    predicate: Any = None


class Signed(Struct, frozen=True, kw_only=True):
    """An accepted signature, with the signed file and the id of the trusted key that signed it."""

    name: str
    """Name of the signed file, as the user gave it."""
    digest: str
    """The digest of the file's bytes, including its algorithm: `sha256:…`."""
    type: str
    """The predicate type of the statement."""
    keyid: str


def make_statement(subjects: Sequence[Subject], predicate_type: str, predicate: object) -> bytes:
    """Return a statement as JSON. The same arguments always yield the same bytes."""
    document = {
        "_type": TYPE,
        "subject": [{"name": s.name, "digest": s.digest} for s in subjects],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    return json.dumps(document, sort_keys=True, ensure_ascii=False).encode()


def parse_statement(content: bytes, where: str) -> Statement:
    """Parse a statement. Raise `WrongTypeError` if the content is not an in-toto statement."""
    try:
        statement = decoding.convert(decoding.strict_json(content), Statement)
    except ValueError as error:
        problem = printable(str(error), 200)
        raise WrongTypeError(
            f"{where}: the signed content is not an in-toto statement: {problem}"
        ) from error
    if statement.type not in TYPES:
        shown = printable(statement.type, 100)
        raise WrongTypeError(f"{where}: unsupported version of the in-toto statement: {shown}")
    return statement


def accepted(
    envelope: Envelope,
    trusted: Sequence[PublicKey],
    predicate_type: str,
    digests: Mapping[str, str],
    where: str,
) -> tuple[Statement, Signed]:
    """Return an envelope's statement and signature if a trusted key signed the given digests.

    `digests` contains a file's digests by algorithm. At least one of them must match a subject of
    the statement. The signature is checked before anything in the payload is read. Raise a
    `SignatureError` if anything does not match.
    """
    key = signer(envelope, trusted, where)
    if envelope.payload_type != PAYLOAD_TYPE:
        raise WrongTypeError(
            f"{where}: the signed payload has the type {printable(envelope.payload_type, 100)},"
            f" expected {PAYLOAD_TYPE}"
        )
    statement = parse_statement(envelope.content, where)
    if statement.predicate_type != predicate_type:
        raise WrongTypeError(
            f"{where}: the signature is for {printable(statement.predicate_type, 100)}, expected"
            f" {predicate_type}",
            Hint(
                "The signature is for another purpose. Sign this file",
                ("sign", "--key", "KEY", where),
            ),
        )
    for algorithm, digest in digests.items():
        if any(s.digest.get(algorithm) == digest for s in statement.subject):
            return statement, Signed(
                name=where, digest=f"{algorithm}:{digest}", type=predicate_type, keyid=key.id
            )
    raise other_subject(where, digests, digests_of(statement))


def digests_of(statement: Statement) -> list[tuple[str, str]]:
    """Return the digests of all subjects as pairs of algorithm and digest."""
    return [*chain.from_iterable(subject.digest.items() for subject in statement.subject)]


def other_subject(
    where: str, digests: Mapping[str, str], signed: Sequence[tuple[str, str]]
) -> OtherSubjectError:
    """Return the error for a signature that was made for different content."""
    in_hand = ", ".join(f"{a}:{d}" for a, d in digests.items())
    about = printable(", ".join(f"{a}:{d}" for a, d in signed[:3]), 400)
    return OtherSubjectError(
        f"{where}: the signature does not match the file: it was made for {about}, but the file is"
        f" {in_hand}",
        "The file was changed, or the signature belongs to another file.",
    )


def path_beside(path: Path) -> Path:
    """Return the path of the signature file that belongs to a file."""
    return path.with_name(path.name + SUFFIX)


def read_signatures(path: Path) -> tuple[Envelope, ...]:
    """Read the envelopes in a signature file. Return an empty tuple if the file does not exist.

    Raise `InvalidError` if the file cannot be read or is malformed.
    """
    try:
        content = files.read(path, decoding.LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = [line for line in content.split(b"\n") if line.strip()]
    if len(lines) > MOST_ENVELOPES:
        raise InvalidError(f"{path}: more than {MOST_ENVELOPES} envelopes")
    return tuple(parse_envelope(line, f"{path}:{n}") for n, line in enumerate(lines, 1))


def write_signatures(path: Path, payload: bytes, key: PrivateKey) -> Path:
    """Sign a statement, write the signature file, and return its path.

    Signatures by other keys are kept if they are for the same statement. Raise `InvalidError` if
    the path contains another kind of file, such as the signed file or the key itself, and
    `BuildError` if the signature file cannot be written.
    """
    try:
        existing = read_signatures(path)
    except InvalidError as error:
        raise InvalidError(
            f"{path}: already exists and is not a signature file, so nothing was written",
            "Move the file away.",
        ) from error
    same = (e for e in existing if e.payload_type == PAYLOAD_TYPE and e.content == payload)
    earlier = next(same, None)
    content = base64.b64encode(payload).decode()
    unsigned = Envelope(payload_type=PAYLOAD_TYPE, payload=content, signatures=())
    files.save(
        path,
        msgspec.json.encode(also_signed(earlier or unsigned, key)) + b"\n",
        BuildError,
        "Copy the file to a folder you can write to, and sign the copy.",
    )
    return path


def require_signed(
    where: str,
    signature_files: Sequence[Path],
    trusted: Sequence[PublicKey],
    predicate_type: str,
    digests: Mapping[str, str],
) -> tuple[Statement, Signed]:
    """Return the first accepted statement about a file, with its signature.

    `where` is the name of the signed file, and `digests` contains its digests by algorithm. If no
    statement is accepted, raise the error of the attempt that came closest to acceptance, or
    `UnsignedError` if there is no signature.
    """
    errors: list[SignatureError] = []
    for candidate in chain.from_iterable(map(read_signatures, signature_files)):
        try:
            return accepted(candidate, trusted, predicate_type, digests, where)
        except SignatureError as error:
            errors.append(error)
    if not errors:
        names = " or ".join(map(str, signature_files))
        raise UnsignedError(
            f"{where}: not signed: there is no signature in {names}",
            Hint("Sign it", ("sign", "--key", "KEY", where)),
        )
    raise min(errors, key=lambda e: _CLOSEST.index(type(e)))


_CLOSEST = (OtherSubjectError, WrongTypeError, ChangedPayloadError, UnknownKeyError)
