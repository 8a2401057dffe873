"""Read the wheels' files for an image, or have uv install them, and split them into layers.

Only a wheel's metadata, scripts and data folders need an installer. If uv installed the whole
wheel, unpacking all other files (12,000 in torch's wheel), reading them once and removing them
would take longer than compressing them. Therefore, uv installs and records only the files that need
an installer. `completed` then adds the other files to RECORD, as uv would have done for the whole
wheel.

uv installs packages for the interpreter that it queries. For an image, uv queries a program that
answers like the image's Python, with the version, machine and path found in the base image. The
files are therefore the same as if uv had run in the image, regardless of this machine's Python,
platform and architecture. No emulation, root privileges or engine are needed.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import posixpath
import shlex
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from envbuilder.builds.plan import RunUv, install_wheels
from envbuilder.core import archives, types
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envbuilder.containers.oci.layout import Bytes


_PIECE = 256 << 10
_HEADER = 30
"""Size in bytes of a ZIP local file header, excluding the file name (APPNOTE.TXT, 4.3.7)."""
_SIGNATURE = b"PK\x03\x04"
_QUOTED = frozenset(',"\r\n')
"""Characters that make CSV writers quote a field. How a field is quoted differs between writers."""
_ENCRYPTED = 0x1
_UTF8 = 0x800
"""Like `_ENCRYPTED`, a bit of the `general purpose bit flag` (APPNOTE.TXT, 4.4.4)."""
# This machine's Python runs uv's query script, so that the answer has every key that this version
# of uv expects; the image's facts then replace this machine's.
_ANSWER = """\
import json, subprocess, sys
with open(sys.argv[1], encoding="utf-8") as stream:
    facts = json.load(stream)
done = subprocess.run([sys.executable, *sys.argv[2:]], stdout=subprocess.PIPE)
try:
    answer = json.loads(done.stdout)
except ValueError:
    sys.stdout.buffer.write(done.stdout)
else:
    print(json.dumps({**answer, **facts}))
raise SystemExit(done.returncode)
"""
_GLIBC = (2, 28)
"""The glibc version to report to uv. The version has no effect, since the lock determines the
wheels."""


class Packed(Struct, frozen=True):
    """A file within a wheel."""

    wheel: Wheel
    entry: zipfile.ZipInfo

    @property
    def size(self) -> Bytes:
        """The size of the file in bytes."""
        return self.entry.file_size

    @property
    def packed(self) -> Bytes:
        """The compressed size of the file within the wheel, in bytes."""
        return self.entry.compress_size

    @property
    def executable(self) -> bool:
        """Whether the file is executable by anybody."""
        return bool(self.entry.external_attr >> 16 & 0o111)

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's content in pieces.

        Raise `BuildError` if the content does not match the size and checksum in the ZIP directory.
        """
        lib = _zlib()
        crc = 0
        size = 0
        pieces = self.wheel.read(self.entry)
        if self.entry.compress_type == zipfile.ZIP_DEFLATED:
            pieces = _inflated(pieces, lib)
        try:
            for data in pieces:
                crc = lib.crc32(data, crc)
                size += len(data)
                if size > self.size:
                    raise self._damaged()
                yield data
        except lib.error as error:
            raise self._damaged() from error
        if (size, crc) != (self.size, self.entry.CRC):
            raise self._damaged()

    def _damaged(self) -> BuildError:
        name = self.entry.filename
        return self.wheel.unusable(f"{name}: its bytes do not match the archive's directory")


