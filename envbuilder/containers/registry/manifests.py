"""Manifests and indexes in a registry's repository: read within limits, checked, and written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.containers.oci.descriptor import (
    INDEX,
    INDEXES,
    JSON_LIMIT,
    MANIFEST,
    MANIFESTS,
    Descriptor,
    Index,
    decode,
    digest_of,
)
from envbuilder.containers.registry.connection import BrokenOffError, limited
from envbuilder.core.errors import InvalidError, WrongHashError
from envbuilder.core.http import Attempts

if TYPE_CHECKING:
    from envbuilder.containers.registry.connection import Connection
    from envbuilder.core import types

OK, CREATED, ACCEPTED, NOT_FOUND = 200, 201, 202, 404
ACCEPT = {"Accept": ", ".join(sorted(INDEXES | MANIFESTS))}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Kind(Struct, frozen=True, rename="camel"):
    """The keys that distinguish a manifest from an index."""

    media_type: str | None = None
    config: dict[str, object] | None = None
    layers: list[object] | None = None
    manifests: list[object] | None = None


def read(connection: Connection, reference: str) -> tuple[Descriptor, bytes]:
    """Return a manifest or an index by digest or tag, and its bytes.

    Its type is taken from the bytes alone, since they are what a digest covers. Raise
    `WrongHashError` if the registry sends other bytes than the digest names, `BuildError` if it
    sends none, `InvalidError` if they are something else.
    """
    data = _fetch(connection, reference, (OK,))
    assert data is not None, "any other status was refused"
    return _checked(connection, reference, data)


def find(connection: Connection, reference: str) -> tuple[Descriptor, bytes] | None:
    """Return what `read` returns, or None if the repository has nothing of that name."""
    data = _fetch(connection, reference, (OK, NOT_FOUND))
    return None if data is None else _checked(connection, reference, data)


def _checked(connection: Connection, reference: str, data: bytes) -> tuple[Descriptor, bytes]:
    where = f"{connection.name}: {reference}"
    digest = digest_of(data)
    if _DIGEST.fullmatch(reference) and digest != reference:
        raise WrongHashError(
            f"{where}: the received content has the digest {digest}",
            "The registry or a proxy changes the content. Nothing was kept.",
        )
    kind = decode(data, _Kind, where)
    if kind.manifests is not None and kind.config is None and kind.layers is None:
        media_type, allowed = kind.media_type or INDEX, INDEXES
    elif kind.manifests is None and kind.config is not None and kind.layers is not None:
        media_type, allowed = kind.media_type or MANIFEST, MANIFESTS
    else:
        media_type, allowed = "", frozenset()
    if media_type not in allowed:
        raise InvalidError(f"{where}: neither a supported image nor a supported image index")
    return Descriptor(media_type=media_type, digest=digest, size=len(data)), data


def _fetch(connection: Connection, reference: str, accept: tuple[int, ...]) -> bytes | None:
    url = connection.url(f"manifests/{reference}")
    problem = ""
    for _ in Attempts(connection.pause):
        response = connection.request("GET", url, reference, accept=accept, headers=ACCEPT)
        try:
            data = limited(response, JSON_LIMIT)
            if response.status_code != OK:
                return None
        except BrokenOffError as error:
            problem = str(error)
            continue
        if data is None:
            raise InvalidError(
                f"{connection.name}: {reference}: a manifest of more than {JSON_LIMIT} bytes"
            )
        return data
    raise connection.failure(reference, problem)


def choose(index: Index, platform: types.Platform, where: str) -> Descriptor:
    """Return the only image of an index for a platform.

    Raise `InvalidError` if there is none or several.
    """
    images = {
        d.digest: d
        for d in index.manifests
        if d.media_type in MANIFESTS and d.platform and d.platform.is_of(platform)
    }
    if len(images) == 1:
        return next(iter(images.values()))
    have = sorted(
        {f"{d.platform.os}/{d.platform.architecture}" for d in index.manifests if d.platform}
    )
    raise InvalidError(
        f"{where}: holds {len(images) or 'no'} images for {platform}",
        f"It holds: {', '.join(have) or 'no images'}. One image for it is needed.",
    )


def put(connection: Connection, reference: str, media_type: str, data: bytes) -> int:
    """Push a manifest or an index under a tag or its digest; return the bytes transferred.

    Everything it references must be in the registry already. Raise `BuildError` if the push fails.
    """
    digest = digest_of(data)
    url = connection.url(f"manifests/{reference}")
    existing = connection.ask("HEAD", url, reference, accept=(OK, NOT_FOUND), headers=ACCEPT)
    if existing.status == OK and existing.headers.get("Docker-Content-Digest") == digest:
        return 0
    headers = {"Content-Type": media_type}
    answer = connection.ask(
        "PUT", url, reference, accept=(CREATED, ACCEPTED), headers=headers, data=data
    )
    reported = answer.headers.get("Docker-Content-Digest", digest)
    if reported != digest:
        raise WrongHashError(
            f"{connection.name}: {reference}: the registry reports digest {reported},"
            f" expected {digest}",
            "A proxy may be rewriting the upload.",
        )
    return len(data)
