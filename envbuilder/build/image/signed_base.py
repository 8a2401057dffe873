"""Require that a published base image is signed, if the configuration says so.

A copy of an accepted signature is stored with the base images, so that a build needs no network
once it has the base. The copy is checked each time as the registry's signature is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from envbuilder.core import bounded, decoding, files
from envbuilder.core.errors import BuildError, EnvbuilderError, SignatureError
from envbuilder.core.settings import require_writable

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.containers.oci.simple_signing import Signature
    from envbuilder.core.settings import Settings
    from envbuilder.signatures.statement import Signed

_LARGEST = 1 << 16


def require(ref: str, settings: Settings) -> tuple[Signed, ...]:
    """Return the signature of a base image, nothing if none is required.

    Raise `SignatureError` if it is not signed by a trusted key, `BuildError` if that cannot be
    found out because its registry does not answer.
    """
    trusted = settings.configuration.signatures.images
    if trusted is None:
        return ()
    from envbuilder.containers.oci import image_names, reference, simple_signing
    from envbuilder.containers.registry import signed_images, transfer
    from envbuilder.signatures import keys
    from envbuilder.signatures.refusals import UnsignedError

    image = None if image_names.on_disk(ref) else reference.parse(ref)
    if image is None or image.digest is None:
        raise UnsignedError(
            f"{ref}: not named by a digest in a registry, so it has no signature to check",
            "The configuration requires signed base images: name one as REF@sha256:….",
        )
    copy = settings.bases_dir / f"{image.digest.removeprefix('sha256:')}.signature.json"
    public_keys, name = keys.publics(trusted), f"{image.name}@{image.digest}"
    if earlier := _earlier(copy):
        with contextlib.suppress(SignatureError):  # by a key that is no longer trusted, or damaged
            return (simple_signing.accepted(earlier, public_keys, image.digest, name),)
    for place in reference.mirrored(image, settings.configuration.mirrors):
        try:
            connection = transfer.connect(place, settings)
            signature, signed = signed_images.require_signed(connection, image.digest, public_keys)
        except EnvbuilderError as error:
            problem = error  # in the end the registry's own, whatever a mirror answered
        else:
            require_writable(copy.parent)
            files.save(copy, msgspec.json.encode(signature), BuildError, "Make room.")
            return (replace(signed, name=name),)  # without the name of a mirror
    raise problem


def _earlier(path: Path) -> Signature | None:
    from envbuilder.containers.oci.simple_signing import Signature

    try:
        return decoding.from_json(bounded.read(path, _LARGEST), Signature)
    except (OSError, msgspec.DecodeError):
        return None
