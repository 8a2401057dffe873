"""The store: downloaded files by sha256, shared by all profiles, backends and processes.

A file enters by one atomic rename after its hash was checked, so every file in the store was right
when it came in. `link` checks the hash again on the way out, because files can be damaged or
modified on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import TYPE_CHECKING

from envbuilder.core import folders
from envbuilder.core.errors import BuildError, WrongHashError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from envbuilder.profiles.locked_file import File


class Store:
    """Files by sha256 below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """Return the path of a file, whether or not it exists."""
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Return whether the file is in the store."""
        return self.path(sha256).is_file()

    @contextlib.contextmanager
    def receiving(self, file: File) -> Iterator[Path]:
        """Yield a path to write a file's bytes to, which may hold a partial download to continue.

        Only one process writes a given file at a time; the others wait.
        """
        with self._locked_part(file.sha256) as part:
            yield part

    @contextlib.contextmanager
    def _locked_part(self, sha256: str) -> Iterator[Path]:
        from filelock import FileLock

        folders.ensure(self.root)
        folders.ensure(self.root / "sha256")
        folder = self.root / "partial"
        folder.mkdir(exist_ok=True)
        with FileLock(folder / f"{sha256}.lock"):
            yield folder / sha256

    def accept(self, part: Path, file: File, origin: str) -> None:
        """Move a complete file into the store; raise `WrongHashError` if its hash is wrong."""
        actual = file_sha256(part)
        if actual != file.sha256:
            part.unlink()
            raise WrongHashError(
                f"{file.basename} from {origin}: wrong hash:"
                f" expected sha256 {file.sha256}, got {actual}",
                "The file changed upstream, or a proxy changes it. Nothing was kept."
                " If the new bytes are right, make the lock again: envbuilder lock",
                actual=actual,
            )
        self._keep(part, file.sha256)

    def take(self, sha256: str, chunks: Iterable[bytes]) -> None:
        """Write a file to the store, from chunks that raise if they are not the right bytes.

        If anything is raised, including `OSError` on a full disk, no partial file is kept.
        """
        with self._locked_part(sha256) as part:
            try:
                with part.open("wb") as out:
                    for chunk in chunks:
                        out.write(chunk)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            self._keep(part, sha256)

    def _keep(self, part: Path, sha256: str) -> None:
        part.chmod(0o444)
        target = self.path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)

    def sound(self, sha256: str) -> bool:
        """Return whether the file is here with the right bytes; a damaged one is left in place."""
        return self.has(sha256) and file_sha256(self.path(sha256)) == sha256

    def checked(self, file: File) -> Path:
        """Return the file's path after checking its hash again; a damaged file is removed."""
        source = self.path(file.sha256)
        actual = file_sha256(source)
        if actual != file.sha256:
            source.unlink()
            raise BuildError(
                f"{file.basename}: damaged in the store ({source}):"
                f" expected sha256 {file.sha256}, found {actual}",
                "The damaged file was removed; run the same command again to fetch it again.",
            )
        return source

    def link(self, file: File, folder: Path) -> Path:
        """Hard-link the checked file into `folder` under its own name, or copy it if that fails."""
        source = self.checked(file)
        target = folder / file.basename
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
                raise
            shutil.copyfile(source, target)
        return target
