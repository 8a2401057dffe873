"""Build a wheel in a sandbox, and rewrite it so that its bytes depend only on its content.

The build gets a scratch folder, a venv with the locked build requirements, and only the environment
variables that this module sets. `inside.py` sets up the sandbox. If the kernel does not allow a
sandbox, the build runs without it, in the same folder and with the same variables, and a note
informs the user.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from envbuilder.core import archives, decoding, files, process, types
from envbuilder.core.errors import BuildError, escaped_lines, shown
from envbuilder.core.files import file_sha256
from envbuilder.host import probe
from envbuilder.packages.python import static_metadata, wheel_conflicts
from envbuilder.packages.sources import inside
from envbuilder.packages.store import Store
from envbuilder.profiles import releases

if TYPE_CHECKING:
    from packaging.version import Version

    from envbuilder.core.settings import Settings
    from envbuilder.packages.python.static_metadata import Backend, Metadata
    from envbuilder.profiles.lock import File, Target

SECONDS = 7200.0
"""Maximum number of seconds for a build hook. Attention kernels take more than an hour to
compile."""
EPOCH = "315532800"
"""The beginning of 1980 in seconds since 1970. This is the earliest time that ZIP archives can
store."""
_SCRIPT = "inside.py"
_OF_PYTHON = ("bin", "include", "lib", "lib64", "share")
_FOLDERS = ("root", "tmp", "home", "out")
_LARGEST = 8 << 30
"""Maximum total size in bytes of the files in a built wheel."""
_MOST_FILES = 100_000
"""Maximum number of files in a built wheel."""
_RESULT = 1 << 20
"""Maximum size in bytes of a build hook's result and of a wheel's METADATA."""
_LAST = 10
_LONGEST = 400
"""Number of log lines that a message repeats, and maximum number of characters per line."""
_CAUSE = re.compile(r"fatal error: |: (command )?not found|No such file or directory|\berror: ")
"""Matches lines that explain a failure better than the end of the log does."""
_INFO = ".dist-info/"
_GLIBC = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?:\.[0-9]{1,3})?(?=\0)")


class FailedError(BuildError):
    """Raised when the code of the package that is being built fails.

    `log` is the end of that code's output.
    """

    def __init__(self, message: str, hint: str, log: str) -> None:
        super().__init__(message, hint)
        self.log = log


class Scratch:
    """A temporary folder in which a single source is built with a given interpreter."""

    def __init__(self, folder: Path, interpreter: Path, note: list[str]) -> None:
        self.folder = folder
        self._interpreter = interpreter
        self._notes = note
        self._sealed = True
        self._cuda: tuple[str, str] | None = None
        for name in _FOLDERS:
            (folder / name).mkdir()
        shutil.copyfile(inside.__file__, folder / _SCRIPT)

    def install(self, wheels: Sequence[Path]) -> None:
        """Create the build's venv with exactly the given wheels; raise `BuildError` on failure."""
        venv = str(self.folder / "venv")
        options = ("--quiet", "--no-config", "--no-cache", "--offline")
        done = process.run_uv(
            [
                process.uv_path(),
                "venv",
                *options,
                "--relocatable",
                "--python",
                str(self._interpreter),
                venv,
            ],
            timeout=SECONDS,
        )
        if done.returncode == 0 and wheels:
            done = process.run_uv(
                [
                    process.uv_path(),
                    "pip",
                    "install",
                    *options,
                    "--no-index",
                    "--no-deps",
                    "--link-mode",
                    "copy",
                    "--python",
                    f"{venv}/bin/python",
                    *map(str, wheels),
                ],
                timeout=SECONDS,
            )
        if done.returncode != 0:
            words = escaped_lines(done.last_words)
            raise BuildError(f"the build requirements cannot be installed:\n{words}")

    def compile_cuda(self, architectures: str) -> None:
        """Prepare the build for compiling CUDA code.

        If the venv contains a CUDA compiler, that compiler is used. `architectures` has the format
        of PyTorch's TORCH_CUDA_ARCH_LIST.
        """
        self._cuda = _lay(self.folder / "venv"), architectures

    def call(self, backend: Backend, source: Path, hook: str, version: str = "") -> Any:
        """Run a hook of the build backend, and return the hook's result.

        `version` is for backends that would otherwise read the version from the repository's tags,
        which are not available in the scratch folder. Raise `FailedError` if the hook fails, and
        `BuildError` if its result is not valid JSON.
        """
        done = self._run(backend, source, hook, version)
        if self._sealed and done.returncode == inside.UNSEALED:
            self._sealed = False
            self._notes.append(
                "this system does not allow sandboxed builds, so the build could read your files"
                f" and use the network ({done.last_words.partition(chr(10))[0]})"
            )
            done = self._run(backend, source, hook, version)
        result = self.folder / "result.json"
        if done.returncode == 0 and _is_plain(result):
            try:
                return decoding.strict_json(files.read(result, _RESULT))
            except (OSError, ValueError) as error:
                raise BuildError(f"its build backend returned invalid JSON: {error}") from error
        log = done.stdout + done.stderr
        lines = log.strip().splitlines()
        causes = list(filter(_CAUSE.search, lines[:-_LAST]))[-3:]
        words = "\n".join(line[-_LONGEST:] for line in (*causes, *lines[-_LAST:]))
        reason = f"took more than {SECONDS / 3600:g} hours" if done.timed_out else "failed"
        raise FailedError(
            f"its build {reason} ({hook}):\n{escaped_lines(words)}",
            _advice(words),
            log,
        )

    def _run(self, backend: Backend, source: Path, hook: str, version: str) -> process.Completed:
        folder = inside.FOLDER if self._sealed else str(self.folder)
        (self.folder / "result.json").unlink(missing_ok=True)
        specification = {
            "name": hook,
            "folder": f"{folder}/{source.relative_to(self.folder)}",
            "backend": backend.build_backend,
            "paths": backend.backend_path,
            "result": f"{folder}/result.json",
            "arguments": [f"{folder}/out"] if hook == "build_wheel" else [],
        }
        argv = [
            f"{folder}/venv/bin/python",
            "-s",
            f"{folder}/{_SCRIPT}",
            "hook",
            json.dumps(specification),
        ]
        prefix = Path(os.path.realpath(self._interpreter)).parent.parent
        if self._sealed:
            # Not the prefix as a whole: it may be a home folder.
            visible = [str(prefix / name) for name in _OF_PYTHON]
            seal = {"scratch": str(self.folder), "visible": visible, "argv": argv}
            # Our own copy: the package's code may have written to the one in the scratch folder.
            argv = [sys.executable, "-I", inside.__file__, "seal", json.dumps(seal)]
        variables = _variables(folder, str(prefix), version)
        if self._cuda:
            home, architectures = self._cuda
            variables |= _of_cuda(folder, home, architectures, variables)
            variables["PATH"] = f"{folder}/venv/{home}/bin:{variables['PATH']}"
        return process.run(argv, base=variables, cwd=self.folder, timeout=SECONDS)

    def wheel(self, name: Any) -> Path:
        """Return the path of the wheel that a hook built.

        `name` is the hook's result. Raise `BuildError` if the hook did not build a wheel.
        """
        path = self.folder / "out" / Path(str(name)).name
        if not isinstance(name, str) or not name.endswith(".whl") or not _is_plain(path):
            raise BuildError(f"its build backend built {shown(str(name))} instead of a wheel")
        return path


