"""Read tar, zip and compressed files, and check the paths that packages may install.

The size of packages is not limited. Packages are listed in a lock, and whoever chooses the hashes
in the lock also chooses the code. Layers, images and data sets, on the other hand, may come from
anywhere. Their tar files are read strictly forward, and the size of a tar file limits how much it
may unpack to, whatever its headers claim. Only `unpack`, which handles source archives, writes
files to paths that an archive specifies.

Some file names in a layer are commands: `.wh.NAME` deletes the file NAME of the layers below. A
path that passes through a link leads to a different place than it appears to.
"""

from __future__ import annotations

import errno
import io
import lzma
import math
import posixpath
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple, TypeVar, cast

from msgspec import Struct

from envbuilder.core.errors import EnvbuilderError, is_encodable, shown
from envbuilder.core.text import binary_size

if TYPE_CHECKING:
    from collections.abc import Iterator


ALLOWANCE = 64 << 20
"""Number of bytes that any file may unpack to, even if the packed file is tiny."""
RATIO = 100
"""Maximum number of unpacked bytes for each packed byte.

Packages and layers usually unpack to between 2 and 20 times their packed size. Deflate can reach a
ratio of 1,032, whereas zstd, xz and bzip2 can reach 10,000 and more.
"""
PIECE = 1 << 20
"""Maximum number of bytes that are read or unpacked at once."""
_ZSTD_WINDOW = 128 << 20
"""Maximum window size of a zstd stream in bytes, equal to the limit of `zstd --long`."""
_T = TypeVar("_T")
READ_LIMIT = 64 << 20
"""Maximum size in bytes of a package or image member that is read into memory."""
_PART = 1 << 18
"""Maximum number of bytes read from a tar at once.

This also limits the size of an extended header, which holds a long path or extended attributes.
"""
_DIGITS = re.compile(rb"[0-9]{256}")
_LARGEST_ID = 1 << 32
_LATEST = 1 << 53
"""Upper limits for the owner ids and the modification time in a member's header.

The header is untrusted, so it may contain any number.
"""
BAD_ZIP = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    ValueError,
    RuntimeError,
    OverflowError,
    LookupError,
    lzma.LZMAError,
)
"""Exceptions raised when reading a damaged or hostile zip archive.

zipfile raises `RuntimeError` if the archive is encrypted or needs a later version of the format.
"""
LONGEST_REASON = 300
"""Maximum number of characters of the reason for an error.

The reason may repeat member names, which are untrusted.
"""
_STRAY = re.compile(r"(?:^|/)(?:\.{0,2}|\.wh\.[^/]*)(?:/|\Z)|[\x00-\x1f\x7f-\x9f]")
_LONGEST_NAME = 255
_LONGEST_PATH = 4095
"""Maximum length of a file name and of a path in Linux, in bytes. Archives may contain longer
ones."""
_PYTHON = re.compile(r"bin/(?:python|python3|python3\.[0-9]+)")
_RESERVED = ("lib/envbuilder", "envbuilder.json", "pyvenv.cfg", "venv")
"""Paths below a prefix that only builds may write to. They include the list of files to check."""


def unpacked_limit(packed: int) -> int:
    """Return the maximum number of bytes that a file of `packed` bytes may unpack to."""
    return ALLOWANCE + RATIO * packed


def unpacked(raw: IO[bytes]) -> IO[bytes]:
    """Return a stream that decompresses `raw` if it contains gzip, bzip2, xz or zstd data.

    The format is recognized by the first bytes. The total size is not limited by this function, but
    each read unpacks little more than it returns. Reading damaged data raises one of `faults()`.
    """
    # Loaded where they are needed: most commands open no archive.
    magic = raw.read(6)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        import gzip

        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic[:3] == b"BZh":
        import bz2

        return cast("IO[bytes]", bz2.BZ2File(raw))
    if magic == b"\xfd7zXZ\x00":
        return cast("IO[bytes]", lzma.LZMAFile(raw))
    if magic[:4] == b"\x28\xb5\x2f\xfd":
        import zstandard

        packed = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        stream = cast("io.RawIOBase", packed.stream_reader(raw, read_across_frames=True))
        return cast("IO[bytes]", io.BufferedReader(stream, PIECE))
    return raw


