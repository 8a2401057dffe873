"""Write locks, each only after it was read back as every command reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envbuilder.core import files
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock as profile_lock

AnyLock = profile_lock.Lock | conda_lock.Lock


def save(
    locks: Mapping[Path, AnyLock], hint: str | Hint, others: Mapping[Path, bytes] = {}
) -> None:
    """Write locks, then other files: all of them, or none.

    Raise `InvalidError` for a lock that no command could read, and with `hint` for a file that
    cannot be written.
    """
    contents = {path: content(lock) for path, lock in locks.items()}
    for path, lock in locks.items():
        _require_readable(contents[path], path, lock)
    files.replace_all({**contents, **others}, hint)


def content(lock: AnyLock) -> bytes:
    """Return a lock as its file holds it."""
    if isinstance(lock, conda_lock.Lock):
        return conda_lock.dump(lock).encode()
    return profile_lock.dump(lock).encode()


def _require_readable(written: bytes, path: Path, lock: AnyLock) -> None:
    parse = conda_lock.parse if isinstance(lock, conda_lock.Lock) else profile_lock.parse
    try:
        parse(written, path)
    except InvalidError as error:
        raise InvalidError(
            f"{error.message}: no command could read the new lock, so nothing was written",
            "This is a fault of envbuilder: please report it with the line above.",
        ) from error