class Wheel:
    """An open wheel, which distinguishes files that are installed unchanged from all other files.

    A wheel is a context manager. `name` is used in error messages. The constructor raises
    `BuildError` if the file is not a wheel.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._stream = path.open("rb")
        try:
            with archives.open_zip(self._stream) as archive:
                entries = [i for i in archive.infolist() if not i.is_dir()]
                paths = wheel_conflicts.records(archive.namelist())
                # With several, none is the wheel's own.
                self.record_path = paths[0] if len(paths) == 1 else ""
                rows = _rows(archive, self.record_path)
        except wheel_conflicts.UNREADABLE as error:
            self._stream.close()
            raise self.unusable(str(error)) from error
        names = Counter(i.filename for i in entries)
        # The installer decides which of two files with the same name counts, and what happens to
        # a file that RECORD does not list.
        plain = [
            i for i in entries if _is_plain(i) and names[i.filename] == 1 and i.filename in rows
        ]
        self.rows = [rows[i.filename] for i in plain]
        """The rows of RECORD for the unchanged files."""
        self.files = {i.filename: Packed(self, i) for i in plain}
        """The unchanged files, by their paths relative to site-packages."""
        self._others = [i for i in entries if i.filename not in self.files]

    def modules(self, folder: Path) -> tuple[Path, list[str]]:
        """Write the wheel's unchanged modules to `folder`.

        Return `folder` and the modules' paths relative to it.
        """
        names = [name for name in self.files if name.endswith(".py")]
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(self.files[name].pieces()))
        return folder, names

    def program(self, name: str) -> Packed:
        """Return the executable `name` from the folder `NAME-VERSION.data/scripts/` of the wheel.

        Raise `BuildError` if there is no such executable.
        """
        suffix = f".data/scripts/{name}"
        entries = [i for i in self._others if i.filename.endswith(suffix) and _is_readable(i)]
        if len(entries) != 1:
            raise self.unusable(f"it contains no executable '{name}'")
        return Packed(self, entries[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def read(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the bytes of a file as stored in the archive, without decompressing them."""
        header = entry.header_offset
        # Before the file, if its directory is damaged.
        fixed = os.pread(self._stream.fileno(), _HEADER, header) if header >= 0 else b""
        if fixed[:4] != _SIGNATURE:
            raise self.unusable(f"there is no file at byte {header}")
        # The name and extra field may be longer here than in the ZIP directory.
        name = int.from_bytes(fixed[26:28], "little")
        start = header + _HEADER + name + int.from_bytes(fixed[28:30], "little")
        end = start + entry.compress_size
        for at in range(start, end, _PIECE):
            yield os.pread(self._stream.fileno(), min(_PIECE, end - at), at)

    def write_others(self, target: Path) -> None:
        """Write to `target` a wheel that contains all files except the unchanged ones.

        Raise `BuildError` if a file is damaged, and `OSError` if the disk is full.
        """
        with archives.open_zip(self._stream) as archive, zipfile.ZipFile(target, "w") as rest:
            for entry in self._others:
                written = copy.copy(entry)
                written.extra = b""  # those of Zip64 are true only where they come from
                try:
                    with rest.open(written, "w") as out:
                        for piece in archives.zip_pieces(archive, entry):
                            out.write(piece)
                except wheel_conflicts.UNREADABLE as error:
                    raise self.unusable(f"{entry.filename}: {error}") from error

    def unusable(self, reason: str) -> BuildError:
        """Return the error to raise for a wheel that has the locked hash but cannot be used."""
        return BuildError(
            f"{self._name}: cannot be unpacked: {reason}",
            "The file matches the lock, so the wheel itself is malformed. Report it to the project"
            " that publishes it, and pin another version.",
        )


def completed(installed: str, rows: Iterable[Sequence[str]]) -> bytes:
    """Return the content of RECORD with the rows of the unchanged files added.

    `installed` is the RECORD that the installer wrote for the other files.
    """
    # None needs quotes; a CSV writer takes ten times as long.
    lines = {row[0]: ",".join(row) for row in rows}
    for row in csv.reader(io.StringIO(installed, newline="")):
        # Once each: some versions of uv also record listed files that they did not find.
        if row and row[0] not in lines:
            lines[row[0]] = _line(row)
    return "".join(f"{lines[path]}\n" for path in sorted(lines)).encode()


