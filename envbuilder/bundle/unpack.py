"""Unpack a bundle: hash every byte before it is used, check everything before installing it."""

from __future__ import annotations

import contextlib
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle import install
from envbuilder.bundle.collect import blobs
from envbuilder.bundle.format import SIGNED_TYPE, TEXTS, Manifest, Reader, opened
from envbuilder.containers.engine import connection
from envbuilder.containers.engine import images as engine_images
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import JSON_LIMIT, Descriptor, Index, Layout, decode, place
from envbuilder.containers.registry import base_images
from envbuilder.core import types
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.core.files import full_or_broken
from envbuilder.core.settings import require_writable
from envbuilder.packages import mnist, space
from envbuilder.packages.space import Room
from envbuilder.packages.store import Store
from envbuilder.signatures.statement import Signed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from envbuilder.bundle.format import Member
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Image(Struct, frozen=True, kw_only=True):
    """A base image for this machine that came out of a bundle."""

    name: str
    folder: str
    """The OCI layout that holds it and nothing else."""
    loaded: bool
    """Whether the engine has it under this name."""


class Unpacked(Struct, frozen=True, kw_only=True):
    """The result of unpacking a bundle."""

    manifest: Manifest
    digest: str
    """sha256 of the manifest."""
    new: int
    """Number of stored files that were not on this machine before."""
    present: int
    """Number of files that were on this machine, with the right hash."""
    written: tuple[install.Draft, ...]
    """Profiles and locks that were written."""
    bases: tuple[Image, ...]
    """Base images for this machine."""
    signed: Signed | None
    """The accepted signature, if one is required."""
    differences: tuple[install.LockDifference, ...]
    """Locks of the project that are not the bundle's; builds use the project's."""


def unpack(path: Path, settings: Settings, progress: Progress, *, force: bool) -> Unpacked:
    """Check a bundle and unpack it; a repeated run continues where the last one stopped.

    Profiles and locks are written last, when everything else is in place. Raise `BuildError` naming
    the damaged part, or for a full disk; `InvalidError` if it is not an envbuilder bundle, or if
    one of the user's files differs (see `install.drafts`); `SignatureError` if a required signature
    is missing or not accepted.
    """
    try:
        with opened(path) as reader:
            signed = _require_signed(path, reader.digest, settings)
            return _unpack(reader, signed, settings, progress, force=force)
    except OSError as error:
        raise full_or_broken(error, Path(error.filename or settings.cache_dir)) from error


def _require_signed(path: Path, manifest_digest: str, settings: Settings) -> Signed | None:
    """Return the signature of a bundle's manifest, which determines every byte of the bundle."""
    trusted = settings.configuration.signatures.bundles
    if trusted is None:
        return None
    from envbuilder.signatures import keys, statement

    digests = {"sha256": manifest_digest}
    public_keys, files = keys.publics(trusted), [statement.path_beside(path)]
    return statement.require(str(path), files, public_keys, SIGNED_TYPE, digests)[1]


def _unpack(
    reader: Reader, signed: Signed | None, settings: Settings, progress: Progress, *, force: bool
) -> Unpacked:
    manifest = reader.manifest
    texts, indexes = _checked(reader)
    drafts = install.drafts(texts, settings, progress.note, force=force)
    space.require_rooms([_room(manifest, settings)])
    new, present = _store(reader, settings, progress)
    images = _laid_out(indexes, manifest, settings)
    install.write(drafts)
    return Unpacked(
        manifest=manifest,
        digest=reader.digest,
        new=new,
        present=present,
        written=drafts,
        bases=_loaded(images, progress, force=force),
        signed=signed,
        differences=install.differences(texts, settings),
    )


def _checked(reader: Reader) -> tuple[dict[str, bytes], dict[str, Index]]:
    """Check profiles, locks and indexes of base images before anything is stored.

    Return the texts by path, and the indexes by name.
    """
    texts: dict[str, bytes] = {}
    indexes: dict[str, Index] = {}
    for member, content in reader.members():
        if member.kind in TEXTS:
            texts[member.path] = b"".join(content)
        elif _is_index(member):
            indexes[member.name] = _read_index(member, content)
    install.check(reader.manifest, texts)
    return texts, indexes


def _room(manifest: Manifest, settings: Settings) -> Room:
    """Return the disk space that missing members need; stored files are judged by name alone."""
    store = Store.of(settings)
    missing = (
        m.size
        for m in manifest.members
        if not (mnist.has(m.name, settings) if m.kind == "dataset" else store.has(m.sha256))
    )
    return Room(folder=str(settings.cache_dir), bytes=sum(missing))


