"""Make a venv of links to unpacked wheels, each of which uv installs only once.

    unpacked/SHA256/installed-3.11-0123456789ab/…  the files of a wheel that an installer has to
      write, such as programs and metadata, as this uv writes them for Python 3.11

`builds.image.unpacked` describes the other files of a wheel, and their bytecode. Likewise, uv makes
an empty venv only once for each interpreter. uv always installs into a scratch venv, which is
removed afterwards, so it never sees a shared file. The installed files do not contain the venv's
path.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds.image import unpacked
from envbuilder.builds.image.unpacked import Compiler, Contents, Unpacked
from envbuilder.builds.image.wheels import completed, recorded_paths, requirements
from envbuilder.builds.project_folder import temporary
from envbuilder.builds.shared import SHARED, SharedFile
from envbuilder.core import process
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from envbuilder.builds.plan import ShareWheels, Step
    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File


class VenvEntry(Struct, frozen=True, array_like=True):
    """A file, link or folder of a venv that contains no packages."""

    path: str
    kind: Literal["file", "executable", "link", "folder"]
    content: str = ""
    """The text of a file, or the target of a link. Empty for a folder."""


def make(step: ShareWheels, store: Store, perform: Callable[[Step], None]) -> None:
    """Make the venv, and write the records of its shared files.

    `perform` runs a step, and is called if uv is needed. Raise `BuildError` if a wheel is damaged,
    if uv fails, or if modules cannot be compiled.
    """
    venv = Path(step.venv)
    site = venv / step.site
    site.mkdir(parents=True)
    with process.beside(lambda: _link_modules(step, store, site)) as linking:
        empty = _empty_venv(step, store, perform)
        installed = _installed(step, store, perform, empty)
        modules = linking.result()
    records = _below(step, site, modules)
    for wheel in installed:
        records += _below(step, venv, wheel.link(venv))
    _write(empty, venv)
    path = Path(step.env, SHARED)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(records))


def _below(step: ShareWheels, folder: Path, files: Iterable[SharedFile]) -> list[SharedFile]:
    """Return the records of files in a folder, with paths relative to the environment."""
    above = "".join(f"{name}/" for name in folder.relative_to(step.env).parts)
    return [replace(file, path=f"{above}{file.path}") for file in files]


def _link_modules(step: ShareWheels, store: Store, site: Path) -> list[SharedFile]:
    """Link the files that wheels install unmodified, and their bytecode, into `site`.

    Return the records of the linked files.
    """
    root = Path(step.unpacked)
    wheels = [unpacked.unpack(wheel, root, store) for wheel in step.files]
    compiler = Compiler(
        argv=(step.python,),
        identity=step.version,
        variables={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        hint="Set python: in envbuilder.yaml to another version.",
    )
    modules = {wheel.folder.parent.name: wheel.modules for wheel in wheels}
    bytecode = unpacked.compile_modules(modules, root, compiler).values()

    def link(parts: Sequence[Unpacked]) -> list[SharedFile]:
        return [*chain.from_iterable(part.link(site) for part in parts)]

    return [*chain.from_iterable(process.in_batches(link, [*wheels, *bytecode], 1))]


def _empty_venv(
    step: ShareWheels, store: Store, perform: Callable[[Step], None]
) -> tuple[VenvEntry, ...]:
    """Return the entries of a venv that contains no packages.

    If the entries are not cached, uv makes such a venv.
    """

    def read() -> tuple[VenvEntry, ...]:
        perform(step.unpack_uv)
        perform(step.make_venv)
        return tuple(_entries(Path(step.scratch)))

    if not step.identity:
        return read()
    return store.remembered(f"venv 1 {step.identity}", tuple[VenvEntry, ...], read)


def _entries(venv: Path) -> Iterator[VenvEntry]:
    for path in sorted(venv.rglob("*")):
        name = path.relative_to(venv).as_posix()
        if path.is_symlink():
            yield VenvEntry(name, "link", str(path.readlink()))
        elif path.is_dir():
            yield VenvEntry(name, "folder")
        elif os.access(path, os.X_OK):
            yield VenvEntry(name, "executable", path.read_bytes().decode())
        else:
            yield VenvEntry(name, "file", path.read_bytes().decode())


def _write(entries: Iterable[VenvEntry], venv: Path) -> None:
    for entry in entries:
        path = venv / entry.path
        match entry.kind:
            case "folder":
                path.mkdir(parents=True, exist_ok=True)
            case "link":
                path.symlink_to(entry.content)
            case _:
                path.write_bytes(entry.content.encode())
                path.chmod(0o755 if entry.kind == "executable" else 0o644)


def _installed(
    step: ShareWheels,
    store: Store,
    perform: Callable[[Step], None],
    empty: Sequence[VenvEntry],
) -> list[Unpacked]:
    """Return, for each wheel, the files that only an installer can write.

    If a wheel's files are missing or damaged, uv installs the wheel first.
    """
    from filelock import FileLock

    root = Path(step.unpacked)
    with FileLock(root / f"{step.installed}.lock"):
        installed = {f: Unpacked.read(root / f.sha256 / step.installed) for f in step.files}
        missing = [f for f, files in installed.items() if files is None or not files.is_whole()]
        if missing:
            if not Path(step.scratch).exists():
                perform(step.unpack_uv)
                Path(step.scratch).mkdir()
                _write(empty, Path(step.scratch))
            wheels = {file: unpacked.with_rest(file, root, store) for file in missing}
            folder = Path(step.wheels)
            folder.mkdir()
            for file, wheel in wheels.items():
                unpacked.link_or_copy(wheel.rest, folder / file.basename)
            Path(step.requirements).write_text(requirements(missing, folder))
            perform(step.install)
            reserved = {entry.path for entry in empty}
            for file, wheel in wheels.items():
                installed[file] = _stored(step, file, wheel, reserved)
    return [files for files in installed.values() if files]


def _stored(step: ShareWheels, file: File, wheel: Unpacked, reserved: Collection[str]) -> Unpacked:
    """Move an installed wheel's files to the folder of unpacked wheels.

    Complete the wheel's RECORD, and return the moved files. Files that belong to the venv itself,
    whose paths are in `reserved`, are not moved.
    """
    root = Path(step.unpacked)
    scratch = Path(step.scratch)
    record = f"{step.site}/{wheel.contents.record}"
    records = []
    with temporary(root / unpacked.WORK) as work:
        new = work / step.installed
        for name in recorded_paths(file.basename, scratch, step.site, record):
            source = scratch / name
            # RECORD also lists the files that are not installed but linked.
            if name in reserved or source.is_symlink() or not source.is_file():
                continue
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == record:
                path.write_bytes(completed(source.read_text(encoding="utf-8"), wheel.contents.rows))
            else:
                unpacked.link_or_copy(source, path)
            is_executable = os.access(source, os.X_OK)
            sha256 = file_sha256(path)
            records.append(unpacked.recorded(name, path, sha256, executable=is_executable))
        return unpacked.moved(new, root / file.sha256 / step.installed, Contents(tuple(records)))
