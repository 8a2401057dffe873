"""Replace several files together: all of them, or none."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from envbuilder.core import files
from envbuilder.core.errors import Hint, InvalidError


def replace_all(contents: Mapping[Path, bytes], hint: str | Hint) -> None:
    """Replace files in this order, creating their folders; the mode of each stays.

    Raise `InvalidError` with `hint` if one cannot be written; then each is as it was before. So it
    is after a signal, except for SIGKILL.
    """
    path = Path()
    try:
        with contextlib.ExitStack() as stack:
            parts: dict[Path, Path] = {}
            for path, content in contents.items():
                stack.enter_context(_folder(path.parent))
                mode = _mode(path)
                first = 0o666 if mode is None else files.PRIVATE
                parts[path] = stack.enter_context(files.staged(path, content, first, mode))
            for path, part in parts.items():
                stack.enter_context(_replaced(path, part))
    except OSError as error:
        raise InvalidError(f"{path}: cannot be written: {error.strerror or error}", hint) from error


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Create a folder with those above it; remove what was created if the caller fails."""
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for each in created:
                each.rmdir()
        raise


@contextlib.contextmanager
def _replaced(path: Path, part: Path) -> Iterator[None]:
    """Put a file into its place; put the earlier one back if the caller fails."""
    mode = _mode(path)
    earlier: bytes | None = None
    with contextlib.suppress(OSError):
        earlier = path.read_bytes()
    try:
        part.replace(path)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if mode is None:
                path.unlink()
            elif earlier is not None:
                with files.staged(path, earlier, files.PRIVATE, mode) as restored:
                    restored.replace(path)
        raise


def _mode(path: Path) -> int | None:
    """Return the mode of a file; None if there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