def _store(reader: Reader, settings: Settings, progress: Progress) -> tuple[int, int]:
    """Store the members that are missing or damaged; return how many were, and were not."""
    store, members = Store.of(settings), reader.manifest.members
    total, new, present = sum(m.size for m in members), 0, 0
    with progress.task(f"unpack {len(members)} members", total, unit="bytes") as task:
        for member, content in reader.members(task.advance):
            if member.kind in TEXTS or _is_index(member):
                continue
            is_dataset = member.kind == "dataset"
            if mnist.has(member.name, settings) if is_dataset else store.sound(member.sha256):
                present += 1
                continue
            if is_dataset:
                mnist.take(member.name, content, settings)
            else:
                require_writable(settings.store_dir)
                store.take(member.sha256, content)
            new += 1
    return new, present


# --- base images


def _is_index(member: Member) -> bool:
    """Return whether a member is the index of a base image."""
    return member.kind == "base" and member.path.endswith(".json")


def _read_index(member: Member, content: Iterator[bytes]) -> Index:
    """Read the index of a base image; `InvalidError` if it lists anything but that image."""
    if member.size > JSON_LIMIT:
        raise InvalidError(f"{member.path}: too large: {member.size} bytes")
    index = decode(b"".join(content), Index, member.path)
    expected = _platform(member.name)
    image = index.manifests[0] if len(index.manifests) == 1 else None
    if image is None or image.platform is None or not image.platform.is_of(expected):
        raise InvalidError(f"{member.path}: must list exactly one image, for {expected}")
    return index


def _platform(name: str) -> types.Platform:
    return next(p for p in types.PLATFORMS if name.endswith(f"{p.replace('/', '-')}.json"))


def _laid_out(
    indexes: Mapping[str, Index], manifest: Manifest, settings: Settings
) -> tuple[tuple[Descriptor, Layout], ...]:
    """Make a layout for each base image from blobs of the store; return this machine's images.

    Raise `EnvbuilderError` if an image is incomplete.
    """
    native = types.container_platform(platform.machine()) or "linux/amd64"
    bundled = {member.sha256 for member in manifest.members}
    layouts = [
        (index.manifests[0], _layout(name, index, bundled, settings))
        for name, index in sorted(indexes.items())
    ]
    return tuple(
        (image, layout)
        for image, layout in layouts
        if image.platform is not None and image.platform.is_of(native)
    )


def _layout(name: str, index: Index, bundled: Collection[str], settings: Settings) -> Layout:
    """Return a layout of one image, whose blobs are links to those of the store."""
    from filelock import FileLock

    digest, image = f"sha256:{name.partition('-')[0]}", index.manifests[0]
    store = Store.of(settings)
    require_writable(settings.bases_dir)
    folder = base_images.folder(digest, _platform(name), settings)
    with FileLock(f"{folder}.lock"):
        layout = Layout.create(folder)

        def add(blob: types.Digest) -> None:
            sha256 = blob.removeprefix("sha256:")
            if sha256 not in bundled:
                raise InvalidError(f"bases/{name}: the bundle lacks {blob}")
            place(store.path(sha256), layout.blob(blob))

        add(image.digest)
        for blob in blobs(layout, image, digest):
            add(blob)
        layout.write_index(index)
    return layout


def _loaded(
    images: Collection[tuple[Descriptor, Layout]], progress: Progress, *, force: bool
) -> tuple[Image, ...]:
    """Load unpacked images into the engine, if it is reachable.

    An image that has the name in the engine already is kept, unless `force`.
    """
    results = list[Image]()
    with contextlib.ExitStack() as stack:
        engine: Engine | None = None
        if images:
            try:
                engine = stack.enter_context(connection.connect())
            except ToolError as error:
                progress.note(f"note: base images stay on disk: {error.message}")
        for image, layout in images:
            name = image.annotations.get(archive.NAME, "")
            loaded = bool(
                engine and name and _load(engine, name, image, layout, progress, force=force)
            )
            results.append(Image(name=name, folder=str(layout.folder), loaded=loaded))
    return tuple(results)


def _load(
    engine: Engine, name: str, image: Descriptor, layout: Layout, progress: Progress, *, force: bool
) -> bool:
    """Load an image, and return whether the engine has it now."""
    existing = engine.image(name)
    if existing is not None:
        if existing.id in {image.digest, layout.read_manifest(image).config.digest}:
            return True
        if not force:
            progress.note(
                f"note: the engine already has another image {name}, which is kept;"
                " --force replaces it"
            )
            return False
    with (
        progress.task(f"load the base image {name}"),
        tempfile.TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch,
    ):
        engine_images.load(engine, layout, Layout.create(Path(scratch)))
    return True