@contextmanager
def scratch(interpreter: Path, notes: list[str]) -> Iterator[Scratch]:
    """Yield a new scratch folder that is removed when the context exits."""
    # What a build that was stopped has left running may write for a moment longer.
    with tempfile.TemporaryDirectory(
        prefix="envbuilder-build-", ignore_cleanup_errors=True
    ) as name:
        yield Scratch(Path(name).resolve(), interpreter, notes)


def _is_plain(path: Path) -> bool:
    """Return whether the path is a regular file. A link is not accepted."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and not path.parent.is_symlink()
    except OSError:
        return False


def _variables(scratch: str, prefix: str, version: str) -> dict[str, str]:
    """Return all environment variables for a build that uses the Python in `prefix`.

    They make the compiler replace the names of this machine's folders. Otherwise, messages and
    library paths in a wheel could contain these names.
    """
    flags = "-g0"
    for folder, stand_in in ((scratch, "."), (prefix, "/usr")):
        if " " not in folder:
            flags += f" -ffile-prefix-map={folder}={stand_in}"
    compilers = {n: c for n, c in (("CC", "cc"), ("CXX", "c++")) if process.which(c)}
    if "CC" in compilers and sys.platform == "linux":
        compilers["LDSHARED"] = "cc -shared"  # that of a Python may have its own folder as -rpath
    versions: dict[str, str] = {}
    if version:
        asked = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PBR_VERSION", "PDM_BUILD_SCM_VERSION")
        versions = dict.fromkeys(asked, version)
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    return {
        "PATH": f"{scratch}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": f"{scratch}/home",
        "TMPDIR": str(Path(scratch, "tmp")),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "USER": "build",
        "SOURCE_DATE_EPOCH": EPOCH,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VIRTUAL_ENV": f"{scratch}/venv",
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "MAX_JOBS": jobs,
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        **compilers,
        **versions,
    }


def _advice(words: str) -> str:
    """Return advice about a failed build, based on the last lines of its output."""
    if "Python.h" in words:
        return "Install the headers of this Python (Debian, Ubuntu: sudo apt install python3-dev)."
    if not process.which("cc") and ("cc" in words or "g++" in words):
        return "Install a compiler (Debian, Ubuntu: sudo apt install g++)."
    if "urlopen" in words or "resolution" in words or "unreachable" in words:
        return "Use a release that has a wheel: the build needs the network, but cannot use it."
    if "CUDA_HOME" in words:
        return (
            "The package only compiles for NVIDIA's GPUs. To leave it out, add it to exclude: in"
            " envbuilder.yaml."
        )
    return (
        "The package may need a program or library of the system, another Python, or another"
        " version of a build requirement."
    )


def normalise(
    built: Path,
    folder: Path,
    name: str,
    python: str,
    file: str = "",
    without: Collection[str] = (),
    without_programs: Collection[str] = (),
) -> tuple[Path, Metadata]:
    """Rewrite a wheel so that its bytes depend only on its content; return its path and metadata.

    The path is that of the rewritten wheel. `file` is its file name if this differs from the name
    in the path `built`. `without` contains paths below site-packages to leave out.
    `without_programs` contains the names of programs to leave out.

    Entries are sorted. They are not compressed, because compressors differ. Times, modes and the
    RECORD do not depend on the machine. Raise `BuildError` if the file is not a wheel of this
    package.
    """
    target = folder / (file or built.name)
    with opened(built, target.name, name) as (archive, info, metadata):
        _rewrite(archive, info, target, without, without_programs)
        wheel_conflicts.opened(target, python)
    return target, metadata


@contextmanager
def opened(wheel: Path, file: str, name: str) -> Iterator[tuple[zipfile.ZipFile, str, Metadata]]:
    """Yield an open wheel, the path of its metadata folder, and the metadata.

    Raise `BuildError` if the file is not a wheel of this package.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        with archives.open_zip(wheel) as archive:
            distribution, version, _, _ = parse_wheel_filename(file)
            members = _members(archive)
            if len(members) > _MOST_FILES or sum(i.file_size for i in members.values()) > _LARGEST:
                raise ValueError("it has too many files, or its files are too large")
            info = _info(members, distribution, version)
            content = archives.zip_content(archive, f"{info}METADATA", _RESULT)
            read = static_metadata.metadata(content.decode("utf-8", "replace"))
            if read is None:
                raise ValueError("its METADATA contains no version")
            metadata = read[0]
            if types.canonical(metadata.name) != distribution or distribution != types.canonical(
                name
            ):
                raise ValueError(f"the wheel is for {shown(metadata.name)}, not for {name}")
            yield archive, info, metadata
    except (*wheel_conflicts.UNREADABLE, InvalidWheelFilename, OSError) as error:
        raise BuildError(f"{file}: not an installable wheel: {error}") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {i.filename: i for i in archive.infolist() if not i.is_dir()}


