"""Write a bundle: completely or not at all, and only bytes that match the manifest."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envbuilder.bundle import format as bundle_format
from envbuilder.core import files
from envbuilder.core.errors import BuildError
from envbuilder.core.files import full_or_broken
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
    with ExitStack() as stack:
        try:
            out = stack.enter_context(files.appearing(path))
        except OSError as error:
            raise _cannot_write(error, path) from error
        task = stack.enter_context(progress.task(f"write {path.name}", total, unit="bytes"))
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
    try:
        files.put(out, data)
    except OSError as error:
        raise _cannot_write(error, Path(out.name)) from error


def _cannot_write(error: OSError, path: Path) -> BuildError:
    said = full_or_broken(error, path).message
    return BuildError(said, "Name a file on another disk with --output.")
