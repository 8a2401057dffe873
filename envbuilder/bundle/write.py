"""Write a bundle: completely or not at all, and only bytes that match the manifest."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envbuilder.bundle import format as bundle_format
from envbuilder.core.errors import BuildError
from envbuilder.core.http import full_or_broken
from envbuilder.packages import space
from envbuilder.packages.space import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from envbuilder.bundle.contents import Part
    from envbuilder.bundle.format import Manifest
    from envbuilder.core.console import Progress

_CHUNK = 1 << 20


def write(path: Path, manifest: Manifest, parts: Iterable[Part], progress: Progress) -> str:
    """Write the bundle of these parts; return the sha256 of its manifest.

    The file appears under its name once it is complete. Raise `BuildError` for a full disk, or
    naming a part whose bytes do not match the manifest.
    """
    text = bundle_format.encode(manifest)
    sha256 = hashlib.sha256(text).hexdigest()
    contents = {p.member.path: p.content for p in parts}
    total = sum(m.size for m in manifest.members)
    space.require_rooms([Room(folder=str(path.absolute().parent), bytes=total)])
    with _appearing(path) as out, progress.task(f"write {path.name}", total, unit="bytes") as task:
        _put(out, bundle_format.header(bundle_format.manifest_name(sha256), len(text)))
        _put(out, text + bundle_format.padding(len(text)))
        for member in manifest.members:
            _put(out, bundle_format.header(member.path, member.size))
            content = contents[member.path]
            digest, size = _copy(content, out, task.advance)
            if (digest, size) != (member.sha256, member.size):
                raise BuildError(
                    f"{member.path} ({member.what}): was changed or is damaged:"
                    f" expected sha256 {member.sha256}, found {digest}",
                    f"Remove {content}, then run the same command again."
                    if isinstance(content, Path)
                    else "",
                )
            _put(out, bundle_format.padding(member.size))
        _put(out, bundle_format.END)
    return sha256


def _copy(
    content: bytes | Path, out: IO[bytes], on_bytes: Callable[[int], object]
) -> tuple[str, int]:
    """Copy a part; return the sha256 and size of what was copied."""
    digest, size = hashlib.sha256(), 0
    for chunk in [content] if isinstance(content, bytes) else _chunks(content):
        digest.update(chunk)
        size += len(chunk)
        _put(out, chunk)
        on_bytes(len(chunk))
    return digest.hexdigest(), size


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror or error}") from error


def _put(out: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[out.write(view) :]
        except OSError as error:
            raise _cannot_write(error, Path(out.name)) from error


def _cannot_write(error: OSError, path: Path) -> BuildError:
    said = full_or_broken(error, path).message
    return BuildError(said, "Name a file on another disk with --output.")


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file next to `path` that replaces it at the end; on any failure it is removed.

    A leftover of a killed process is overwritten; a concurrent writer is refused.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a full disk is reported by the write, not when the file is closed.
        out = part.open("ab", buffering=0)
    except OSError as error:
        raise _cannot_write(error, path) from error
    with out:
        if not _owned(out, part):
            raise BuildError(f"{path}: another process is writing it")
        try:
            out.truncate(0)
            yield out
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def _owned(out: IO[bytes], part: Path) -> bool:
    """Return whether this process holds the lock of a file that is still in place."""
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(out.fileno()), part.stat())
    except OSError:
        return False