def _info(members: dict[str, zipfile.ZipInfo], name: str, version: Version) -> str:
    """Return the path of a wheel's metadata folder.

    Raise `ValueError` if there is not exactly one such folder or if it belongs to another release.
    """
    from packaging.version import Version

    (record,) = wheel_conflicts.records(members) or [""]
    stem, dash, version_in_name = record.removesuffix(f"{_INFO}RECORD").partition("-")
    if not dash or types.canonical(stem) != name or Version(version_in_name) != version:
        raise ValueError(f"its metadata is in an unexpected place: {shown(record)}")
    return record.removesuffix("RECORD")


def _rewrite(
    archive: zipfile.ZipFile,
    info: str,
    target: Path,
    without: Collection[str],
    without_programs: Collection[str],
) -> None:
    members = _members(archive)
    rows = io.StringIO()
    record = f"{info}RECORD"
    data = info.removesuffix(_INFO) + ".data/"
    left = {record, f"{record}.jws", f"{record}.p7s"}
    for path in without:
        left |= {path, f"{data}purelib/{path}", f"{data}platlib/{path}"}
    left |= {f"{data}scripts/{program}" for program in without_programs}
    table = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(target, "x", zipfile.ZIP_STORED) as out:
        for name in sorted(members.keys() - left):
            digest = hashlib.sha256()
            size = 0
            is_program = bool(members[name].external_attr >> 16 & 0o111)
            entry = _entry(name, 0o755 if is_program else 0o644)
            with out.open(entry, "w", force_zip64=members[name].file_size >= 1 << 31) as file:
                pieces: Iterable[bytes] = archives.zip_pieces(archive, name)
                if without_programs and name == f"{info}entry_points.txt":
                    text = b"".join(pieces).decode()
                    pieces = [_without_programs(text, without_programs).encode()]
                for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    file.write(piece)
            encoded = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
            table.writerow([name, f"sha256={encoded}", size])
        table.writerow([record, "", ""])
        out.writestr(_entry(record, 0o644), rows.getvalue().encode())


