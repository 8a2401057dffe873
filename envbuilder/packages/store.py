"""The store: downloaded files by sha256, shared by all profiles, backends and processes.

A file is added by an atomic rename after its hash has been checked, so every file was correct when
it was added. `link` checks the hash again, because files can be damaged or modified on disk. A
shared store is a cache folder that an administrator fills. The files in a shared store are used in
place, and nothing is written to it. The available disk space is checked before anything is
downloaded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import files
from envbuilder.core.errors import BuildError, Hint, WrongHashError, make_room
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import DERIVED, STORE
from envbuilder.core.text import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File


_T = TypeVar("_T")

_CHUNK = 1 << 20
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP})


class Store:
    """A folder of files identified by sha256, optionally backed by a shared store.

    Files that are missing from the folder are looked up in the shared store.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        self.root = root
        self.shared = shared

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the user's store, backed by the shared store if one is configured."""
        shared = settings.shared_store
        return cls(settings.store_dir, shared / STORE if shared else None)

    def path(self, sha256: str) -> Path:
        """Return a file's path in this store, or in the shared store if it exists only there.

        The file need not exist in either of them.
        """
        target = _below(self.root, sha256)
        if self.shared is not None and not _is_file(target):
            elsewhere = _below(self.shared, sha256)
            if _is_file(elsewhere) and os.access(elsewhere, os.R_OK):
                return elsewhere
        return target

    def has(self, sha256: str) -> bool:
        """Return whether the file is in this store or in the shared one."""
        return _is_file(self.path(sha256))

    def arrived(self, sha256: str) -> int:
        """Return the size in bytes of the partial file that an interrupted download left behind.

        Return 0 if there is no partial file.
        """
        with contextlib.suppress(OSError):
            return self._part(sha256).lstat().st_size
        return 0

    def is_shared(self, sha256: str) -> bool:
        """Return whether `path` returns a file in the shared store rather than in this one."""
        return not self.path(sha256).is_relative_to(self.root)

    @contextlib.contextmanager
    def receiving(self, sha256: str) -> Iterator[Path]:
        """Yield the path at which to write a file for the store.

        The path may already contain a partial download, which can be continued. Only one process at
        a time can write a given file; other processes wait.
        """
        from filelock import FileLock

        files.ensure_folder(self.root)
        files.ensure_folder(self.root / "sha256")
        part = self._part(sha256)
        files.ensure_folder(part.parent, marked=False)
        with FileLock(part.with_name(f"{sha256}.lock")):
            # A link would be written through, and another name's file be made read-only.
            with contextlib.suppress(FileNotFoundError):
                if not files.is_own(part.lstat()):
                    part.unlink()
            yield part

    def _part(self, sha256: str) -> Path:
        return self.root / "partial" / sha256

    def accept(self, part: Path, file: File, origin: str) -> None:
        """Move a complete file into the store; raise `WrongHashError` if its hash is wrong."""
        actual = file_sha256(part)
        if actual != file.sha256:
            part.unlink()
            raise WrongHashError(
                f"{file.basename} from {origin}: wrong hash:"
                f" expected sha256 {file.sha256}, got {actual}",
                Hint(
                    "The file changed upstream, or a proxy changes it. Nothing was kept. If the"
                    " new file is the right one, make the lock again",
                    ("lock",),
                ),
                actual=actual,
            )
        self._keep(part, file.sha256)

    def take(self, sha256: str, chunks: Iterable[bytes]) -> None:
        """Write chunks of bytes to the store as a file with the given hash.

        The caller must make sure that `chunks` raises an exception if the bytes do not match
        `sha256`. If any exception occurs, including `OSError` for a full disk, no partial file is
        kept.
        """
        with self.receiving(sha256) as part:
            try:
                with part.open("wb") as out:
                    for chunk in chunks:
                        out.write(chunk)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            self._keep(part, sha256)

    def take_file(self, path: Path, sha256: str) -> None:
        """Copy a file with a known hash into the store."""
        with path.open("rb") as stream:
            self.take(sha256, iter(lambda: stream.read(_CHUNK), b""))

    def _keep(self, part: Path, sha256: str) -> None:
        part.chmod(0o444)
        target = _below(self.root, sha256)
        files.ensure_folder(target.parent, marked=False)
        part.replace(target)

    def derived(self, sha256: str, what: str, kind: type[_T], make: Callable[[Path], _T]) -> _T:
        """Return the result of applying `make` to the path of a file in the store.

        The result is cached until the file changes. `what` identifies the kind of result. It
        contains a number that must be changed whenever `make` changes.
        """
        path = self.path(sha256)
        status = path.stat()
        facts = f"{what} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
        return self.remembered(f"{sha256} {facts}", kind, lambda: make(path))

    def remembered(self, inputs: str, kind: type[_T], make: Callable[[], _T]) -> _T:
        """Return the result of `make`, which is cached under `inputs`.

        `inputs` must identify everything that determines the result.
        """
        key = hashlib.sha256(inputs.encode()).hexdigest()

        def derive() -> _T:
            with contextlib.suppress(OSError):
                files.ensure_folder(self.root)
                files.ensure_folder(self.root / DERIVED)
            return make()

        return files.cached(self.root / DERIVED / f"{key}.json", kind, derive)

    def sound(self, sha256: str) -> bool:
        """Return whether the store has the file and its bytes are correct.

        Unlike `checked`, this never removes the file.
        """
        return self.has(sha256) and file_sha256(self.path(sha256)) == sha256

    def checked(self, file: File) -> Path:
        """Return the file's path after checking its hash again.

        If the file is damaged, remove it from this store and raise `BuildError`.
        """
        source = self.path(file.sha256)
        actual = file_sha256(source)
        if actual != file.sha256:
            raise self._damaged(file, source, actual)
        return source

    def link(self, file: File, folder: Path) -> Path:
        """Hard-link or copy the file into `folder` under its own name, and check its hash there.

        A file from the shared store is always copied, for two reasons: its owner could change it
        after the check, and Linux permits hard links only to one's own files
        (`fs.protected_hardlinks`). If the file is damaged, remove it from this store and raise
        `BuildError`.
        """
        source = self.path(file.sha256)
        target = folder / file.basename
        actual = file_sha256(target) if self._linked(source, target) else _copied(source, target)
        if actual != file.sha256:
            target.unlink()
            raise self._damaged(file, source, actual)
        return target

    def _linked(self, source: Path, target: Path) -> bool:
        if self.is_shared(source.name):
            return False
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        return True

    def _damaged(self, file: File, source: Path, actual: str) -> BuildError:
        """Remove a damaged file if it is in this store, and return the error to raise."""
        shared = self.is_shared(file.sha256)
        if not shared:
            source.unlink()
        return BuildError(
            f"{file.basename}: damaged in the {'shared ' if shared else ''}store ({source}):"
            f" expected sha256 {file.sha256}, found {actual}",
            "Report this to the administrator of the shared store. To fetch the file yourself"
            " until then, run the same command with ENVBUILDER_SHARED_STORE= (empty)."
            if shared
            else "The damaged file was removed. Run the same command again to fetch a new copy.",
        )


