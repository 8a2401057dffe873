"""Require that a lock is signed, by the bytes that were read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.signatures.statement import Signed

TYPE = "urn:envbuilder:lock:v1"
"""The predicate type of a statement about a lock."""


def require(
    path: Path, content: bytes, folders: Sequence[Path], trusted: Sequence[str] | None
) -> tuple[Signed, ...]:
    """Return the signature of a lock, none if `trusted` is None.

    Raise `SignatureError` if it is refused.
    """
    if trusted is None:
        return ()
    from envbuilder.signatures import keys, statement

    digests = {"sha256": hashlib.sha256(content).hexdigest()}
    files = _places(path, folders)
    _, signed = statement.require(str(path), files, keys.publics(trusted), TYPE, digests)
    return (replace(signed, name=path.name),)


def signature(path: Path, folders: Sequence[Path]) -> Path | None:
    """Return the first signature file of a lock, if it has one."""
    return next((p for p in _places(path, folders) if p.is_file()), None)


def _places(path: Path, folders: Sequence[Path]) -> list[Path]:
    """Return where signatures are looked for: next to a lock, then among the folders' locks.

    The locks that envbuilder brings cannot get one next to them.
    """
    from envbuilder.signatures import statement

    name = statement.path_beside(path).name
    return [*dict.fromkeys((path.with_name(name), *(f / "locks" / name for f in folders)))]
