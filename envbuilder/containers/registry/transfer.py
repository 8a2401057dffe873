"""Pull images from registries into layouts, and push images to registries.

Only missing blobs are transferred, and they are verified by digest. A pull resumes blobs that an
earlier pull left incomplete, even if that pull ran in another process.

The SBOM and the provenance of an image are referrers: separate manifests that specify the image as
their subject, so that the digest of the image does not change. If a registry does not list
referrers, an index with the tag `sha256-…` serves as the list.

Base images are pulled only once, into one OCI layout for each image and platform. These layouts are
not in the store, because an image consists of several blobs that belong together, other programs
can read a layout, and `bundle` packs the layout as it is.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import as_completed
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import (
    EMPTY,
    INDEX,
    INDEXES,
    JSON_LIMIT,
    MANIFEST,
    MARK,
    Descriptor,
    Index,
    Layout,
    Manifest,
    decode,
    encode,
    oci_platform,
    only_image,
)
from envbuilder.containers.registry.connection import (
    ACCEPT,
    NOT_FOUND,
    OK,
    BrokenOffError,
    Connection,
    limited,
)
from envbuilder.containers.registry.push import send
from envbuilder.core import files, process, types
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    Hint,
    InvalidError,
    WrongHashError,
    make_room,
)
from envbuilder.core.files import full_or_broken
from envbuilder.core.http import OtherSizeError, UnavailableError, download
from envbuilder.core.settings import Settings, require_writable
from envbuilder.core.text import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import requests

    from envbuilder.containers.oci.reference import Reference
    from envbuilder.core.console import Progress

PARALLEL = 4
_DEPTH = 2
"""Maximum depth to which nested indexes are followed."""
_T = TypeVar("_T")
_WRITES = 3
_NO_LISTS = (400, 404, 405, 501)


class Pushed(Struct, frozen=True, kw_only=True):
    """The result of pushing an image or a referrer."""

    digest: types.Digest
    bytes: int
    """Number of bytes of blobs and manifests that were transferred."""
    sent: int
    """Number of blobs that were uploaded."""
    mounted: int
    """Number of blobs that the registry mounted from another repository."""
    present: int
    """Number of blobs that the registry already had."""


def connect(reference: Reference, settings: Settings) -> Connection:
    """Return a connection to a reference's repository, over http if the user configured that."""
    return Connection(reference, plain_http=reference.host in settings.configuration.plain_http)


def pull(
    connection: Connection,
    reference: str,
    layout: Layout,
    platform: types.Platform,
    progress: Progress,
) -> int:
    """Pull the image for a platform into a layout. Return the number of blob bytes transferred.

    `reference` is a digest or a tag. If it refers to an index, only the image for this platform is
    pulled. The index itself is kept as a blob, so that its digest can be checked later. Blobs that
    are already in the layout are checked, but not pulled again.

    Raise `BuildError` if the pull fails, `WrongHashError` if bytes do not match their digest, and
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
    with suppress(OSError):
        (layout.folder / "partial").rmdir()
    # Last: an image that is listed is complete.
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(*others, image)))
    return sum(brought)


def push(
    connection: Connection,
    reference: str,
    layout: Layout,
    image: Descriptor,
    notes: Path,
    progress: Progress,
) -> Pushed:
    """Push an image in a layout, or an index with all of its images, to a registry.

    `reference` is the tag or the digest under which to push. `notes` is a folder that records which
    repository has which blob (`Settings.uploads_dir`). Raise `BuildError` if the push fails. Blobs
    that were pushed before a failure are not transferred again by the next push.
    """
    if reference.startswith("sha256:") and reference != image.digest:
        raise InvalidError(
            f"{connection.name}@{reference}: the image has a different digest: {image.digest}"
        )
    described = _below(layout, image, _DEPTH)
    parts: list[Descriptor] = []
    for descriptor in described:
        if descriptor.media_type not in INDEXES:
            parts += layout.read_manifest(descriptor).blobs
    blobs = _unique(parts)
    sent = _side_by_side(
        connection,
        [partial(send, connection, b, layout, notes) for b in blobs],
        f"push {connection.name}",
        sum(b.size for b in blobs),
        progress,
    )
    names = (*(d.digest for d in described[:-1]), reference)
    written = sum(
        connection.put_manifest(name, d.media_type, layout.read(d))
        for name, d in zip(names, described, strict=True)
    )
    how = [s.how for s in sent]
    return Pushed(
        digest=image.digest,
        bytes=written + sum(s.bytes for s in sent),
        sent=how.count("sent"),
        mounted=how.count("mounted"),
        present=how.count("present"),
    )


def make_referrer(
    layout: Layout,
    subject: Descriptor,
    media_type: str,
    content: bytes,
) -> Descriptor:
    """Add a referrer of `subject` to a layout, and return the descriptor of the referrer.

    The same content always results in the same digest.
    """
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
    subject: Descriptor,
    notes: Path,
    progress: Progress,
) -> Pushed:
    """Push a referrer of the image `subject` to the image's repository.

    If the registry does not list referrers itself, add the referrer to the index that has the
    image's `sha256-…` tag.
    """
    pushed = push(connection, attachment.digest, layout, attachment, notes, progress)
    # None: the registry keeps no list of its own.
    if _index(connection, f"referrers/{subject.digest}", (OK, *_NO_LISTS)) is None:
        _list_by_tag(connection, attachment, subject.digest)
    return pushed


def _below(layout: Layout, of: Descriptor, depth: int) -> tuple[Descriptor, ...]:
    """Return the descriptors of an image, or of an index and everything that it lists.

    An index comes after the images and indexes that it lists, because registries need these first.
    Raise `InvalidError` if indexes are nested too deeply.
    """
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
    """Return whether a layout has an undamaged blob. If the blob is damaged, remove it."""
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
            f"not enough space in {layout.folder}: {gigabytes(needed)} needed, {gigabytes(free)}"
            " free",
            make_room("ENVBUILDER_CACHE_DIR"),
        )


def _require_platform(
    layout: Layout, manifest: Manifest, platform: types.Platform, where: str
) -> None:
    """Raise `InvalidError` if an image's configuration is for a platform other than `platform`."""
    config = layout.read_config(manifest)
    actual = f"{config.get('os')}/{config.get('architecture')}"
    if actual != platform:
        raise InvalidError(f"{where}: the image is for {actual}, not for {platform}")


