"""Pull and push images between registries and layouts: by digest, checked, only what is missing.

The SBOM and the provenance of an image are referrers: manifests of their own that name the image as
their subject, so that its digest does not change. In registries without lists of referrers, an
index under the tag `sha256-…` serves as one.
"""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import as_completed
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.containers.oci.layout import (
    EMPTY,
    INDEX,
    INDEXES,
    JSON_LIMIT,
    MANIFEST,
    Descriptor,
    Index,
    Layout,
    Manifest,
    decode,
    encode,
    oci_platform,
    only_image,
)
from envbuilder.containers.registry.blobs import receive, remaining, send
from envbuilder.containers.registry.connection import (
    ACCEPT,
    NOT_FOUND,
    OK,
    BrokenOffError,
    Connection,
    limited,
)
from envbuilder.core import process, types
from envbuilder.core.errors import BuildError, InvalidError, make_room
from envbuilder.core.text import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from envbuilder.containers.oci.reference import Reference
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings

PARALLEL = 4
_DEPTH = 2
"""Maximum depth of nested indexes that are followed."""
_T = TypeVar("_T")
_WRITES = 3
_NO_LISTS = (400, 404, 405, 501)


class Pushed(Struct, frozen=True, kw_only=True):
    """The result of a push."""

    digest: types.Digest
    bytes: int
    """Bytes of blobs and manifests transferred."""
    sent: int
    """Blobs that were uploaded."""
    present: int
    """Blobs that were already there."""


def connect(reference: Reference, settings: Settings) -> Connection:
    """Return a connection to a reference's repository, as the user configured it."""
    plain = reference.host in settings.configuration.plain_http
    return Connection(reference, plain_http=plain)


def pull(
    connection: Connection,
    reference: str,
    layout: Layout,
    platform: types.Platform,
    progress: Progress,
) -> int:
    """Pull the image of one platform into a layout; return the bytes of blobs transferred.

    `reference` is a digest or a tag. Of an index, only this platform's image is pulled; the index
    itself is kept as a blob, so that its digest can be checked later. Blobs already in the layout
    are checked and not pulled again.
    Raise `BuildError` if the pull fails, `WrongHashError` for bytes that do not match their digest,
    `InvalidError` if there is no image for the platform.
    """
    where = f"{connection.name}: {reference}"
    with progress.task(f"ask {connection.host} for {connection.repository}"):
        descriptor, data = connection.read_manifest(reference)
        if descriptor.media_type in INDEXES:
            _keep(layout, descriptor, data)
            chosen = only_image(decode(data, Index, where).manifests, platform, where)
            descriptor, data = connection.read_manifest(chosen.digest)
    manifest = decode(data, Manifest, where)
    _keep(layout, descriptor, data)
    missing = [b for b in _unique(manifest.blobs) if not _has(layout, b)]
    _require_room(layout, sum(remaining(layout, b) for b in missing))
    brought = _side_by_side(
        connection,
        [partial(receive, connection, b, layout) for b in missing],
        f"pull {connection.name}",
        sum(b.size for b in missing),
        progress,
    )
    _require_platform(layout, manifest, platform, where)
    image = replace(descriptor, platform=oci_platform(platform))
    others = tuple(d for d in layout.index().manifests if d.digest != image.digest)
    with contextlib.suppress(OSError):
        (layout.folder / "partial").rmdir()
    # Last: an image that is listed is complete.
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(*others, image)))
    return sum(brought)


def push(
    connection: Connection,
    reference: str,
    layout: Layout,
    image: Descriptor,
    progress: Progress,
) -> Pushed:
    """Push an image of a layout, or an index with all of its images, to a registry.

    `reference` is the tag or the digest to push to. Raise `BuildError` if the push fails; the next
    one does not transfer again the blobs that have arrived.
    """
    if reference.startswith("sha256:") and reference != image.digest:
        raise InvalidError(
            f"{connection.name}@{reference}: the image has another digest: {image.digest}"
        )
    described = _below(layout, image, _DEPTH)
    parts: list[Descriptor] = []
    for each in described:
        if each.media_type not in INDEXES:
            parts += layout.read_manifest(each).blobs
    blobs = _unique(parts)
    sent = _side_by_side(
        connection,
        [partial(send, connection, b, layout) for b in blobs],
        f"push {connection.name}",
        sum(b.size for b in blobs),
        progress,
    )
    names = (*(d.digest for d in described[:-1]), reference)
    written = sum(
        connection.put_manifest(name, d.media_type, layout.read(d))
        for name, d in zip(names, described, strict=True)
    )
    return Pushed(
        digest=image.digest,
        bytes=written + sum(filter(None, sent)),
        sent=len(sent) - sent.count(None),
        present=sent.count(None),
    )