def _without_programs(entry_points: str, names: Collection[str]) -> str:
    """Return the text of entry_points.txt without the given programs.

    Entries with the same names are kept in sections that do not define programs.
    """
    lines = []
    section = ""
    for line in entry_points.splitlines(keepends=True):
        if line.startswith("["):
            section = line[1:].partition("]")[0]
        name = line.partition("=")[0].strip()
        if section not in wheel_conflicts.SCRIPTS or name not in names:
            lines.append(line)
    return "".join(lines)


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | mode) << 16
    return entry


def glibc(wheel: Path) -> int:
    """Return the minor version of the newest glibc 2.x that any library in a wheel needs.

    Return 0 if the libraries do not need glibc.
    """
    needed = 0
    before = b""
    with archives.open_zip(wheel) as archive:
        for member in archive.infolist():
            if not wheel_conflicts.MACHINE_CODE.search(member.filename):
                continue
            for piece in archives.zip_pieces(archive, member):
                needed = max((needed, *map(int, _GLIBC.findall(before + piece))))
                before = piece[-len("_GLIBC_2.99.99_") :]
    return needed


# Wheels without files that another package installs with other bytes. Pip lets the wheel that it
# installs last win, uv the one that happens to write last. A lock decides it: one of both goes
# without the files, as a wheel of its own with its own hash.


def unpruned(file: File) -> File:
    """Return the complete wheel, as listed on its index, from which a pruned wheel is made."""
    recipe = file.recipe
    assert recipe is not None, "it is pruned"
    return replace(
        file,
        file=recipe.location,
        sha256=recipe.sha256,
        size=None,
        source=recipe.index,
        recipe=None,
    )


def prune(file: File, python: str, settings: Settings) -> File:
    """Add a pruned copy of a wheel to the store, and return the copy as a locked file.

    The copy lacks the files that the wheel's recipe excludes. The complete wheel must be in the
    store. Raise `BuildError` if the stored file is not a wheel.
    """
    store = Store.of(settings)
    recipe = file.recipe
    assert recipe is not None, "it is pruned"
    with tempfile.TemporaryDirectory(prefix="envbuilder-wheel-") as folder:
        path, _ = normalise(
            store.path(recipe.sha256),
            Path(folder),
            file.name,
            python,
            recipe.location,
            recipe.without,
            recipe.without_programs,
        )
        sha256 = file_sha256(path)
        size = path.stat().st_size
        store.take_file(path, sha256)
    return replace(file, sha256=sha256, size=size)


