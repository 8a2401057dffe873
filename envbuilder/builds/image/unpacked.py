"""Wheels unpacked once, whose files and bytecode environments share.

    unpacked/SHA256/files/…         the wheel's unchanged files, read-only
    unpacked/SHA256/rest.whl        everything else, for an installer
    unpacked/SHA256/bytecode-3.11.7-0123456789ab/… what Python 3.11.7 loads instead of the modules
      among them, as this version of the compiler writes it
    unpacked/SHA256/*.json          what the files were when they were written

An environment gets clones of the files where the file system has them, else hard links, else
copies. A linked file that is changed in place changes in every environment: so files are read-only,
each is compared with its record before it is linked, and one that differs is written anew. Each
environment holds the records of its files, by which a change is found there (`builds.shared`).
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

from envbuilder.builds.image.wheels import Wheel, completed, requirements
from envbuilder.builds.payload import COMPILER, compiler_sha256
from envbuilder.builds.project_folder import temporary
from envbuilder.builds.shared import SHARED, SharedFile
from envbuilder.core import decoding, files, process
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.builds.plan import ShareWheels
    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File

    Modules = tuple[Path, Iterable[str]]
    """A folder of modules, and the modules' paths in it."""
    _Way = Callable[[str, str], object]

_FILES = "files"
_REST = "rest.whl"
WORK = "work"
"""Folder of unpacking in progress; the next unpacking removes what a killed one left."""
_BATCH = 256
"""Files that a thread unpacks, or modules that a process compiles, at a time."""
_COMPILE_SECONDS = 600.0
"""Time limit, because an image's Python is untrusted; torch's largest batch takes 2."""
_FICLONE = 0x40049409
"""Linux request to share a file's blocks with another one until one is written (linux/fs.h)."""
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
"""Errors of file systems that cannot clone or link these files."""


class Contents(Struct, frozen=True):
    """What an unpacked folder contains."""

    files: tuple[SharedFile, ...]
    rest: str = ""
    """The sha256 of the wheel of everything else."""
    record: str = ""
    """Path of the wheel's RECORD, relative to the folder of packages."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The rows of RECORD for these files."""


class Unpacked(Struct, frozen=True):
    """The unchanged files of a wheel, or their bytecode."""

    folder: Path
    contents: Contents

    @classmethod
    def read(cls, folder: Path) -> Unpacked | None:
        """Return a folder's contents; None if unknown."""
        try:
            return cls(folder, decoding.from_json(_index(folder).read_bytes(), Contents))
        except (OSError, ValueError):
            return None

    @property
    def rest(self) -> Path:
        """The wheel of everything else."""
        return self.folder.with_name(_REST)

    def modules(self, folder: Path) -> Modules:
        """Return the folder of the modules, and their paths."""
        del folder  # they are on disk
        return self.folder, [f.path for f in self.contents.files if f.path.endswith(".py")]

    def is_same(self, file: SharedFile) -> bool:
        """Return whether a file is still as it was written."""
        try:
            status = os.lstat(f"{self.folder}/{file.path}")
        except OSError:
            return False
        return file.is_same(status) and status.st_ino == file.inode

    def is_whole(self) -> bool:
        """Return whether all files are still as they were written."""
        return all(map(self.is_same, self.contents.files))

    def link(self, site: Path) -> tuple[SharedFile, ...]:
        """Put the files into a folder of packages; return their records there.

        Existing files stay: wheels with different bytes for a path are not installed.

        What is there already stays: wheels with different bytes for a path are not installed.
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
    """Put a file in place in the first way that the file system supports; return that way.

    Remove the others from `ways`.
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


