"""Run an image's Python outside the image, to compile the modules of its packages.

The interpreter, its standard library and its C library are unpacked from the image's layers only
once. The image's own loader starts the interpreter, so no root privileges, engine or container are
needed. Both image builders therefore compile with the same Python, regardless of this machine's own
Python.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envbuilder.builds.image.unpacked import WORK, Compiler, Contents, Unpacked, moved, recorded
from envbuilder.builds.plan import fingerprint
from envbuilder.builds.project_folder import temporary
from envbuilder.containers.oci import layer
from envbuilder.core import files
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.builds.image.wheels import Python
    from envbuilder.containers.oci.rootfs import RootFs

_LOADERS = {"linux/amd64": "ld-linux-x86-64.so.2", "linux/arm64": "ld-linux-aarch64.so.1"}
_LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|crypt|dl|expat|m|pthread|python3.*|rt|util|z))(-2\.[0-9]+)?\.so.*"
)
"""Matches the names of the shared libraries that Python and its modules load for compiling."""
_LEFT_OUT = frozenset({"__pycache__", "dist-packages", "site-packages", "test"})
HINT = "Set bytecode: false in the profile, or use --builder buildkit."


def compiler(
    python: Python, root: RootFs, layers: Mapping[str, Path], store: Path
) -> Compiler | None:
    """Return a compiler that uses an image's Python.

    Return None if the image has no standard library. `layers` maps the digests of the image's
    uncompressed layers to their files, starting with the bottom layer. `store` is the folder in
    which the unpacked interpreter is kept. Raise `BuildError` if the image has no dynamic loader.
    """
    from filelock import FileLock

    program = root.resolve(python.path) or ""
    minor = python.version.rpartition(".")[0]
    library = f"{PurePosixPath(program).parent.parent / 'lib' / f'python{minor}'}/"
    if f"{library}encodings/__init__.py" not in root.entries:
        return None
    targets: dict[str, list[str]] = defaultdict(list)
    for path in root.entries:
        is_library = path.startswith(library) and not _LEFT_OUT & {*path[len(library) :].split("/")}
        if path == program or is_library or _is_shared(path):
            targets[root.resolve(path) or ""].append(path)
    identity = fingerprint({"layers": list(layers), "python": program})
    folder = store / f"python-{identity}"
    files.ensure_folder(store)
    with FileLock(f"{folder}.lock"):
        unpacked = Unpacked.read(folder)
        if unpacked is None or not unpacked.is_whole():
            unpacked = _unpacked(targets, [*layers.values()], folder)
    shared = [file.path for file in unpacked.contents.files if _is_shared(file.path)]
    loader = next((p for p in shared if p.endswith(f"/{_LOADERS[python.platform]}")), None)
    if loader is None:
        raise BuildError(f"{python.path}: the image has no {_LOADERS[python.platform]}", HINT)
    folders = sorted({str((folder / path).parent) for path in shared})
    decisive = [
        f.sha256 for f in unpacked.contents.files if f.path == program or "/libpython3" in f.path
    ]
    return Compiler(
        argv=(
            str(folder / loader),
            "--inhibit-cache",
            "--library-path",
            ":".join(folders),
            str(folder / program),
        ),
        identity=f"{python.version}-{fingerprint({'files': sorted(decisive)})[:12]}",
        variables={},
        hint=HINT,
    )


def _is_shared(path: str) -> bool:
    return bool(_LIBRARIES.fullmatch(path.rpartition("/")[2]))


def _unpacked(
    targets: Mapping[str, Sequence[str]], layers: Sequence[Path], folder: Path
) -> Unpacked:
    """Unpack files from an image's layers into a folder, and return the unpacked folder.

    `targets` maps the path of each file in the image to one or more paths in the folder. A copy of
    the file is written to each of these paths.
    """
    with temporary(folder.parent / WORK) as work:
        new = work / folder.name
        places: dict[str, Path] = {}
        for blob in layers:
            for member, archive in layer.members(blob):
                paths = targets.get(str(PurePosixPath("/", member.name)).lstrip("/"), ())
                if not (paths and member.isreg()):
                    continue
                content = archive.content(member)
                for path in paths:
                    places[path] = new / path
                    places[path].parent.mkdir(parents=True, exist_ok=True)
                    places[path].write_bytes(content)
        return moved(
            new,
            folder,
            Contents(
                files=tuple(
                    recorded(path, target, file_sha256(target), executable=True)
                    for path, target in sorted(places.items())
                )
            ),
        )