def _below(root: Path, sha256: str) -> Path:
    return root / "sha256" / sha256[:2] / sha256


def _is_file(path: Path) -> bool:
    """Return whether the path is a regular file rather than a link, a device or a pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _copied(source: Path, target: Path) -> str:
    """Copy a file, and return the sha256 of the bytes that were written."""
    digest = hashlib.sha256()
    with source.open("rb") as stream, target.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()


_FOLDERS = (STORE, "datasets", "bases")


def objection(root: Path) -> str:
    """Return the reason why a shared store cannot be used, or an empty string if it can be used.

    A single unusable folder in the shared store is reason enough.
    """
    try:
        present = {path.name for path in root.iterdir()}
        folders = [root / name for name in _FOLDERS if name in present]
        if STORE in present:
            folders += (root / STORE / "sha256").iterdir()
        for folder in folders:
            (folder / ".").stat()  # what is within can be opened
    except OSError as error:
        return f"the shared store cannot be used: {error.filename}: {error.strerror}"
    if not folders:
        return f"the shared store cannot be used: {root} does not contain {STORE}/"
    return ""


class Room(Struct, frozen=True, kw_only=True):
    """The disk space that a build needs in a folder."""

    folder: str
    bytes: int
    """A lower bound for the number of bytes, since files of unknown size are not counted."""


UNPACKED = 1.8
"""Lower bound for the number of bytes on disk per byte of a wheel. Measured values are 1.8 for the
files of the `cuda` profile and 3.6 for the CPU wheel of torch."""


def unpacked(files: Iterable[File]) -> int:
    """Return a lower bound in bytes for the disk space that files occupy once installed."""
    return int(UNPACKED * sum(f.room for f in files))


class Disk(Struct, frozen=True, kw_only=True):
    """A file system that a build writes to; sizes are in bytes."""

    folder: str
    free: int
    needed: int
    """A lower bound for the needed space, or 0 if it is unknown."""


def require_space(files: Iterable[File], rooms: Iterable[Room], settings: Settings) -> None:
    """Raise `BuildError` if a file system has less free space than a build needs.

    `files` are the files to download; those already in the store need no space. `rooms` is the
    space needed for other purposes. Files of unknown size are not counted.
    """
    missing = _missing(files, settings)
    unknown = sum(1 for f in missing if not f.room)
    require_rooms((download_room(missing, settings), *rooms), unknown)


def require_rooms(rooms: Iterable[Room], unknown: int = 0) -> None:
    """Raise `BuildError` if a disk has too little free space.

    `unknown` is the number of files of unknown size, which the message mentions.
    """
    for disk in disks(rooms):
        if disk.needed > disk.free:
            more = f" (and {unknown} files of unknown size)" if unknown else ""
            raise BuildError(
                f"not enough space in {disk.folder}: {gigabytes(disk.needed)} needed{more},"
                f" {gigabytes(disk.free)} free",
                make_room("ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR"),
            )


def download_room(files: Iterable[File], settings: Settings) -> Room:
    """Return a lower bound for the disk space needed to download the missing files.

    If an interrupted download left a partial file, only the remaining bytes count.
    """
    store = Store.of(settings)
    needed = sum(max(f.room - store.arrived(f.sha256), 0) for f in _missing(files, settings))
    return Room(folder=str(settings.store_dir), bytes=needed)


def _missing(files: Iterable[File], settings: Settings) -> list[File]:
    store = Store.of(settings)
    return [f for f in files if not store.has(f.sha256)]


def disks(rooms: Iterable[Room]) -> tuple[Disk, ...]:
    """Return the file systems that contain the given folders, with the space needed on each.

    Unreadable folders are left out.
    """
    by_device: dict[int, Disk] = {}
    for room in rooms:
        folder = existing(Path(room.folder))
        try:
            device = folder.stat().st_dev
            free = shutil.disk_usage(folder).free
        except OSError:
            continue
        disk = by_device.get(device) or Disk(folder=room.folder, free=free, needed=0)
        by_device[device] = replace(disk, needed=disk.needed + room.bytes)
    return tuple(by_device.values())


def existing(folder: Path) -> Path:
    """Return the folder itself if it exists, and otherwise its nearest existing ancestor."""
    return next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))
