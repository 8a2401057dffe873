"""Collect the project's files for its image, with size limits and without secrets and caches."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, shown, with_context
from envbuilder.core.publishable import LITTER, is_litter
from envbuilder.core.text import binary_size

MOST_FILES = 10_000
MOST_BYTES = 1 << 30
_DEEPEST = 40
"""Limits on the files of an image, since the repository is untrusted.

These are the number of files, their total size in bytes, and the depth of nested folders.
"""
_HEAD = 1 << 16
_LESS = "List only the folders that the program needs, and put data under volumes:."
_KEY_TEXT = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----(\\n|\s)"
    rb"|^AGE-SECRET-KEY-1|^PuTTY-User-Key-File-",
    re.MULTILINE,
)
"""Pattern of a private key.

It does not match code that merely searches for keys, which has a quote after the dashes.
"""


class ImageFile(Struct, frozen=True, kw_only=True):
    """A project file, with its path relative to the project's folder."""

    path: str
    sha256: types.Sha256
    size: int
    executable: bool = False


class Contents(Struct, frozen=True, kw_only=True):
    """The files to copy into an image, and the omitted paths, which are never copied."""

    files: tuple[ImageFile, ...]
    omitted: tuple[str, ...] = ()

    @property
    def digest(self) -> types.Sha256:
        """The SHA-256 of the list of files, including their paths, hashes, sizes and modes."""
        return hashlib.sha256(msgspec.json.encode(self.files)).hexdigest()


def collect(
    project: Path, entries: Iterable[tuple[str, str]], texts: Mapping[str, str] = {}
) -> Contents:
    """Return the files at or below the given paths in the project.

    Each entry is a path, together with the location that lists the path. `texts` contains files
    that envbuilder wrote into the project, by path; these files are always included.

    Raise `InvalidError` if a path does not exist or leads out of the project, or if there are too
    many files or too much data. An error about a path says where the path is listed.
    """
    files = dict[str, ImageFile]()
    omitted = list[str]()
    total = 0
    root = project.resolve()
    for text, where in entries:
        try:
            for path in _below(project, Path(os.path.normpath(text)), root, omitted):
                name = path.as_posix()
                limit = MOST_BYTES - total
                if name not in files and (file := _read(project, name, limit, omitted)):
                    files[name] = file
                    total += file.size
                _require_few(files)
        except InvalidError as error:
            with_context(error, f"{where}: files")
            raise
    for name, text in texts.items():
        content = text.encode()
        files[name] = ImageFile(
            path=name,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
            executable=text.startswith("#!"),
        )
    return Contents(
        files=tuple(files[name] for name in sorted(files)),
        omitted=tuple(dict.fromkeys(omitted)),
    )


def _require_few(files: Collection[str]) -> None:
    if len(files) > MOST_FILES:
        raise InvalidError(f"the image would contain more than {MOST_FILES} files", _LESS)


def _below(project: Path, path: Path, root: Path, omitted: list[str]) -> Iterator[Path]:
    """Yield the files at or below a path, except those that are never copied.

    The paths of files and folders that are never copied are appended to `omitted`. Raise
    `InvalidError` if the path does not exist.
    """
    if not os.path.lexists(project / path):
        raise InvalidError(
            f"{shown(path.as_posix())} does not exist",
            "Write the path relative to envbuilder.yaml.",
        )
    pending = [path]
    while pending:
        current = pending.pop()
        absolute = project / current
        is_litter_name = any(part in LITTER for part in current.parts)
        if is_litter_name or is_litter(absolute) or _leads_to_litter(root / current, root):
            omitted.append(current.as_posix())
        elif absolute.is_dir() and not absolute.is_symlink():
            if len(current.parts) >= _DEEPEST:
                raise InvalidError(f"{shown(current.as_posix())}: folders are nested too deeply")
            names = sorted((entry.name for entry in os.scandir(absolute)), reverse=True)
            pending += [current / name for name in names]
        else:
            _require_inside(absolute, current, root)
            yield current


def _leads_to_litter(path: Path, root: Path) -> bool:
    """Return whether a path leads, through a link, to a file or folder that is never copied."""
    target = Path(os.path.realpath(path))
    if path == target or not target.is_relative_to(root):
        return False
    below = target.relative_to(root)
    return any(is_litter(root / folder) for folder in (below, *below.parents[:-1]))


def _require_inside(place: Path, path: Path, root: Path) -> None:
    """Raise `InvalidError` unless a path is a file in the project, or a link to one."""
    from envbuilder.core.archives import path_objection

    name = shown(path.as_posix())
    if wrong := path_objection(path.as_posix()):
        raise InvalidError(wrong, "Rename the file, or remove it from files:.")
    try:
        target = place.resolve(strict=True)
        is_file = stat.S_ISREG(target.stat().st_mode)
    except (OSError, RuntimeError) as error:
        raise InvalidError(
            f"{name} is a link to a missing file", "Remove the link, or its entry under files:."
        ) from error
    if not target.is_relative_to(root):
        raise InvalidError(
            f"{name} is outside the project",
            "Copy the file into the project, or remove it from files:.",
        )
    if not is_file:
        raise InvalidError(
            f"{name} is not a file", "List files instead, or remove the entry from files:."
        )


def _read(project: Path, name: str, limit: int, omitted: list[str]) -> ImageFile | None:
    """Return a project file with its hash, or None if the file looks like a private key.

    Raise `InvalidError` if the file cannot be read or is larger than `limit` bytes. The names of
    private keys are appended to `omitted`.
    """
    from envbuilder.core.archives import PIECE

    digest = hashlib.sha256()
    size = 0
    head = b""
    try:
        with (project / name).open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            while piece := stream.read(PIECE):
                head = head or piece[:_HEAD]
                size += len(piece)
                if size > limit:
                    raise InvalidError(
                        f"the image would be larger than {binary_size(MOST_BYTES)}", _LESS
                    )
                digest.update(piece)
    except OSError as error:
        raise InvalidError(
            f"{shown(name)} cannot be read: {error.strerror}",
            "Change the file's mode, or remove the file from files:.",
        ) from error
    if _KEY_TEXT.search(head):
        omitted.append(name)
        return None
    return ImageFile(
        path=name,
        sha256=digest.hexdigest(),
        size=size,
        executable=bool(mode & stat.S_IXUSR),
    )
