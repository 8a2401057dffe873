"""Decide which items `envbuilder clean` may remove, before anything is removed.

A folder and its contents count as envbuilder's own if envbuilder marked the folder when creating
it. An environment counts as envbuilder's own if its metadata says so. Symbolic links are never
followed.

An image that is built on top of an envbuilder image inherits the labels of that image, and so does
an image that `docker commit` creates from it. Labels therefore only select candidates. An image
counts as built by envbuilder only if a record contains its id.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field

from envbuilder.builds import attestations, project_folder, records
from envbuilder.builds.backends import integrity
from envbuilder.containers.engine.interface import LABEL, VOLUME_LABEL, Image, StoredVolume
from envbuilder.containers.oci.reference import familiar
from envbuilder.core import files
from envbuilder.core.errors import first, printable
from envbuilder.core.settings import STORE, Settings

ENVIRONMENTS = "environments"
WORKING = "working folders of killed builds"
DOWNLOADS = "downloads, caches and logs"
IMAGES = "images"
RECORDS = "records of images"
VOLUMES = "volumes of commands in containers"

LINK = "a symbolic link, whose target is not touched"
BUSY = "in use by another envbuilder"
IN_USE = "in use by a running command"
FOREIGN = "not made by envbuilder"
UNMARKED = (
    "it has no marker of envbuilder: if all of its content is envbuilder's, remove it yourself"
    " (rm -r)"
)
ELSEWHERE = "labelled by envbuilder, but not built by this installation"
NAMED = "it also has a name that envbuilder did not give it"
SHARED = f"another installation of envbuilder also built it, and names it {records.CLAIMS}…"
NOBODYS = (
    "no project uses it: run `envbuilder clean` outside of projects, or with --all, to remove it"
)
VOLUME_STAYS = "caches and data of commands in containers (--volumes removes them)"

_NAMED = 3
"""Maximum number of projects to name in the reason why an item stays."""

_RUNS = project_folder.RUNS
_UNPACKED = "unpacked"
CACHES = (
    STORE,
    "bases",
    "layers",
    "uploads",
    "datasets",
    "interpreters",
    "logs",
    "uv-resolve",
    _RUNS,
    _UNPACKED,
)
"""Folders whose contents can be downloaded or made again. Folders with envbuilder's mark are
removed as a whole."""


class Item(Struct, frozen=True, kw_only=True):
    """A file, a folder, an image name or a volume that can be removed individually."""

    name: str
    kind: str
    row: str
    """Label of the table row that shows this item."""
    root: Path | None = None
    """For a file or folder, a folder above it, below which no links are followed. None for other
    items."""
    aside: str = ""
    """Name to which a folder is renamed before it is removed, so that nothing uses it meanwhile."""
    id: str = ""
    """Id of the image that the item names; empty for items that are not images."""
    last: bool = False
    """Whether this is the last remaining name of its image."""
    images: frozenset[str] = frozenset()
    """For a record, the ids of its images, which must be removed before the record. Empty for items
    that are not records."""
    users: tuple[str, ...] = ()
    """The projects that use this item."""


class Skipped(Struct, frozen=True):
    """An item that was examined but is kept, and the reason why it is kept."""

    name: str
    reason: str


class Recorded(Struct, frozen=True):
    """An image that is listed in a record, with its ids, its names and the record's folder."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    profile: str | None
    folder: Path
    work: str = ""
    """Working folder of the unfinished build that needs the image; empty if the image is the result
    of a build."""
    is_leftover: bool = False
    """Whether the image was needed only by a build that has been killed."""