def _clone(source: str, target: str) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "cloned on Linux only", target)
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
    """Return a wheel's unchanged files; unpack them if they are missing or damaged.

    `show` receives the number of bytes just written. Raises `BuildError` for a damaged wheel.
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


def _has_rest(unpacked: Unpacked) -> bool:
    with suppress(OSError):
        return file_sha256(unpacked.rest) == unpacked.contents.rest
    return False


def moved(new: Path, folder: Path, contents: Contents) -> Unpacked:
    """Move a new folder into place, and an existing one to the place of the new one."""
    if folder.exists():
        folder.rename(new.with_name(f"{new.name}.earlier"))
    new.rename(folder)
    files.write(_index(folder), msgspec.json.encode(contents))
    return Unpacked(folder, contents)


def _extracted(
    wheel: Wheel, folder: Path, earlier: Unpacked | None, show: Callable[[int], object]
) -> tuple[SharedFile, ...]:
    """Write a wheel's unchanged files into a new folder; link those that exist undamaged."""
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
    """The Python that compiles modules: that of an environment, or of an image."""

    argv: tuple[str, ...]
    """The command that starts Python."""
    identity: str
    """What decides the bytes: the version X.Y.Z, since another patch release compiles some modules
    differently, and for an image's Python its own bytes."""
    variables: dict[str, str]
    """Variables that it needs."""
    hint: str

    def run(self, *folders: str, lines: str = "") -> None:
        """Compile modules, in the format of `compile_bytecode.py`; `BuildError` if it fails."""
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
    """Return the bytecode of wheels by their sha256; compile what is missing or damaged.

    Each function returns a wheel's modules, which it may write to the folder in its argument.
    Raises `BuildError` if compiling fails.
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
            folder = root / sha256 / name
            folder.parent.mkdir(exist_ok=True)
            compiled[sha256] = moved(new, folder, Contents(files=tuple(_bytecode_in(new))))
    return compiled


def bytecode_path(module: str, version: str) -> str:
    """Return where Python `version` looks for a module's bytecode, given the module's path."""
    folder, slash, name = module.rpartition("/")
    tag = version.replace(".", "")
    return f"{folder}{slash}__pycache__/{name.removesuffix('.py')}.cpython-{tag}.pyc"


def _bytecode_in(folder: Path) -> Iterable[SharedFile]:
    for path in sorted(folder.rglob("*.pyc")):
        name = path.relative_to(folder).as_posix()
        yield recorded(name, path, file_sha256(path), executable=False)


# --- an environment of them


def prepare(
    wheels: Sequence[File],
    root: Path,
    store: Store,
    folder: Path,
    show: Callable[[int], object],
) -> None:
    """Unpack wheels; write the rest of them to a folder to install, with a requirements file."""
    folder.mkdir(parents=True)
    for wheel in wheels:
        unpacked = Unpacked.read(root / wheel.sha256 / _FILES)
        # Whether its files are whole is seen when they are linked.
        if unpacked is None or not _has_rest(unpacked):
            unpacked = unpack(wheel, root, store, show)
        _place(str(unpacked.rest), str(folder / wheel.basename), [os.link, shutil.copyfile])
    (folder.parent / "requirements.txt").write_text(requirements(wheels, folder))


def link(step: ShareWheels, store: Store) -> tuple[list[Unpacked], list[SharedFile]]:
    """Put the wheels' unchanged files and bytecode into the step's folder; return their records.

    Raises `BuildError`.

    Raises `BuildError`.
    """
    root = Path(step.unpacked)
    unpacked = [unpack(wheel, root, store) for wheel in step.files]
    modules = {wheel_files.folder.parent.name: wheel_files.modules for wheel_files in unpacked}
    compiler = Compiler(
        argv=(step.python,),
        identity=step.version,
        variables={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        hint="Choose another Python: python: in envbuilder.yaml.",
    )
    bytecode = compile_modules(modules, root, compiler)
    folder = Path(step.folder)
    folder.mkdir()
    records: list[SharedFile] = []
    for unpacked_files in (*unpacked, *bytecode.values()):
        records += unpacked_files.link(folder)
    return unpacked, records


def add(step: ShareWheels, wheels: list[Unpacked], records: list[SharedFile]) -> None:
    """Move the linked files from the step's folder to the venv, which has the rest of the wheels.

    Existing files are replaced, as an installer does: they have the same bytes.
    """
    env = Path(step.env)
    (site,) = Path(step.venv).glob("lib/python*/site-packages")
    _merge(step.folder, str(site))
    for wheel in wheels:
        if wheel.contents.rows:
            record = site / wheel.contents.record
            record.write_bytes(completed(record.read_text(encoding="utf-8"), wheel.contents.rows))
    below = site.relative_to(env).as_posix()
    path = env / SHARED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        msgspec.json.encode([replace(record, path=f"{below}/{record.path}") for record in records])
    )


def _merge(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{target}/{entry.name}"
            if entry.is_dir() and os.path.lexists(path):
                _merge(entry.path, path)
            else:
                os.replace(entry.path, path)  # noqa: PTH105
