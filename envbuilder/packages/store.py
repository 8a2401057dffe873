"""The store: downloaded files by sha256, shared by all profiles, backends and processes.

A file enters by one atomic rename after its hash was checked, so whatever is in the store was right
when it came in. `link` checks it again on the way out: disks and people change files.
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
        """Where a file is, or would be."""
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether the file is here."""
        return self.path(sha256).is_file()

    @contextlib.contextmanager
    def receiving(self, file: File) -> Iterator[Path]:
        """A place to write a file's bytes to; what an earlier try left there may be continued.

        Only one process writes a given file at a time; the others wait.
        """
        with self._alone(file.sha256) as part:
            yield part

    @contextlib.contextmanager
    def _alone(self, sha256: str) -> Iterator[Path]:
        from filelock import FileLock

        folders.ensure(self.root)
        folders.ensure(self.root / "sha256")
        folder = self.root / "partial"
        folder.mkdir(exist_ok=True)
        with FileLock(folder / f"{sha256}.lock"):
            yield folder / sha256

    def accept(self, part: Path, file: File, origin: str) -> None:
        """Take a complete file in; `WrongHashError` when its bytes are not the locked ones."""
        found = file_sha256(part)
        if found != file.sha256:
            part.unlink()
            raise WrongHashError(
                f"{file.basename} from {origin}: wrong hash:"
                f" expected sha256 {file.sha256}, got {found}",
                "The file changed upstream, or something on the way changes it. Nothing was kept."
                " If the new bytes are right, make the lock anew: envbuilder lock",
            )
        self._keep(part, file.sha256)

    def take(self, sha256: str, chunks: Iterable[bytes]) -> None:
        """Take a file in from chunks that raise where they are not the right bytes.

        Whatever is raised, `OSError` on a full disk included, nothing of it is kept.
        """
        with self._alone(sha256) as part:
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
        """Whether the file is here with its right bytes; a damaged one is left."""
        return self.has(sha256) and file_sha256(self.path(sha256)) == sha256

    def checked(self, file: File) -> Path:
        """Where the file is, after its hash was checked again; a damaged one is removed."""
        source = self.path(file.sha256)
        found = file_sha256(source)
        if found != file.sha256:
            source.unlink()
            raise BuildError(
                f"{file.basename}: damaged in the store ({source}):"
                f" expected sha256 {file.sha256}, found {found}",
                "The damaged file was removed; run the same command again to fetch it anew.",
            )
        return source

    def link(self, file: File, folder: Path) -> Path:
        """The file under its own name in `folder` (hard link where possible), hash checked."""
        source = self.checked(file)
        target = folder / file.basename
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
                raise
            shutil.copyfile(source, target)
        return target