class Inventory(Struct):
    """The items that may be removed, and the items that must stay.

    As long as an inventory is open, it keeps the items that may be removed locked.
    """

    settings: Settings
    of_all: bool = False
    """Whether items that other projects use may be removed as well."""
    items: list[Item] = []
    staying: list[Skipped] = []
    busy: set[str] = set()
    """Names of the working folders that running builds have locked."""
    _held: set[Path] = set()
    _locks: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self._locks.close()

    def keep(self, name: Path | str, reason: str) -> None:
        """Record that an item must stay, and the reason why."""
        item = Skipped(str(name), reason)
        if item not in self.staying:
            self.staying.append(item)

    def _needed(self, projects: Collection[Path]) -> str:
        """Return why an item that is used by `projects` must stay, or "" if it may be removed."""
        own = self.settings.project
        others = _names(project for project in projects if project != own)
        if self.of_all or (not others and (own is None or own in projects)):
            return ""
        if others:
            return f"used by {first(others, _NAMED)} (--all removes it)"
        return NOBODYS

    # --- environments, working folders

    def environments(self, profile: str | None) -> None:
        """Collect the environments, and the attestations that are stored next to them.

        If `profile` is given, collect only the environments of that profile.
        """
        for path in self._children(self.settings.data_dir, self.settings.envs_dir):
            if path.name.startswith("."):
                continue
            if path.is_symlink():
                self.keep(path, LINK)
            elif path.is_dir():
                marker = {} if (path / integrity.MARKER).is_symlink() else integrity.marker(path)
                if marker.get("made_by") != "envbuilder":
                    if profile is None:
                        self.keep(path, f"{FOREIGN}: it has no {integrity.MARKER}")
                elif profile is not None and marker.get("profile") != profile:
                    continue
                elif not self._lock(path.with_name(f".{path.name}.partial.lock")):
                    self.keep(path, BUSY)
                elif not self._lock(path / integrity.MARKER):
                    self.keep(path, IN_USE)
                else:
                    self._environment(path)

    def _environment(self, path: Path) -> None:
        """Collect an environment, unless a process has locked it or another project uses it."""
        root = self.settings.data_dir
        users_folder = records.users_of(path)
        projects = records.users_in(users_folder)
        if reason := self._needed(projects):
            self.keep(path, reason)
            return
        self._add(
            path,
            root,
            ENVIRONMENTS,
            path.name,
            aside=f".{path.name}.partial",
            users=_names(projects),
        )
        for end in attestations.SUFFIXES.values():
            beside = Path(f"{path}{end}")
            if beside.is_file() and not beside.is_symlink():
                self._add(beside, root, ENVIRONMENTS, path.name)
        if files.is_folder(users_folder) and files.is_marked(users_folder):
            self._add(users_folder, root, ENVIRONMENTS, path.name)

    def leftovers(self) -> list[Item]:
        """Return the working folders of killed builds.

        Record that the working folders of builds that are still running must stay.
        """
        data = self.settings.data_dir
        cache = self.settings.cache_dir
        result = []
        for root, folder in (
            (data, self.settings.envs_dir),
            (cache, cache / "build"),
            (cache, cache / "reproduce"),
        ):
            for path in self._children(root, folder):
                if root == data and not re.fullmatch(r"\..*\.partial", path.name):
                    continue
                if path.is_symlink():
                    self.keep(path, LINK)
                elif not path.is_dir():
                    if path.suffix != ".lock":
                        self.keep(path, FOREIGN)
                elif not self._lock(path.with_name(f"{path.name}.lock")):
                    self.busy.add(path.name)
                    self.keep(path, BUSY)
                elif files.is_marked(path):
                    result.append(Item(name=str(path), kind=WORKING, row=path.name, root=root))
                else:
                    self.keep(path, UNMARKED)
        return result

    # --- downloads and caches

    def downloads(self) -> None:
        """Collect the folders whose contents can be downloaded or created again.

        While a build is running, all of these folders stay.
        """
        for name in CACHES:
            ours = {_RUNS, _UNPACKED}
            root = self.settings.data_dir if name in ours else self.settings.cache_dir
            folder = root / name
            if not self._is_marked(root, folder):
                continue
            # Wheels may contain files of that name.
            locks = folder.glob("*.lock") if name == _UNPACKED else folder.rglob("*.lock")
            if self.busy or not all(self._lock(path, hold=False) for path in locks):
                self.keep(folder, BUSY)
            elif _has_strangers(folder):
                self.keep(folder, FOREIGN)
            else:
                self._add(folder, root, DOWNLOADS, name)

    # --- images, their records, volumes

    def images(
        self,
        images: Sequence[Image],
        recorded: Sequence[Recorded],
        profile: str | None,
        used: Collection[str] = (),
    ) -> None:
        """Collect the images that were created by builds of this installation, and their records.

        `images` are the images that have envbuilder's label. If `profile` is given, only the images
        of that profile are collected. `used` contains the ids of the images of running containers.
        """
        gone: set[str] = set()
        for image in images:
            matching = [record for record in recorded if image.id in record.ids]
            others = profile is not None and not any(k.profile == profile for k in matching)
            if others and (matching or image.labels.get(f"{LABEL}profile") != profile):
                continue
            removable: Sequence[str] = ()
            folders = {
                record.folder / records.USERS for record in matching if not record.is_leftover
            }
            projects = sorted(set(chain.from_iterable(map(records.users_in, folders))))
            reason = self._needed(projects) if folders else ""
            if any(record.work and record.work in self.busy for record in matching):
                reason = BUSY
            elif matching and image.id in used:
                reason = IN_USE
            elif matching and not reason:
                given = set(map(familiar, chain.from_iterable(record.names for record in matching)))
                removable = [name for name in image.tags if familiar(name) in given]
                claims = {name for name in image.tags if familiar(name).startswith(records.CLAIMS)}
                reason = SHARED if claims.difference(removable) else NAMED
                if reason == SHARED:
                    removable = [image for image in removable if image in claims]
                removable = removable if image.tags else (image.id,)
            elif not matching:
                reason = ELSEWHERE
            staying = [name for name in image.tags or (image.id,) if name not in removable]
            self.staying += [Skipped(name, reason) for name in staying]
            gone |= set() if staying else {image.id}
            row = ", ".join(removable)
            self.items += [
                Item(
                    name=name,
                    kind=IMAGES,
                    row=row,
                    id=image.id,
                    last=not staying and name == removable[-1],
                    users=_names(projects),
                )
                for name in removable
            ]
        self._records(recorded, gone, {image.id for image in images} - gone)

    def _records(self, recorded: Sequence[Recorded], gone: set[str], staying: set[str]) -> None:
        """Collect the folders of records whose images are all being removed.

        Records stay if none of their images is in this engine, because the images may be in another
        engine.
        """
        ids: dict[Path, set[str]] = {}
        for record in recorded:
            if record.folder.parent == self.settings.records_dir:
                ids.setdefault(record.folder, set()).update(record.ids)
        for folder, of_folder in sorted(ids.items()):
            if of_folder & gone and not of_folder & staying:
                root = self.settings.data_dir
                self._add(folder, root, RECORDS, RECORDS, images=frozenset(of_folder))

    def volumes(self, volumes: Iterable[StoredVolume], *, remove: bool) -> None:
        """Collect the volumes that were created by this user's commands.

        If `remove` is false, record instead that these volumes must stay.
        """
        for volume in volumes:
            if volume.labels.get(VOLUME_LABEL) != str(os.getuid()):
                continue
            if remove:
                self.items.append(Item(name=volume.name, kind=VOLUMES, row=volume.name))
            else:
                self.keep(volume.name, VOLUME_STAYS)

    # --- helpers

    def _add(
        self,
        path: Path,
        root: Path,
        kind: str,
        row: str,
        **more: Any,
    ) -> None:
        self.items.append(Item(name=str(path), kind=kind, row=row, root=root, **more))

    def _children(self, root: Path, folder: Path) -> Iterator[Path]:
        if self._is_ours(root, folder):
            try:
                yield from sorted(p for p in folder.iterdir() if p.name != files.MARKER)
            except OSError as error:
                self.keep(folder, f"cannot be read: {error.strerror or error}")

    def _is_ours(self, root: Path, folder: Path) -> bool:
        """Return whether `folder` exists and neither `folder` nor `root` is a symbolic link.

        If one of them is a symbolic link, record that the link must stay.
        """
        for path in (root, folder):
            if path.is_symlink():
                self.keep(path, LINK)
                return False
        return folder.is_dir()

    def _is_marked(self, root: Path, folder: Path) -> bool:
        """Return whether the folder exists and has envbuilder's mark.

        If the folder exists without the mark, record that it must stay.
        """
        if not self._is_ours(root, folder):
            return False
        if not files.is_marked(folder):
            self.keep(folder, UNMARKED)
            return False
        return True

    def _lock(self, path: Path, *, hold: bool = True) -> bool:
        """Try to acquire the lock on a lock file, and return whether this succeeded.

        Return False if another process has the lock, and True if the file does not exist. If `hold`
        is false, release the lock again.
        """
        if path in self._held:
            return True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:  # a symbolic link, or another user's
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        if hold:
            self._locks.callback(os.close, descriptor)
            self._held.add(path)
        else:
            os.close(descriptor)
        return True


