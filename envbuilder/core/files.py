"""Write files atomically, and hash them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.errors import EnvbuilderError


def save(
    path: Path, content: bytes, failure: type[EnvbuilderError], hint: str, what: str = ""
) -> None:
    """Like `write`, but raise `failure` instead of `OSError`; `what` names the file's content."""
    try:
        write(path, content)
    except OSError as error:
        problem = f"{what} cannot be written" if what else "cannot be written"
        raise failure(f"{path}: {problem}: {error.strerror or error}", hint) from error


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically, creating its folder; an `OSError` leaves the old file in place."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