def _side_by_side(
    connection: Connection,
    transfers: Sequence[Callable[[Callable[[int], None]], _T]],
    name: str,
    total: int,
    progress: Progress,
) -> list[_T]:
    """Run transfers in parallel, and return their results.

    If a transfer fails, stop the other transfers and raise the error.
    """
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
        raise connection.failure(subject, f"the list is larger than {JSON_LIMIT} bytes")
    return decode(data, Index, f"{connection.name}: {subject}")


def _list_by_tag(connection: Connection, attachment: Descriptor, digest: types.Digest) -> None:
    """Add a referrer to the index that has the image's `sha256-…` tag.

    Read the index again after writing it, because other processes may write it at the same time.
    Raise `BuildError` if the referrer keeps getting lost.
    """
    tag = digest.replace(":", "-")
    for _ in range(_WRITES):
        current = _index(connection, f"manifests/{tag}", (OK, NOT_FOUND)) or Index(
            schema_version=2, media_type=INDEX, manifests=()
        )
        if any(d.digest == attachment.digest for d in current.manifests):
            return
        extended = replace(current, manifests=(*current.manifests, attachment))
        connection.put_manifest(tag, INDEX, encode(extended))
    raise connection.failure(tag, "entries added to the list of referrers keep getting lost")


_PART = 206
_NO_SUCH_PART = 416


def receive(
    connection: Connection, blob: Descriptor, layout: Layout, advance: Callable[[int], None]
) -> int:
    """Pull a blob into a layout, and return the number of bytes transferred.

    Raise `WrongHashError` if the bytes do not match the digest, and discard them. Raise
    `BuildError` if the registry does not send all bytes, and keep the received bytes for the next
    attempt.
    """
    target = layout.blob(blob.digest)
    part = _part(layout, blob)
    url = f"blobs/{blob.digest}"
    travelled = 0

    def ask(headers: dict[str, str]) -> requests.Response:
        accept = (OK, _PART, _NO_SUCH_PART) if headers else (OK,)
        return connection.request(
            "GET", connection.url(url), blob.digest, accept=accept, headers=headers
        )

    try:
        part.parent.mkdir(exist_ok=True)
        # An earlier try may have left other bytes: if so, pull once more from the start.
        for _ in range(2 if part.exists() else 1):
            with suppress(OtherSizeError):
                travelled += download(
                    connection.session,
                    connection.url(url),
                    part,
                    advance,
                    size=blob.size,
                    pause=connection.pause,
                    ask=ask,
                )
                if f"sha256:{files.file_sha256(part)}" == blob.digest:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part.replace(target)
                    return travelled
                part.unlink()
                advance(-blob.size)
    except UnavailableError as error:
        raise connection.failure(blob.digest, str(error)) from None
    except OSError as error:
        raise files.full_or_broken(error, part) from error
    raise WrongHashError(
        f"{connection.name}: {blob.digest}: the received content does not match the digest",
        "The registry or a proxy may be altering the content, so nothing was kept.",
    )


def remaining(layout: Layout, blob: Descriptor) -> int:
    """Return the number of bytes of a blob that earlier, incomplete pulls have not received."""
    with suppress(OSError):
        return max(blob.size - _part(layout, blob).stat().st_size, 0)
    return blob.size