def _line(row: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(row)
    return out.getvalue()


def _rows(archive: zipfile.ZipFile, record: str) -> dict[str, list[str]]:
    """Return the rows of RECORD by path, except incomplete and ambiguous rows."""
    if not record:
        return {}
    # RECORD may have many more rows than there are members.
    members = set(archive.namelist())
    text = wheel_conflicts.text(archive, record, wheel_conflicts.RECORD_LIMIT)
    rows = [r for r in csv.reader(io.StringIO(text, newline="")) if r and r[0] in members]
    names = Counter(row[0] for row in rows)
    unambiguous: dict[str, list[str]] = {}
    for row in rows:
        is_complete = len(row) == 3 and row[1] and row[2].isdecimal()
        if is_complete and names[row[0]] == 1 and _QUOTED.isdisjoint(row[0] + row[1]):
            unambiguous[row[0]] = row
    return unambiguous


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Return whether the file is installed unchanged and can be read by this module."""
    folder, _, rest = entry.filename.partition("/")
    parts = entry.filename.split("/")
    return (
        not (rest and folder.endswith((".dist-info", ".data")))
        and _is_readable(entry)
        # Without this flag, each installer decides how to decode a name that is not ASCII.
        and (entry.filename.isascii() or bool(entry.flag_bits & _UTF8))
        and not {"", ".", ".."} & {*parts}
        and "\\" not in entry.filename
    )


def _is_readable(entry: zipfile.ZipInfo) -> bool:
    """Return whether this module can read the file.

    It can read files that are stored or deflated, and not encrypted.
    """
    known = entry.compress_type in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    return known and not entry.flag_bits & _ENCRYPTED


def _inflated(packed: Iterable[bytes], lib: Any) -> Iterator[bytes]:
    """Decompress deflated data, and yield the result in pieces of limited size."""
    inflate = lib.decompressobj(-lib.MAX_WBITS)
    for piece in packed:
        rest = piece
        data = b""
        # A full piece may not be all: zeros take so few bits that the last input is read before
        # the last output fits.
        while rest or len(data) == archives.PIECE:
            data = inflate.decompress(rest, archives.PIECE)
            rest = inflate.unconsumed_tail
            yield data


@cache
def _zlib() -> Any:
    """Return Intel's ISA-L if it is installed, else zlib.

    ISA-L is preferred because it takes half the time.
    """
    try:
        from isal import isal_zlib
    except ImportError:  # there are no wheels of it for other processors
        return zlib
    return isal_zlib


# --- wheels that uv installs


def requirements(wheels: Iterable[File], folder: Path) -> str:
    """Return the text of a requirements file that pins the wheels by version and hash.

    `folder` contains the wheel files, from which the hashes are computed.
    """
    lines = [
        f"{w.name}=={w.version} --hash=sha256:{file_sha256(folder / w.basename)}\n" for w in wheels
    ]
    return "".join(lines)


def recorded_paths(name: str, env: Path, site: str, record: str) -> tuple[str, ...]:
    """Return the sorted paths in an installed wheel's RECORD, relative to the environment `env`.

    `site` and `record` are the paths of site-packages and of RECORD, relative to the environment.
    Raise `BuildError` if a path is outside the environment. `name` is the wheel's name in the error
    message.
    """
    paths: set[str] = set()
    with (env / record).open(newline="", encoding="utf-8") as stream:
        for row in csv.reader(stream):
            # Lexically: RECORD reaches the environment's bin and share with `..`.
            path = posixpath.normpath(f"{site}/{row[0]}") if row else ""
            if not path or path.startswith(("..", "/")):
                raise BuildError(f"{name}: RECORD: {row!r} leads outside {env / site}")
            paths.add(path)
    return tuple(sorted(paths))


class Python(Struct, frozen=True, kw_only=True):
    """The image's Python interpreter."""

    path: str
    version: str
    """The version in the form X.Y.Z."""
    platform: types.Platform

    @property
    def site(self) -> str:
        """The path of site-packages in this Python's environments, relative to their prefix."""
        return f"lib/python{self.version.rpartition('.')[0]}/site-packages"


class Stage(Struct, frozen=True):
    """A folder in which uv installs an environment for an image."""

    _folder: Path
    _uv: Path
    _python: Python
    _run: Callable[[RunUv], None]

    @property
    def env(self) -> Path:
        """The folder of the environment."""
        return self._folder / "env"

    def make(self) -> None:
        """Create an environment without packages, which contains only the interpreter's files."""
        interpreter = self._folder / "python"
        self._answer(interpreter, virtual=False)
        self._run(
            RunUv(
                what="make an environment for the image",
                argv=(
                    str(self._uv),
                    "venv",
                    "--quiet",
                    "--no-config",
                    "--no-project",
                    "--relocatable",
                    "--python",
                    str(interpreter),
                    str(self.env),
                ),
                env={"UV_CACHE_DIR": str(self._folder / "cache"), "UV_OFFLINE": "1"},
            )
        )

    def install(self, wheels: Sequence[File], folder: Path) -> None:
        """Install wheels into the environment. `folder` contains the wheel files."""
        path = self._folder / "requirements.txt"
        path.write_text(requirements(wheels, folder))
        interpreter = self.env / "bin" / "python"
        interpreter.unlink()
        self._answer(interpreter, virtual=True)
        self._run(
            install_wheels(
                f"install {len(wheels)} packages for the image",
                uv=str(self._uv),
                wheels=str(folder),
                cache=str(self._folder / "cache"),
                python=str(interpreter),
                requirements=str(path),
            )
        )

    def record_of(self, wheel: File) -> str:
        """Return the path of an installed wheel's RECORD, relative to the environment.

        Raise `BuildError` if the installation wrote no RECORD.
        """
        from packaging.utils import canonicalize_name

        site = self.env / self._python.site
        name = canonicalize_name(wheel.name)
        for record in sorted(site.glob("*.dist-info/RECORD")):
            if canonicalize_name(record.parent.name.partition("-")[0]) == name:
                return record.relative_to(self.env).as_posix()
        raise BuildError(f"{wheel.basename}: the installation wrote no RECORD")

    def files_of(self, wheel: File, record: str) -> tuple[str, ...]:
        """Return the sorted paths in an installed wheel's RECORD, relative to the environment."""
        return recorded_paths(wheel.basename, self.env, self._python.site, record)

    def _answer(self, program: Path, *, virtual: bool) -> None:
        """Write a program that answers uv's queries as the image's interpreter would."""
        script = self._folder / "answer.py"
        facts = self._folder / f"{'virtual' if virtual else 'real'}.json"
        script.write_text(_ANSWER)
        facts.write_text(json.dumps(self._facts(virtual=virtual)))
        argv = [sys.executable, "-I", "-B", str(script), str(facts)]
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        program.chmod(0o755)

    def _facts(self, *, virtual: bool) -> dict[str, Any]:
        python = self._python
        minor = python.version.rpartition(".")[0]
        base = Path(python.path).parent.parent.as_posix()
        prefix = str(self.env) if virtual else base
        machine = types.machine(python.platform)
        scheme = {
            "purelib": python.site,
            "platlib": python.site,
            "include": f"include/site/python{minor}",
            "scripts": "bin",
            "data": "",
        }
        return {
            "markers": {
                "implementation_name": "cpython",
                "implementation_version": python.version,
                "os_name": "posix",
                "platform_machine": machine,
                "platform_python_implementation": "CPython",
                "platform_release": "",
                "platform_system": "Linux",
                "platform_version": "",
                "python_full_version": python.version,
                "python_version": minor,
                "sys_platform": "linux",
            },
            "sys_base_prefix": base,
            "sys_base_exec_prefix": base,
            "sys_prefix": prefix,
            "sys_base_executable": python.path,
            "sys_executable": f"{prefix}/bin/python" if virtual else python.path,
            "sys_path": [],
            "site_packages": [f"{prefix}/{python.site}"],
            "stdlib": f"{base}/lib/python{minor}",
            "standalone": False,
            "scheme": {k: f"{prefix}/{v}".rstrip("/") for k, v in scheme.items()},
            "virtualenv": scheme,
            "os": {"name": "manylinux", "major": _GLIBC[0], "minor": _GLIBC[1]},
            "arch": machine,
            "manylinux_compatible": True,
            "gil_disabled": False,
            "debug_enabled": False,
            "pointer_size": "64",
        }


# --- layers of wheels: large ones are split, so that an engine can unpack one layer while the next
# is made, and layers are transferred from and to a registry in parallel


LARGE = 4 << 20
"""Minimum size in bytes of a wheel that gets its own layers."""
CUT = 128 << 20
"""Maximum total size in bytes of the files in one layer of a large wheel. A file that is larger
than this gets its own layer."""
SPREAD = 32
"""Approximate number of layers for a wheel larger than `SPREAD` times `CUT` (4 GiB). Such a wheel
is split by folder, because an image can have at most `MOST_LAYERS` layers."""


class Part(Struct, frozen=True, kw_only=True):
    """The files that a single layer contains from one or more wheels."""

    wheels: tuple[File, ...]
    files: tuple[str, ...] = ()
    """The files in the layer, all of which come from its only wheel. If empty, the layer contains
    all files of its wheels except those in `without`."""
    without: tuple[str, ...] = ()
    reason: str
    """The reason why the layer exists, in a few words."""


def parts(
    wheels: Sequence[File],
    sizes: Mapping[types.Sha256, Bytes],
    split: Callable[[File], Sequence[tuple[str, ...]]],
    room: int,
) -> list[Part]:
    """Return the content of each layer for the wheels, bottom layer first.

    Each large wheel gets one or more layers, and all other wheels share the last layer. The largest
    wheels are in the lowest layers, because an engine unpacks a layer again if a layer below it
    changed. `split` returns the groups that `cut` yields for a large wheel. `room` is the maximum
    number of layers, not counting the last one.
    """
    ranked = sorted(wheels, key=lambda w: (-sizes[w.sha256], w.sha256))
    large = [w for w in ranked if sizes[w.sha256] >= LARGE][: max(room, 0)]
    remaining = max(room - len(large), 0)
    result = []
    for wheel in large:
        title = f"{wheel.name} {wheel.version}"
        groups = split(wheel)[:remaining]
        remaining -= len(groups)
        for files in groups:
            label = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
            result.append(Part(wheels=(wheel,), files=files, reason=f"{title}: {label}"))
        without = tuple(chain.from_iterable(groups))
        result.append(Part(wheels=(wheel,), without=without, reason=title))
    small = tuple(wheel for wheel in wheels if wheel not in large)
    if small:
        result.append(Part(wheels=small, reason=f"{len(small)} smaller packages"))
    return result


def cut(files: Mapping[str, Bytes]) -> Iterator[tuple[str, ...]]:
    """Yield groups of a wheel's files, one group per layer. Any remaining files are in no group.

    Full groups come first, in the order of their paths. They are followed by the files that are too
    large to share a layer, smallest first. This order gives an engine work early and leaves little
    for the end. The groups of a huge wheel keep folders together, so that folders that do not
    change in the wheel's next version keep their layers.
    """
    steps = -(-sum(files.values()) // (SPREAD * CUT))
    limit = CUT * max(steps, 1)
    single = sorted((n for n, size in files.items() if size > limit), key=lambda n: (files[n], n))
    shared = {n: files[n] for n in sorted(files.keys() - {*single})}
    group: list[str] = []
    total = 0
    for names in _folders(shared, limit) if steps > 1 else ((n,) for n in shared):
        size = sum(shared[n] for n in names)
        if total + size > limit:
            yield tuple(group)
            group = []
            total = 0
        group += names
        total += size
    yield from ((name,) for name in single)


def _folders(files: Mapping[str, Bytes], limit: Bytes) -> Iterator[list[str]]:
    """Yield the sorted files in groups of whole folders, each group at most `limit` bytes in size.

    A single file that is larger than `limit` forms its own group.
    """
    pending = [(0, [*files])]
    while pending:
        depth, names = pending.pop()
        if len(names) <= 1 or sum(files[n] for n in names) <= limit:
            yield names
            continue
        inside = groupby(names, partial(_folder, depth=depth))
        groups = [(depth + 1, list(group)) for _, group in inside]
        pending += reversed(groups)


def _folder(path: str, depth: int) -> list[str]:
    return path.split("/", depth + 1)[: depth + 1]
