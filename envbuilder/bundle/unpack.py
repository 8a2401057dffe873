"""Unpack a bundle: hash every byte before it is used, and check everything before it is placed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle import base_images as images
from envbuilder.bundle import install as placing
from envbuilder.bundle import read as reading
from envbuilder.bundle.format import Manifest
from envbuilder.core.http import full_or_broken
from envbuilder.core.settings import require_writable
from envbuilder.packages import mnist, space
from envbuilder.packages.space import Room
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from envbuilder.bundle.format import Member
    from envbuilder.bundle.read import Content
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


_TEXTS = frozenset({"profile", "lock"})


class Taken(Struct, frozen=True, kw_only=True):
    """What came out of a bundle."""

    manifest: Manifest
    digest: str
    """sha256 of the manifest."""
    new: int
    """Members that were not here yet."""
    there: int
    """Members that were here already, with the right bytes."""
    written: tuple[placing.Draft, ...]
    """Profiles and locks."""
    bases: tuple[images.Image, ...]
    """Base images for this machine."""


def unpack(path: Path, settings: Settings, progress: Progress, *, force: bool) -> Taken:
    """Check a bundle and take in what it holds; run again, it goes on where it was.

    Profiles and locks are written at the end, when all else is there. Raises `BuildError` naming
    what is damaged, or for a full disk; `InvalidError` for what is no bundle of ours, and where
    a file of the user's differs (see `placing.drafts`).
    """
    try:
        with reading.opened(path) as reader:
            return _unpack(reader, settings, progress, force=force)
    except OSError as error:
        raise full_or_broken(error, Path(error.filename or settings.cache_dir)) from error


def _unpack(
    reader: reading.Reader, settings: Settings, progress: Progress, *, force: bool
) -> Taken:
    manifest = reader.manifest
    incoming = _Incoming(settings)
    total = sum(m.size for m in manifest.members)
    space.require_rooms([incoming.room(manifest)])
    found = _checked(reader, settings, progress, force=force)
    with progress.task(f"take in {len(manifest.members)} members", total, unit="bytes") as task:
        for member, content in reader.members(task.advance):
            if member.kind in _TEXTS:
                content.skip()
            else:
                incoming.take(member, content)
    arrived = incoming.bases.place() if incoming.bases is not None else ()
    placing.write(found)
    bases = images.load(arrived, progress, force=force)
    return Taken(
        manifest=manifest,
        digest=reader.digest,
        new=incoming.new,
        there=incoming.there,
        written=found,
        bases=bases,
    )


def _checked(
    reader: reading.Reader, settings: Settings, progress: Progress, *, force: bool
) -> tuple[placing.Draft, ...]:
    """What must be written; everything that decides is read first, and nothing is taken in yet."""
    texts: dict[str, bytes] = {}
    for member, content in reader.members(lambda count: None):
        if member.kind in _TEXTS:
            texts[member.path] = b"".join(content.checked())
        elif images.is_index(member):
            images.read_index(member, content)
        else:
            content.skip()
    placing.check(reader.manifest, texts)
    return placing.drafts(texts, settings, progress.note, force=force)


class _Incoming:
    """Puts members where they belong, and counts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store(settings.store_dir)
        self.bases: images.Arriving | None = None
        self.new = self.there = 0

    def room(self, manifest: Manifest) -> Room:
        """What is missing here, as far as names tell."""
        missing = [m.size for m in manifest.members if not self._store.has(m.sha256)]
        return Room(folder=str(self._settings.cache_dir), bytes=sum(missing))

    def take(self, member: Member, content: Content) -> None:
        """One member; what is here already is only hashed where it is."""
        if self._is_here(member):
            content.skip()
            self.there += 1
            return
        if member.kind in {"file", "wheel"}:
            require_writable(self._settings.store_dir)
            self._store.take(member.sha256, content.checked())
        elif member.kind == "dataset":
            mnist.take(member.name, content.checked(), self._settings)
        else:
            self._arriving().take(member, content)
        self.new += 1

    def _is_here(self, member: Member) -> bool:
        if member.kind in {"file", "wheel"}:
            return self._store.sound(member.sha256)
        if member.kind == "dataset":
            return mnist.has(member.name, self._settings)
        return self._arriving().has(member)

    def _arriving(self) -> images.Arriving:
        self.bases = self.bases or images.Arriving(self._settings)
        return self.bases