def _part(layout: Layout, blob: Descriptor) -> Path:
    return layout.folder / "partial" / layout.blob(blob.digest).name


WAY_OUT = (
    "Or use an existing image (--base-image REF), or a mirror (mirrors: in envbuilder.yaml,"
    " docs/guides/mirrors.md)."
)
"""Advice to show if a base image cannot be pulled."""


def base_folder(root: Path, digest: types.Digest, platform: types.Platform) -> Path:
    """Return the path of a base image in the cache `root`, whether or not the image exists there.

    `digest` is the digest of the image's manifest, or of an index that lists the image.
    """
    return root / "bases" / f"{digest.removeprefix('sha256:')}-{platform.replace('/', '-')}"


def has_base(digest: types.Digest, platform: types.Platform, settings: Settings) -> bool:
    """Return whether a base image is in a cache on this machine, without checking its bytes."""
    roots = filter(None, (settings.cache_dir, settings.shared_store))
    marks = (base_folder(root, digest, platform) / MARK for root in roots)
    return any(map(os.path.isfile, marks))  # a closed folder is no error to it


def _intact(digest: types.Digest, platform: types.Platform, settings: Settings) -> Layout | None:
    """Return an undamaged base image from the user's or the shared cache.

    Return None if neither cache contains one.
    """
    for root in filter(None, (settings.cache_dir, settings.shared_store)):
        folder = base_folder(root, digest, platform)
        try:
            if _base_damage(folder, digest, platform) is None:
                return Layout(folder)
        except OSError:  # another user's that cannot be read
            continue
    return None


def obtain_base(
    ref: str,
    digest: types.Digest,
    platform: types.Platform,
    settings: Settings,
    progress: Progress,
) -> Layout:
    """Return a base image in its own layout, after checking all of its blobs.

    If the image is not on this machine, it is pulled; otherwise, no network is needed. `ref`
    specifies the registry and the repository, and the tag in `ref` is ignored. If the registry has
    a mirror, the mirror is tried first. Raise `BuildError` if the image cannot be obtained, and
    `InvalidError` if it is for another platform.
    """
    from filelock import FileLock

    folder = base_folder(settings.cache_dir, digest, platform)
    require_writable(folder.parent)
    try:
        with FileLock(f"{folder}.lock"):
            if layout := _intact(digest, platform, settings):
                return layout
            if problem := _base_damage(folder, digest, platform):
                progress.note(f"warning: fetching the base image again: {problem}")
            (folder / MARK).unlink(missing_ok=True)  # so that its index is recreated, too
            layout = Layout.create(folder)
            _pull_base(ref, digest, layout, platform, settings, progress)
            return layout
    except OSError as error:
        raise full_or_broken(error, folder) from error


def _pull_base(
    ref: str,
    digest: types.Digest,
    layout: Layout,
    platform: types.Platform,
    settings: Settings,
    progress: Progress,
) -> None:
    """Pull a base image from the registry's mirror or, if that fails, from the registry itself.

    In either case, the image is verified by its digest.
    """
    problems: list[str] = []
    for location in reference.mirrored(reference.parse(ref), settings.configuration.mirrors):
        try:
            pull(connect(location, settings), digest, layout, platform, progress)
        except BuildError as error:
            problems.append(error.message)
            last = error
        else:
            return
    raise type(last)("; ".join(problems), (*last.hints, Hint(WAY_OUT)))


def _base_damage(folder: Path, digest: types.Digest, platform: types.Platform) -> str | None:
    """Return a description of the damage to a base image.

    Return None if the image is intact, and an empty string if the image was never complete.
    """
    if not (folder / MARK).is_file():
        return ""
    try:
        layout = Layout.open(folder)
        if not layout.index().manifests:
            return ""
        image = layout.find(platform)
        if image.digest != digest:
            _require_listed(layout, image, digest, platform)
        for blob in layout.read_manifest(image).blobs:
            layout.checked(blob)
    except EnvbuilderError as error:
        return error.message
    return None


def _require_listed(
    layout: Layout, image: Descriptor, digest: types.Digest, platform: types.Platform
) -> None:
    """Check that the index `digest` lists the image as the one for this platform.

    Raise `BuildError` if the index is missing, and `InvalidError` if it lists another image.
    """
    path = layout.blob(digest)
    if not path.is_file():
        raise BuildError(f"{path}: the image index is missing")
    index = Descriptor(media_type=INDEX, digest=digest, size=path.stat().st_size)
    descriptors = decode(layout.read(index), Index, str(path))
    if only_image(descriptors.manifests, platform, str(path)).digest != image.digest:
        raise InvalidError(f"{path}: the image index does not list {image.digest}")