def recorded_images(settings: Settings, leftovers: Iterable[Item] = ()) -> tuple[Recorded, ...]:
    """Return all images that are listed in records.

    This includes the records of killed `reproduce` runs, whose working folders are in `leftovers`.
    """
    trials = []
    for item in leftovers:
        trials += [Path(item.name, side, "data", "records") for side in ("first", "second")]
    images: list[Recorded] = []
    for above in (settings.records_dir, *trials):
        if not files.is_folder(above) or settings.data_dir.is_symlink():
            continue
        for folder in sorted(filter(files.is_folder, above.iterdir())):
            for record in records.read(folder):
                names = record.names or (record.ref, f"envbuilder/{record.profile}:latest")
                trial = above in trials
                images.append(Recorded(record.ids, names, record.profile, folder, "", trial))
            for image in records.loaded(folder):
                work = f"{image.profile}-{image.fingerprint[:12]}" if image.profile else ""
                leftover = bool(work) or above in trials
                images.append(
                    Recorded(image.ids, (image.ref,), image.profile, folder, work, leftover)
                )
    return tuple(images)


def _names(projects: Iterable[Path]) -> tuple[str, ...]:
    return tuple(printable(str(project)) for project in projects)


def statuses(path: Path) -> Iterator[os.stat_result]:
    """Yield the `stat` results of a path and everything below it, skipping unreadable entries."""
    paths = [path]
    for folder, folders, names in os.walk(path):
        paths += (Path(folder, name) for name in (*folders, *names))
    for found_path in paths:
        with suppress(OSError):
            yield os.lstat(found_path)


def _has_strangers(path: Path) -> bool:
    """Return whether `path`, or anything below it, is owned by another user."""
    return any(status.st_uid != os.geteuid() for status in statuses(path))
