"""Referrers of an image in a registry (its SBOM, its provenance), and the list of them.

A referrer is a manifest of its own that names the image as its subject: the image's digest does not
change. In registries without such lists, an index under the tag `sha256-…` serves as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.containers.oci.descriptor import (
    EMPTY,
    INDEX,
    JSON_LIMIT,
    MANIFEST,
    Descriptor,
    Index,
    Manifest,
    decode,
    encode,
)
from envbuilder.containers.registry import manifests, transfer
from envbuilder.containers.registry.responses import BrokenOffError, limited
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envbuilder.containers.oci.layout import Layout
    from envbuilder.containers.registry.connection import Connection
    from envbuilder.core import types
    from envbuilder.core.console import Progress

_WRITES = 3
_NO_LISTS = (400, 404, 405, 501)


def make(
    layout: Layout,
    subject: Descriptor,
    artifact_type: str,
    media_type: str,
    content: bytes,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Add a referrer of `subject` to a layout; the same content gives the same digest."""
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        artifact_type=artifact_type,
        config=layout.add(b"{}", EMPTY),
        layers=(layout.add(content, media_type),),
        subject=Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size),
        annotations=dict(annotations or {}),
    )
    return layout.add(
        encode(manifest), MANIFEST, artifact_type=artifact_type, annotations=manifest.annotations
    )


def attach(
    connection: Connection,
    layout: Layout,
    attachment: Descriptor,
    notes: Path,
    progress: Progress,
) -> transfer.Pushed:
    """Push a referrer from `make` to the image's repository, and ensure that it is listed."""
    pushed = transfer.push(connection, attachment.digest, layout, attachment, notes, progress)
    subject = layout.read_manifest(attachment).subject
    if subject is None:
        raise BuildError(f"{attachment.digest}: names no subject")
    if _listed(connection, subject.digest) is None:
        _list_by_tag(connection, attachment, subject.digest)
    return pushed


def _listed(connection: Connection, digest: types.Digest) -> Index | None:
    """Return the registry's own list of referrers; None if it keeps none."""
    return _index(connection, f"referrers/{digest}", (manifests.OK, *_NO_LISTS))


def _tagged(connection: Connection, digest: types.Digest) -> Index | None:
    path = f"manifests/{digest.replace(':', '-')}"
    return _index(connection, path, (manifests.OK, manifests.NOT_FOUND))


def _index(connection: Connection, path: str, accept: tuple[int, ...]) -> Index | None:
    subject = f"the list of referrers ({path.rpartition('/')[2]})"
    response = connection.request(
        "GET", connection.url(path), subject, accept=accept, headers=manifests.ACCEPT
    )
    with response:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        if response.status_code != manifests.OK or kind != INDEX:
            return None
        try:
            data = limited(response, JSON_LIMIT)
        except BrokenOffError as error:
            raise connection.failure(subject, str(error)) from None
    if data is None:
        raise connection.failure(subject, f"has more than {JSON_LIMIT} bytes")
    return decode(data, Index, f"{connection.name}: {subject}")


def _list_by_tag(connection: Connection, attachment: Descriptor, digest: types.Digest) -> None:
    """Add a referrer to the tagged list, and read it again: other processes may write to it."""
    tag = digest.replace(":", "-")
    for _ in range(_WRITES):
        current = _tagged(connection, digest) or Index(
            schema_version=2, media_type=INDEX, manifests=()
        )
        if any(d.digest == attachment.digest for d in current.manifests):
            return
        listed = replace(current, manifests=(*current.manifests, attachment))
        manifests.put(connection, tag, INDEX, encode(listed))
    raise connection.failure(tag, "the list of referrers loses what is added to it")