def make_referrer(
    layout: Layout,
    subject: Descriptor,
    media_type: str,
    content: bytes,
) -> Descriptor:
    """Add a referrer of `subject` to a layout; the same content gives the same digest."""
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        artifact_type=media_type,
        config=layout.add(b"{}", EMPTY),
        layers=(layout.add(content, media_type),),
        subject=Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size),
    )
    return layout.add(encode(manifest), MANIFEST, artifact_type=media_type)


def attach(
    connection: Connection,
    layout: Layout,
    attachment: Descriptor,
    progress: Progress,
) -> Pushed:
    """Push a referrer to the image's repository, and ensure that it is listed."""
    pushed = push(connection, attachment.digest, layout, attachment, progress)
    subject = layout.read_manifest(attachment).subject
    if subject is None:
        raise BuildError(f"{attachment.digest}: names no subject")
    # None: the registry keeps no list of its own.
    if _index(connection, f"referrers/{subject.digest}", (OK, *_NO_LISTS)) is None:
        _list_by_tag(connection, attachment, subject.digest)
    return pushed


def _below(layout: Layout, of: Descriptor, depth: int) -> tuple[Descriptor, ...]:
    """Return what an image or index consists of, itself last: registries need the parts first."""
    if of.media_type not in INDEXES:
        return (of,)
    if not depth:
        raise InvalidError(f"{of.digest}: image indexes are nested too deeply")
    parts = decode(layout.read(of), Index, of.digest).manifests
    below = [_below(layout, part, depth - 1) for part in parts]
    return _unique([*chain.from_iterable(below), of])


def _unique(descriptors: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    return tuple({d.digest: d for d in descriptors}.values())


def _keep(layout: Layout, descriptor: Descriptor, data: bytes) -> None:
    if not _has(layout, descriptor):
        layout.add(data, descriptor.media_type)


def _has(layout: Layout, blob: Descriptor) -> bool:
    """Return whether a layout has a blob with the right bytes; remove wrong ones."""
    if not layout.blob(blob.digest).is_file():
        return False
    try:
        layout.checked(blob)
    except BuildError:
        layout.blob(blob.digest).unlink()
        return False
    return True


def _require_room(layout: Layout, needed: int) -> None:
    free = shutil.disk_usage(layout.folder).free
    if needed > free:
        raise BuildError(
            f"not enough space in {layout.folder}: {gigabytes(needed)} are needed,"
            f" {gigabytes(free)} are free",
            make_room("ENVBUILDER_CACHE_DIR"),
        )


def _require_platform(
    layout: Layout, manifest: Manifest, platform: types.Platform, where: str
) -> None:
    """Raise `InvalidError` if an image's configuration names another platform."""
    config = layout.read_config(manifest)
    actual = f"{config.get('os')}/{config.get('architecture')}"
    if actual != platform:
        raise InvalidError(f"{where}: is for {actual}, not for {platform}")


def _side_by_side(
    connection: Connection,
    transfers: Sequence[Callable[[Callable[[int], None]], _T]],
    name: str,
    total: int,
    progress: Progress,
) -> list[_T]:
    """Run transfers in parallel; the first failure stops the others and is raised."""
    if not transfers:
        return []
    with (
        progress.task(name, total, unit="bytes") as task,
        process.pool(PARALLEL, connection.session.stop) as pool,
    ):
        jobs = [pool.submit(transfer, task.advance) for transfer in transfers]
        for done in as_completed(jobs):
            done.result()
        return [job.result() for job in jobs]


def _index(connection: Connection, path: str, accept: tuple[int, ...]) -> Index | None:
    subject = f"the list of referrers ({path.rpartition('/')[2]})"
    response = connection.request(
        "GET", connection.url(path), subject, accept=accept, headers=ACCEPT
    )
    with response:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        if response.status_code != OK or kind != INDEX:
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
        current = _index(connection, f"manifests/{tag}", (OK, NOT_FOUND)) or Index(
            schema_version=2, media_type=INDEX, manifests=()
        )
        if any(d.digest == attachment.digest for d in current.manifests):
            return
        listed = replace(current, manifests=(*current.manifests, attachment))
        connection.put_manifest(tag, INDEX, encode(listed))
    raise connection.failure(tag, "the list of referrers loses what is added to it")
