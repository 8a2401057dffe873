"""Unpack a bundle: hash every byte before it is used, check everything before installing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle import base_images, install, project, read
from envbuilder.bundle.format import SIGNED_TYPE, TEXTS, Manifest
from envbuilder.core.http import full_or_broken
from envbuilder.core.settings import require_writable
from envbuilder.packages import mnist, space
from envbuilder.packages.space import Room
from envbuilder.packages.store import Store
from envbuilder.signatures.statement import Signed

if TYPE_CHECKING:
    from envbuilder.containers.oci.descriptor import Index
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Taken(Struct, frozen=True, kw_only=True):
    """The result of unpacking a bundle."""

    manifest: Manifest
    digest: str
    """sha256 of the manifest."""
    new: int
    """Number of members that were not on this machine yet."""
    present: int
    """Number of members that were here already, with the right hash."""
    written: tuple[install.Draft, ...]
    """Profiles and locks that were written."""
    bases: tuple[base_images.Image, ...]
    """Base images for this machine."""
    signed: Signed | None
    """The accepted signature, if one is required."""
    differences: tuple[project.Difference, ...]
    """Locks of the project that are not the bundle's; builds use the project's."""


def unpack(path: Path, settings: Settings, progress: Progress, *, force: bool) -> Taken:
    """Check a bundle and unpack it; a repeated run continues where the last one stopped.

    Profiles and locks are written last, when everything else is in place. Raise `BuildError` naming
    the damaged part, or for a full disk; `InvalidError` if it is not an envbuilder bundle, or if
    one of the user's files differs (see `install.drafts`); `SignatureError` if a required signature
    is missing or not accepted.
    """
    try:
        with read.opened(path) as reader:
            signed = _signed(path, reader.digest, settings)
            return _unpack(reader, settings, progress, signed, force=force)
    except OSError as error:
        raise full_or_broken(error, Path(error.filename or settings.cache_dir)) from error


def _signed(path: Path, manifest_digest: str, settings: Settings) -> Signed | None:
    """Return the signature of a bundle's manifest, which determines every byte of the bundle."""
    trusted = settings.configuration.signatures.bundles
    if trusted is None:
        return None
    from envbuilder.signatures import beside, keys

    digests = {"sha256": manifest_digest}
    public_keys, files = keys.publics(trusted), [beside.path_for(path)]
    return beside.require(str(path), files, public_keys, SIGNED_TYPE, digests)[1]


def _unpack(
    reader: read.Reader,
    settings: Settings,
    progress: Progress,
    signed: Signed | None,
    *,
    force: bool,
) -> Taken:
    manifest = reader.manifest
    store = Store.of(settings)
    texts, indexes = _checked(reader)
    drafts = install.drafts(texts, settings, progress.note, force=force)
    space.require_rooms([_room(manifest, store, settings)])
    total, new, present = sum(m.size for m in manifest.members), 0, 0
    with progress.task(f"unpack {len(manifest.members)} members", total, unit="bytes") as task:
        for member, content in reader.members(task.advance):
            if member.kind in TEXTS or member.name in indexes:
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
    arrived = base_images.place(indexes, manifest, settings)
    install.write(drafts)
    bases = base_images.load(arrived, progress, force=force)
    return Taken(
        manifest=manifest,
        digest=reader.digest,
        new=new,
        present=present,
        written=drafts,
        bases=bases,
        signed=signed,
        differences=project.differences(texts, settings),
    )


def _checked(reader: read.Reader) -> tuple[dict[str, bytes], dict[str, Index]]:
    """Check profiles, locks and indexes of base images before anything is stored.

    Return the texts by path, and the indexes by name.
    """
    texts: dict[str, bytes] = {}
    indexes: dict[str, Index] = {}
    for member, content in reader.members():
        if member.kind in TEXTS:
            texts[member.path] = b"".join(content)
        elif base_images.is_index(member):
            indexes[member.name] = base_images.read_index(member, content)
    install.check(reader.manifest, texts)
    return texts, indexes


def _room(manifest: Manifest, store: Store, settings: Settings) -> Room:
    """Return the disk space that missing members need; stored files are judged by name alone."""
    missing = (
        m.size
        for m in manifest.members
        if not (mnist.has(m.name, settings) if m.kind == "dataset" else store.has(m.sha256))
    )
    return Room(folder=str(settings.cache_dir), bytes=sum(missing))