def pieces(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield the stream's bytes in pieces.

    Raise `ValueError` if the stream contains more than `limit` bytes.
    """
    while piece := stream.read(PIECE):
        limit -= len(piece)
        if limit < 0:
            raise ValueError("it unpacks to more bytes than allowed")
        yield piece


def faults() -> tuple[type[Exception], ...]:
    """Return the types of exceptions that damaged or hostile archives and streams may raise."""
    import zstandard

    return (
        OSError,
        EOFError,
        ValueError,
        zlib.error,
        lzma.LZMAError,
        zstandard.ZstdError,
        tarfile.TarError,
        OverflowError,
        RecursionError,  # a chain of extended headers is read recursively
        LookupError,
    )


class Tar(Struct):
    """A tar archive that raises `failure(reason)` for every fault in its contents.

    `packed` is the size of the archive file in bytes. It limits how much the archive may unpack to.
    """

    _raw: IO[bytes]
    _packed: int
    _failure: Callable[[str], EnvbuilderError]
    _archive: tarfile.TarFile | None = None

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        """Yield each member. Its content can be read until the next member is requested."""
        try:
            stream = _Forward(unpacked(self._raw), unpacked_limit(self._packed))
            opening = partial(
                tarfile.open, fileobj=cast("IO[bytes]", stream), mode="r:", tarinfo=_Member
            )
            self._archive = stream.header(opening)
            while member := stream.header(self._archive.next):
                _require_plain(member)
                self._archive.members.clear()  # type: ignore[attr-defined]
                yield member
        except faults() as error:
            raise self._error(error) from error

    def content(self, member: tarfile.TarInfo, limit: int = READ_LIMIT) -> bytes:
        """Return a regular file's content.

        Raise `failure` if the member is larger than `limit` bytes or is not a regular file.
        """
        if member.size > limit:
            raise self._failure(
                f"{shown(member.name)} has {member.size} bytes, more than the limit of {limit}"
            )
        return b"".join(self.pieces(member))

    def pieces(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the content of a regular file in pieces.

        Raise `failure` if the member is not a regular file or is damaged.
        """
        assert self._archive is not None, "the member was yielded by it"
        if not member.isreg():
            raise self._failure(f"{shown(member.name)} is not a regular file")
        try:
            stream = self._archive.extractfile(member)
            assert stream is not None, "a regular file"
            while piece := stream.read(_PART):
                yield piece
        except faults() as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno is not None:
            return error  # of the disk, not of the archive
        return self._failure(str(error) or type(error).__name__)


class _Member(tarfile.TarInfo):
    """A member of an archive, with stricter handling of invalid headers than in `tarfile`.

    An invalid header is an error in this class, whereas `tarfile` treats it as the end of the
    archive.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        """Read the next header. Raise `tarfile.ReadError` if it is invalid or incomplete."""
        try:
            return super().fromtarfile(archive)
        except (
            tarfile.InvalidHeaderError,  # type: ignore[attr-defined]
            tarfile.TruncatedHeaderError,  # type: ignore[attr-defined]
        ) as error:
            raise tarfile.ReadError(str(error)) from error


def _require_plain(member: tarfile.TarInfo) -> None:
    """Raise `ValueError` if a member is sparse or has a header value that file systems reject."""
    name = shown(member.name)
    if member.issparse():
        raise ValueError(f"{name} is a sparse file")
    if "\0" in member.name + member.linkname:
        raise ValueError(f"{name} has a null character in its name or target")
    if not (math.isfinite(member.mtime) and abs(member.mtime) < _LATEST):
        raise ValueError(f"{name} has an invalid modification time")
    numbers = (member.uid, member.gid, member.mode)
    if member.size < 0 or not all(0 <= number < _LARGEST_ID for number in numbers):
        raise ValueError(f"{name} has an invalid size, mode or owner")


class _Forward(Struct):
    """A forward-only stream for `tarfile` that limits how much is read.

    Without the limits, `tarfile` would read an extended header of any claimed size at once. Before
    Python 3.11.10 and 3.12.6, parsing a number in such a header also took time quadratic in the
    length of the number (CVE-2024-6232).
    """

    _stream: IO[bytes]
    _limit: int
    _at: int = 0
    _in_header: bool = False

    def header(self, read: Callable[[], _T]) -> _T:
        """Call `read`, which reads the next header, with the limits for headers in force.

        Return the result of `read`.
        """
        self._in_header = True
        try:
            return read()
        finally:
            self._in_header = False

    def read(self, size: int) -> bytes:
        """Read and return `size` bytes, or fewer at the end of the stream.

        Raise `ValueError` if `size` is too large or an extended header is invalid.
        """
        if not 0 <= size <= _PART:
            raise ValueError(f"its extended header of {size} bytes is too large")
        data = self._take(size)
        if self._in_header and _DIGITS.search(data):
            raise ValueError("it has an invalid extended header")
        return data

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size and (piece := self._stream.read(size - len(data))):
            data += piece
        self._at += len(data)
        if self._at > self._limit:
            raise ValueError(f"it unpacks to more than the limit of {self._limit} bytes")
        return bytes(data)

    def tell(self) -> int:
        """Return the number of bytes read or skipped so far."""
        return self._at

    def seek(self, position: int) -> None:
        """Skip forward to the given position."""
        if position < self._at:
            raise tarfile.StreamError("an archive can be read only forward")
        while self._at < position and self._take(min(_PART, position - self._at)):
            pass


@contextmanager
def open_zip(source: Path | IO[bytes] | io.RawIOBase) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Raise one of `BAD_ZIP` if the file is not a zip archive."""
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", source))
    except OSError as error:
        if isinstance(source, Path) and not source.is_file():
            raise
        raise zipfile.BadZipFile(f"its directory cannot be read: {error}") from error
    with archive:
        yield archive


def zip_content(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return a member's content.

    Raise one of `BAD_ZIP` if the member is damaged or larger than `limit` bytes.
    """
    if archive.getinfo(name).file_size > limit:
        raise ValueError(f"{shown(name)} is larger than {binary_size(limit)}")
    return b"".join(zip_pieces(archive, name))


def zip_pieces(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's content in pieces, at most as many bytes as its header specifies.

    Raise one of `BAD_ZIP` if the member is damaged.
    """
    try:
        with archive.open(member) as stream:  # `ZipFile.read` would inflate more than that
            while piece := stream.read(PIECE):
                yield piece
    except OSError as error:
        if error.errno not in {None, errno.EINVAL}:  # of the disk
            raise
        # bzip2 has no error number for damaged data; EINVAL: the member starts before the file.
        raise zipfile.BadZipFile(str(error)) from error


def members(
    archive: Tar, failure: Callable[[str], EnvbuilderError]
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Yield each member of a package, with its path relative to the root.

    Raise `failure(reason)` for a duplicate or unsafe path, or for a member that is not a file, a
    folder or a link (for example a device or a pipe). A hard link must come after its target.
    """
    names: set[str] = set()
    for member in archive:
        name = member_path(member.name, failure)
        if not name:
            continue
        if name in names and not member.isdir():
            raise failure(f"/{name} appears twice")
        names.add(name)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise failure(f"/{name} is not a file, folder or link")
        if member.islnk() and member_path(member.linkname, failure) not in names:
            raise failure(f"/{name} is a link to {member.linkname!r}, which does not precede it")
        if member.issym() and (not member.linkname or not member.linkname.isprintable()):
            raise failure(f"/{name} is a link to {member.linkname!r}")
        yield name, member


def member_path(path: str, failure: Callable[[str], EnvbuilderError]) -> str:
    """Return a member's path relative to the root, or an empty string for the root itself.

    Raise `failure(reason)` if the path is unsafe or is not UTF-8 text.
    """
    name = path.removeprefix("./").removesuffix("/")
    if name in {"", "."}:
        return ""
    if not is_encodable(name):
        raise failure(f"{shown(name)} is not UTF-8 text")
    if objection := path_objection(name):
        raise failure(objection)
    return name


def path_objection(path: str) -> str:
    """Return the reason why a package may not install this relative path, or "" if it may."""
    stray = _STRAY.search(path)
    if stray is None:
        encoded = path.encode(errors="surrogateescape")
        longest = max(map(len, encoded.split(b"/"))) if len(encoded) > _LONGEST_NAME else 0
        if longest > _LONGEST_NAME or len(encoded) > _LONGEST_PATH:
            return f"{shown(path)} is longer than file systems allow"
        return ""
    name = stray[0].strip("/")
    if name.startswith(".wh."):
        return f"{shown(path)} would delete another file from an image"
    leads_out = name == ".." or path.startswith("/")
    return f"{shown(path)} {'is outside its folder' if leads_out else 'is not a normalized path'}"


def reserved_objection(path: str, *, with_python: bool) -> str:
    """Return the reason why a package may not install this path below a prefix, or "" if it may.

    Paths that only builds may write to are reserved. If `with_python` is true, so are the paths of
    the interpreter, such as `bin/python`.
    """
    plain = path.casefold()
    if any(plain == own or plain.startswith(f"{own}/") for own in _RESERVED) or (
        with_python and _PYTHON.fullmatch(plain)
    ):
        return f"{shown(path)} is a file that envbuilder writes itself"
    return ""


class Folders:
    """Checker for paths that pass through a file or link as if it were a folder.

    Paths must be passed to it in sorted order.
    """

    def __init__(self) -> None:
        self._no_folders: set[str] = set()
        self._checked: set[str] = {""}

    def objection(self, path: str, *, is_folder: bool) -> str:
        """Return the reason why `path` conflicts with an earlier path, or "" if it does not."""
        folder = path.rpartition("/")[0]
        while folder not in self._checked:
            if folder in self._no_folders:
                return f"{shown(path)} leads through {shown(folder)}, which is not a folder"
            self._checked.add(folder)
            folder = folder.rpartition("/")[0]
        if not is_folder:
            self._no_folders.add(path)
        return ""


MOST_FILES = 50_000
"""Maximum number of files in a source archive, which is untrusted."""
_LARGEST = 4 << 30
"""Maximum total size in bytes of the files in a source archive."""


_KINDS = {
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "copy",
}


class _Entry(NamedTuple):
    path: str
    kind: str
    """One of `file`, `program`, `folder`, `link` and `copy`. A `copy` is a hard link to an earlier
    entry."""
    target: str
    pieces: Iterator[bytes]


def unpack(
    path: Path,
    folder: Path,
    failure: Callable[[str], EnvbuilderError],
    only: re.Pattern[str] | None = None,
) -> None:
    """Unpack a zip or tar archive into an empty folder. Raise `failure(reason)` if it is unsafe.

    Owners, times and special files are ignored. A path that leads out of the folder is a failure. A
    link that leads out of the folder, or that passes through another link, is skipped. If `only` is
    given, only files whose names match this pattern are unpacked.
    """
    try:
        if zipfile.is_zipfile(path):
            with open_zip(path) as archive:
                _write(_of_zip(archive), folder, unpacked_limit(path.stat().st_size), only)
        else:
            with path.open("rb") as stream:
                _write(_of_tar(Tar(stream, path.stat().st_size, failure)), folder, _LARGEST, only)
    except BAD_ZIP as error:
        raise failure(str(error)) from error


def _of_zip(archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in archive.infolist():
        kind = "program" if (info.external_attr >> 16) & 0o111 else "file"
        if info.is_dir():
            kind = "folder"
        yield _Entry(info.filename, kind, "", zip_pieces(archive, info))


def _of_tar(tar: Tar) -> Iterator[_Entry]:
    for member in tar:
        if kind := _KINDS.get(member.type):
            kind = "program" if kind == "file" and member.mode & 0o111 else kind
            yield _Entry(member.name, kind, member.linkname, tar.pieces(member))


def _write(
    entries: Iterator[_Entry], folder: Path, limit: int, only: re.Pattern[str] | None
) -> None:
    """Write an archive's entries, with links last so that no file is written through a link.

    Raise `ValueError` if a path is unsafe or a limit is exceeded.
    """
    links: dict[str, str] = {}
    for number, entry in enumerate(entries):
        path = posixpath.normpath(entry.path) if entry.path.strip("/") else "."
        if wrong := path_objection(path) if path != "." else "":
            raise ValueError(wrong)
        if number >= MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files")
        if only and not only.fullmatch(posixpath.basename(path)):
            continue
        if entry.kind == "link":
            links[path] = entry.target
        elif entry.kind == "folder" or path == ".":
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            limit = _write_file(entry, folder, path, limit)
    for path, target in links.items():
        follows = any(str(parent) in links for parent in PurePosixPath(path).parents)
        if follows or leads_out(path, target) or (folder / path).exists():
            continue  # what it leads to is not part of the source
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)


def _write_file(entry: _Entry, folder: Path, path: str, limit: int) -> int:
    """Write a file and return how many bytes of the limit remain.

    Raise `ValueError` if the limit is exceeded, or if a hard link's target is not an unpacked file.
    """
    destination = folder / path
    destination.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == "copy":
        target = posixpath.normpath(entry.target)
        if path_objection(target) or not (folder / target).is_file():
            raise ValueError(
                f"{shown(path)} is a link to {shown(entry.target)}, which the archive lacks"
            )
        shutil.copy(folder / target, destination)
        return limit - destination.stat().st_size
    with destination.open("wb") as out:
        for piece in entry.pieces:
            limit -= len(piece)
            if limit < 0:
                raise ValueError("it unpacks to more bytes than allowed")
            out.write(piece)
    destination.chmod(0o755 if entry.kind == "program" else 0o644)
    return limit


def leads_out(path: str, target: str) -> bool:
    """Return whether a link at `path` to `target` leads out of the folder being unpacked to.

    `path` is relative to that folder, and `target` is relative to the link's own folder.
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).startswith(
        ("/", "..")
    )
