"""Unpack a bundle: hash every byte before it is used, check everything before installing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle import base_images, install, project, read
from envbuilder.bundle.format import SIGNED_TYPE, TEXTS, Manifest
from envbuilder.core.files import full_or_broken
from envbuilder.core.settings import require_writable
from envbuilder.packages import mnist, space
from envbuilder.packages.space import Room
from envbuilder.packages.store import Store
from envbuilder.signatures.statement import Signed

if TYPE_CHECKING:
    from envbuilder.bundle.format import Member
    from envbuilder.bundle.read import Content
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
    incoming = _Incoming(settings)
    total = sum(m.size for m in manifest.members)
    space.require_rooms([incoming.room(manifest)])
    texts = _checked(reader)
    drafts = install.drafts(texts, settings, progress.note, force=force)
    with progress.task(f"unpack {len(manifest.members)} members", total, unit="bytes") as task:
        for member, content in reader.members(task.advance):
            if member.kind in TEXTS:
                content.skip()
            else:
                incoming.take(member, content)
    arrived = incoming.bases.place() if incoming.bases is not None else ()
    install.write(drafts)
    bases = base_images.load(arrived, progress, force=force)
    return Taken(
        manifest=manifest,
        digest=reader.digest,
        new=incoming.new,
        present=incoming.present,
        written=drafts,
        bases=bases,
        signed=signed,
        differences=project.differences(texts, settings),
    )


def _checked(reader: read.Reader) -> dict[str, bytes]:
    """Check profiles, locks and indexes before anything is stored; return texts by path."""
    texts: dict[str, bytes] = {}
    for member, content in reader.members(lambda count: None):
        if member.kind in TEXTS:
            texts[member.path] = b"".join(content.checked())
        elif base_images.is_index(member):
            base_images.read_index(member, content)
        else:
            content.skip()
    install.check(reader.manifest, texts)
    return texts


class _Incoming:
    """A sink that stores members where they belong, and counts them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store.of(settings)
        self.bases: base_images.Arriving | None = None
        self.new = self.present = 0

    def room(self, manifest: Manifest) -> Room:
        """Return the disk space needed for members that the store lacks, judged by name alone."""
        missing = [m.size for m in manifest.members if not self._store.has(m.sha256)]
        return Room(folder=str(self._settings.cache_dir), bytes=sum(missing))

    def take(self, member: Member, content: Content) -> None:
        """Store one member; one that is here already is only hashed in place."""
        if self._has(member):
            content.skip()
            self.present += 1
            return
        if member.kind in {"file", "wheel"}:
            require_writable(self._settings.store_dir)
            self._store.take(member.sha256, content.checked())
        elif member.kind == "dataset":
            mnist.take(member.name, content.checked(), self._settings)
        else:
            self._arriving().take(member, content)
        self.new += 1

    def _has(self, member: Member) -> bool:
        if member.kind in {"file", "wheel"}:
            return self._store.sound(member.sha256)
        if member.kind == "dataset":
            return mnist.has(member.name, self._settings)
        return self._arriving().has(member)

    def _arriving(self) -> base_images.Arriving:
        self.bases = self.bases or base_images.Arriving(self._settings)
        return self.bases
