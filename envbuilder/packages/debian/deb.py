"""Open .deb files and check them before use, and read which packages a system has installed.

A .deb is an `ar` archive that contains two tar archives: the control files, and the package's own
files. python-debian is not used, because it loops forever on some files (which have a member of
negative size) and starts external programs for zstd.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from envbuilder.core import archives, types
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, escaped
from envbuilder.packages.debian.suite import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from envbuilder.packages.store import Store
    from envbuilder.profiles import lock

_MAGIC = b"!<arch>\n"
_HEADER = 60
"""Number of bytes in a part's header. The name is in its first 16 bytes, and the size is in the 10
bytes that start at offset 48."""
_PARTS = 16
"""Maximum number of parts in a package. deb(5) defines three and tells readers to ignore others."""
_TEXT = 16 << 20
"""Maximum size in bytes of a control file. The largest control files are lists of 100,000 files."""
_CLEAN = "members of a clean deb 1"
"""Name of the cached result in the store. Change the number in the name whenever the kinds of
members that `archives.members` rejects change."""


def require_clean(files: Iterable[lock.File], store: Store) -> None:
    """Raise `BuildError` if a .deb in the store has a member that is forbidden in an image.

    This check is for packages that dpkg unpacks, either in an engine's container or for a base
    image. dpkg writes `.wh.NAME` as an ordinary file, but in an image layer this name is a
    whiteout, which deletes a file.
    """
    for file in files:
        if file.kind == "deb" and store.has(file.sha256):
            # To list a compiler's packages takes seconds: they are unpacked for it.
            store.derived(file.sha256, _CLEAN, int, partial(_count, file))


def _count(file: lock.File, path: Path) -> int:
    with opened(file, path) as package:
        return sum(1 for _ in archives.members(package.data(), partial(refused, file)))


def opened(file: lock.File, path: Path) -> AbstractContextManager[Deb]:
    """Open a .deb file.

    Raise `BuildError` if the file is damaged or not a .deb file.
    """
    return open_deb(path, lambda reason: refused(file, f"it is damaged: {reason}"))


def require_named(file: lock.File, fields: Mapping[str, str]) -> None:
    """Raise `BuildError` if a package is not the locked one or violates Debian policy.

    `fields` are the package's control fields, from which file names are derived.
    """
    name = fields.get("Package", "")
    version = fields.get("Version", "")
    if not types.is_debian(name, version):
        raise refused(file, "its name or version violates Debian policy")
    if (name, version) != (file.name, file.version):
        raise refused(file, f"its control file is for {name} {version}")
    if not fields.get("Architecture", "").replace("-", "").isalnum():
        raise refused(file, "its architecture violates Debian policy")


def refused(file: lock.File, reason: str) -> BuildError:
    """Return the error for a package that cannot be used."""
    return BuildError(
        f"{file.basename}: refused: {escaped(reason, archives.LONGEST_REASON)}",
        "The file matches the lock, so the package itself is at fault. Remove it from the"
        " profile, or pin another version.",
    )


@contextmanager
def open_deb(path: Path, failure: Callable[[str], EnvbuilderError]) -> Iterator[Deb]:
    """Open a .deb file.

    Raise `failure(reason)` if the file is damaged or not a .deb file.
    """
    with path.open("rb") as stream:
        yield Deb(stream, failure)


class Deb:
    """An open .deb file. Its methods raise `failure(reason)` if the file is invalid."""

    def __init__(self, stream: IO[bytes], failure: Callable[[str], EnvbuilderError]) -> None:
        self._stream = stream
        self._failure = failure
        self._parts = dict(self._listed())

    def data(self) -> archives.Tar:
        """Return the archive of the package's own files."""
        return self._tar("data.tar")

    def control(self) -> dict[str, tuple[bytes, float]]:
        """Return the content and the modification time in seconds of each control file, by name."""
        archive = self._tar("control.tar")
        files = {
            member.name.removeprefix("./"): (archive.content(member, _TEXT), member.mtime)
            for member in archive
            if member.isreg()
        }
        if "control" not in files:
            raise self._failure("it has no control file")
        return files

    def _tar(self, name: str) -> archives.Tar:
        start, size = next((p for n, p in self._parts.items() if n.startswith(name)), (0, 0))
        if not start:
            raise self._failure(f"it has no {name}")
        stream: Any = io.BufferedReader(_Part(self._stream, start, size))
        return archives.Tar(stream, size, self._failure)

    def _listed(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the name of each `ar` member, with its offset and its size in bytes."""
        if self._stream.read(len(_MAGIC)) != _MAGIC:
            raise self._failure("it is not a .deb")
        length = self._stream.seek(0, io.SEEK_END)
        start = self._stream.seek(len(_MAGIC))
        for _ in range(_PARTS):
            header = self._stream.read(_HEADER)
            if not header:
                return
            start += _HEADER
            size = header[48:58].rstrip(b" ")
            if header[58:] != b"`\n" or not size.isdigit() or start + int(size) > length:
                raise self._failure("one of its parts is damaged")
            yield header[:16].decode("ascii", "replace").rstrip(" /"), (start, int(size))
            start = self._stream.seek(start + int(size) + int(size) % 2)
        raise self._failure(f"it has more than {_PARTS} parts")


class _Part(io.RawIOBase):
    """A read-only stream of one member of an `ar` archive."""

    def __init__(self, stream: IO[bytes], start: int, size: int) -> None:
        self._stream = stream
        self._start = start
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, in bytes from the start of the member, and return the position."""
        assert whence == io.SEEK_SET, "nothing else is used"
        self._at = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return their number.

        The number is 0 at the end of the member.
        """
        self._stream.seek(self._start + self._at)
        data = self._stream.read(min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


# Which packages a Debian system has installed, from its dpkg status


STATUS = "var/lib/dpkg/status"
"""The path of dpkg's status file, relative to the root folder."""
STATUS_FOLDER = "var/lib/dpkg/status.d/"
"""The folder in which images without dpkg (distroless) keep a status file for each package."""
STATUS_PATHS = (STATUS, STATUS_FOLDER)

# `unpacked` counts as installed: the files are there, and in some bases no script ever runs.
_PRESENT = frozenset({"installed", "triggers-awaited", "triggers-pending", "unpacked"})


def installed(files: Mapping[str, bytes], architecture: str) -> dict[str, str] | None:
    """Return the versions of the installed packages, by package name.

    `files` maps the paths of dpkg's status files, which begin with one of `STATUS_PATHS`, to their
    contents. Return None if there are no files. Packages for other architectures are omitted. Raise
    `InvalidError` if the files list no installed package.
    """
    from debian.deb822 import Deb822

    # The md5sums that distroless images keep beside each package are not status files.
    status = [data for path, data in sorted(files.items()) if not path.endswith(".md5sums")]
    if not status:
        return None
    packages: dict[str, str] = {}
    for data in status:
        lines = data.decode("utf-8", "replace").splitlines()
        for paragraph in Deb822.iter_paragraphs(lines, use_apt_pkg=False):
            fields = {key: " ".join(value.split()) for key, value in paragraph.items()}
            # dpkg writes three words (wish, flag, state); distroless images write none.
            if fields.get("Status", "installed").rpartition(" ")[2] not in _PRESENT:
                continue
            if fields.get("Architecture", architecture) not in {architecture, "all"}:
                continue
            if fields.get("Package") and fields.get("Version"):
                packages[fields["Package"]] = fields["Version"]
    if not packages:
        raise InvalidError(f"the base's dpkg status lists no installed packages for {architecture}")
    return packages


def installed_in(
    contents: dict[str, bytes], platform: types.Platform, where: str
) -> dict[str, str]:
    """Return the versions of the packages installed in an image, by package name.

    `contents` maps the paths of the image's files to their contents. `where` is the image's name in
    messages. Raise `InvalidError` if the image has no dpkg status.
    """
    files = {p: d for p, d in contents.items() if p.startswith(STATUS_PATHS)}
    packages = installed(files, ARCHITECTURES[platform])
    if packages is None:
        raise InvalidError(f"{where}: not a Debian system: it has no {STATUS}")
    return packages
