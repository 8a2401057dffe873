"""An archive of this machine's Python 3.10, in the form of python-build-standalone's.

It finds its library by itself, wherever it is put. It is not self-contained: libz, libffi and a few
more come from the machine or the image.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import tarfile
from pathlib import Path

from envbuilder.core.errors import ToolError
from envbuilder.host import interpreters
from envbuilder.packages.interpreters import SOURCE
from tests.conftest import missing

PYTHON = "3.10"
_LEFT_OUT = re.compile(
    r"__pycache__|test|tests|idlelib|tkinter|turtledemo|lib2to3|config-.*|site-packages"
)


class Archive:
    """The archive below a mirror's folder, and how locks name it."""

    def __init__(self, mirror: Path) -> None:
        try:
            found = interpreters.find(PYTHON, (PYTHON,), platform.machine())
        except ToolError as error:
            missing("python310", error.message)
        self.version, prefix = found.version, found.path.resolve().parent.parent
        self.file = f"20260814/cpython-{self.version}+20260814-this-machine-install_only.tar.gz"
        self.path = mirror / self.file
        self.path.parent.mkdir(parents=True)
        with tarfile.open(self.path, "w:gz", compresslevel=1) as archive:
            _write(archive, prefix)
        self.sha256 = hashlib.sha256(self.path.read_bytes()).hexdigest()

    def put_into(self, lock: Path, **other: str) -> None:
        """Let the targets of a lock name it."""
        data = json.loads(lock.read_text())
        for target in data["targets"]:
            own = {"version": self.version, "file": self.file, "sha256": self.sha256}
            target["interpreter"] |= own | other
        lock.write_text(json.dumps(data))


def mirrored(url: str) -> dict[str, str]:
    """The variable that makes envbuilder use a mirror."""
    return {f"ENVBUILDER_INDEX_{SOURCE.upper().replace('-', '_')}": url}


def _write(archive: tarfile.TarFile, prefix: Path) -> None:
    program = f"bin/python{PYTHON}"
    _add(archive, program, (prefix / program).read_bytes(), prefix, mode=0o755)
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"python/bin/{name}")
        link.type = tarfile.SYMTYPE
        link.linkname = f"python{PYTHON}"
        archive.addfile(link)
    for library in sorted(prefix.glob(f"lib/libpython{PYTHON}.so.*")):
        _add(archive, f"lib/{library.name}", library.read_bytes(), prefix)
    for folder in (f"lib/python{PYTHON}", f"include/python{PYTHON}"):
        for path in sorted((prefix / folder).rglob("*")):
            name = path.relative_to(prefix)
            if path.is_file() and not any(map(_LEFT_OUT.fullmatch, name.parts)):
                _add(archive, str(name), path.read_bytes(), prefix)


def _add(
    archive: tarfile.TarFile, name: str, content: bytes, prefix: Path, mode: int = 0o644
) -> None:
    """Add a file; where it looks for libraries in its prefix, it looks beside itself instead."""
    before = f"{prefix}/lib\0".encode()
    content = content.replace(before, b"$ORIGIN/../lib".ljust(len(before), b"\0"))
    entry = tarfile.TarInfo(f"python/{name}")
    entry.size, entry.mode, entry.mtime, entry.uid = len(content), mode, 1_700_000_000, 1000
    archive.addfile(entry, io.BytesIO(content))
