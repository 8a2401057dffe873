"""Write a bundle: completely or not at all, and only bytes that match the manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.bundle import format as bundle_format
from envbuilder.core import files
from envbuilder.core.errors import BuildError
from envbuilder.core.http import full_or_broken
from envbuilder.packages import space
from envbuilder.packages.space import Room

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.bundle.contents import Part
    from envbuilder.bundle.format import Manifest, Member
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
    try:
        with (
            files.appearing(path) as out,
            progress.task(f"write {path.name}", total, unit="bytes") as task,
        ):
            files.put(out, bundle_format.header(bundle_format.manifest_name(sha256), len(text)))
            files.put(out, text + bundle_format.padding(len(text)))
            for member in manifest.members:
                files.put(out, bundle_format.header(member.path, member.size))
                for chunk in _checked(member, contents[member.path]):
                    files.put(out, chunk)
                    task.advance(len(chunk))
                files.put(out, bundle_format.padding(member.size))
            files.put(out, bundle_format.END)
    except OSError as error:
        message = full_or_broken(error, path).message
        raise BuildError(message, "Name a file on another disk with --output.") from error
    return sha256


def _checked(member: Member, content: bytes | Path) -> Iterator[bytes]:
    """Yield a part's bytes; `BuildError` after the last one if they are not the manifest's."""
    digest, size = hashlib.sha256(), 0
    for chunk in [content] if isinstance(content, bytes) else _chunks(content):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if (digest.hexdigest(), size) != (member.sha256, member.size):
        raise BuildError(
            f"{member.path} ({member.what}): was changed or is damaged:"
            f" expected sha256 {member.sha256}, found {digest.hexdigest()}",
            f"Remove {content}, then run the same command again."
            if isinstance(content, Path)
            else "",
        )


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror or error}") from error