# NVIDIA's compiler for CUDA, from wheels: of the same CUDA as the target's PyTorch, and for the
# same GPUs, so that neither a GPU nor an installed toolkit is needed. NVIDIA publishes nvcc as a
# wheel from CUDA 13 on: those for CUDA 12 have only its assembler.


_OF_A_JOB = 4 << 30
"""Memory in bytes to reserve for each concurrent compilation."""
_PLENTY = 1 << 50
_RUNTIME = "nvidia-cuda-runtime"
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")


class Toolkit(NamedTuple):
    """The CUDA compiler for a target, and the GPU architectures to compile for."""

    requires: tuple[str, ...]
    """The compiler's wheels, as requirements; empty if only the system can provide the compiler."""
    architectures: str
    """GPU architectures, in the format of PyTorch's TORCH_CUDA_ARCH_LIST."""


def toolkit_of(target: Target, wished: Sequence[str]) -> Toolkit | None:
    """Return the CUDA compiler for a target; None if the target's PyTorch is not built for CUDA.

    `wished` contains the architectures to compile for. If it is empty, the architectures for which
    PyTorch was compiled are used. Raise `BuildError` if these are unknown.
    """
    wheels = {file.name: file for file in target.of_kind("wheel")}
    torch = wheels.get("torch")
    runtime = wheels.get(_RUNTIME)
    row = releases.of_version("torch", torch.version, target.platform) if torch else None
    if torch is None or not (row.build.startswith("cu") if row else runtime):
        return None
    kernels = wished or (row.kernels if row else ())
    if not kernels:
        raise BuildError(
            f"cannot determine which GPUs torch {torch.version} was compiled for",
            "Name the GPUs to compile for in envbuilder.yaml, for example cuda_architectures:"
            ' ["9.0"].',
        )
    ptx = "+PTX" if row and row.ptx and not wished else ""
    requires: tuple[str, ...] = ()
    if runtime:
        series = ".".join(runtime.version.split(".")[:2])
        pinned = (f"{name}=={series}.*" for name in _COMPILER)
        requires = (*pinned, f"{_RUNTIME}=={runtime.version}")
    return Toolkit(requires, ";".join(kernels) + ptx)


def _lay(venv: Path) -> str:
    """Complete a CUDA toolkit that was installed from wheels, and return its path.

    Linkers look for library names that the wheels lack, so links with these names are added. The
    path is relative to the venv, and is empty if the venv contains no toolkit.
    """
    for compiler in venv.glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc"):
        home = compiler.parent.parent
        (home / "lib64").symlink_to("lib")
        for library in sorted((home / "lib").glob("lib*.so.*")):
            plain = library.with_name(f"{library.name.partition('.so.')[0]}.so")
            if not plain.exists():
                plain.symlink_to(library.name)
        return home.relative_to(venv).as_posix()
    return ""


def _of_cuda(
    toolkit: str, home: str, architectures: str, variables: dict[str, str]
) -> dict[str, str]:
    """Return the additional environment variables for a build that compiles CUDA code.

    nvcc gives its intermediate files random names and derives symbol names from them. To keep the
    result reproducible, the linker is told to strip these symbols.
    """
    memory = probe.host().memory
    room = min(filter(None, (memory.total_bytes, memory.limit_bytes, _PLENTY)))
    return {
        "MAX_JOBS": str(max(1, min(int(variables["MAX_JOBS"]), room // _OF_A_JOB))),
        "FORCE_CUDA": "1",
        "TORCH_CUDA_ARCH_LIST": architectures,
        "NVCC_APPEND_FLAGS": f"-Xcompiler={variables['CXXFLAGS'].replace(' ', ',')}",
        "LDFLAGS": "-Wl,-s",
        **({"CUDA_HOME": f"{toolkit}/venv/{home}"} if home else {}),
    }
