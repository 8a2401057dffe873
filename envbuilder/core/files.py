"""Write files atomically, and hash them.

A file appears under its name by one rename. Until then it has a name of its own next to it, which
is never opened through a link or over another user's file: others may be able to write there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from typing import IO, TYPE_CHECKING

from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.text import binary_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.core.errors import EnvbuilderError

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_START = 10
"""Bytes by which an earlier output is recognized, such as `{"schema":` or `<!DOCTYPE `."""
PRIVATE = 0o600
"""Mode of files that describe a user or a machine."""


def save(
    path: Path,
    content: bytes,
    failure: type[EnvbuilderError],
    hint: str,
    what: str = "",
    mode: int = 0o666,
) -> None:
    """Like `write`, but raise `failure` instead of `OSError`; `what` names the file's content."""
    try:
        write(path, content, mode)
    except OSError as error:
        problem = f"{what} cannot be written" if what else "cannot be written"
        raise failure(f"{path}: {problem}: {error.strerror or error}", hint) from error


def save_output(
    path: Path,
    content: bytes,
    failure: type[EnvbuilderError],
    hint: str,
    what: str = "",
    mode: int = 0o666,
) -> None:
    """Like `save`, for a path that the user names: replace only a file that begins in this way."""
    require_replaceable(path, content[:_START])
    save(path, content, failure, hint, what, mode)


def require_replaceable(path: Path, start: bytes) -> None:
    """Raise `InvalidError` for a file that is not empty and does not begin with `start`.

    A user may misspell a path, and lose a key, a lock or notes.
    """
    if not os.path.exists(path):  # noqa: PTH110 (no error either where a folder is closed)
        return
    if path.is_file() and os.access(path, os.R_OK):
        with path.open("rb") as stream:
            if stream.read(len(start)) in {b"", start}:
                return
    raise InvalidError(
        f"{path}: exists, and is another kind of file: nothing was written",
        "Move it away, or name another file.",
    )


def write(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file atomically, creating its folder; an `OSError` leaves the old file in place.

    `mode` is subject to the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, content, mode)


def rewrite(path: Path, content: bytes) -> None:
    """Like `write`, for a file that exists: its mode stays, and a link to it stays a link."""
    target = path.resolve(strict=True)
    _write(target, content, PRIVATE, final_mode=stat.S_IMODE(target.stat().st_mode))


def _write(path: Path, content: bytes, mode: int, final_mode: int | None = None) -> None:
    part = path.with_name(f".{path.name}.{secrets.randbits(48)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            if final_mode is not None:
                os.fchmod(out.fileno(), final_mode)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file next to `path` that replaces it at the end; on any failure it is removed.

    Written by `put`. For large files: what a killed process left is overwritten, not accumulated. A
    concurrent writer is refused, and so is anything else that has the file's name (`BuildError`).
    Raise `OSError` on a full disk.
    """
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered: a full disk is reported by the write, not when the file is closed.
    with open(part, "wb", buffering=0, opener=lambda *_: _opened(part)) as out:
        if not _locked(out.fileno(), part):
            raise BuildError(f"{path}: another process is writing it")
        try:
            out.truncate(0)
            yield out
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def put(out: IO[bytes], data: bytes) -> None:
    """Write all of `data` to an unbuffered file."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def is_own(status: os.stat_result) -> bool:
    """Return whether this is a plain file of this user with no other name."""
    owned = status.st_uid == os.geteuid() and status.st_nlink == 1
    return owned and stat.S_ISREG(status.st_mode)


def _opened(part: Path) -> int:
    """Open a partial file that is new, or that an earlier process of this user left."""
    try:
        return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o666)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(part, os.O_WRONLY | _SAFELY)
    except FileNotFoundError:  # its writer has just finished
        return _opened(part)
    except OSError as error:  # a link, a folder, a pipe, or another user's
        raise _in_the_way(part) from error
    if not is_own(os.fstat(descriptor)):
        os.close(descriptor)
        raise _in_the_way(part)
    return descriptor


def _locked(descriptor: int, part: Path) -> bool:
    """Return whether this process got the lock of a file that is still in place."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), part.lstat())
    except OSError:
        return False


def _in_the_way(part: Path) -> BuildError:
    return BuildError(
        f"{part}: exists, and is not a file that you left there",
        "Remove it, or write to a folder that nobody else can write to.",
    )


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read(path: Path, limit: int, *, pipes: bool = False) -> bytes:
    """Return the bytes of a regular file; raise `OSError` if it is none, or has more than `limit`.

    `pipes`: also read pipes and devices, for a file that the user names. Others are never waited
    for, since opening a pipe blocks until somebody writes to it.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK)
    with open(os.open(path, flags), "rb") as stream:  # noqa: PTH123 (a descriptor)
        if not pipes and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {binary_size(limit)}; not read", str(path))
    return content
