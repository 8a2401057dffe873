"""Sources of packages, made by tests, whose build backend is their own: nothing is installed."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.profiles.lock import File, Target
from tests.support import packed

BACKEND = """
import os, zipfile
{more}
def get_requires_for_build_wheel(settings=None):
    return {asks}

def build_wheel(folder, settings=None, metadata=None):
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("tiny/__init__.py", content())
        out.writestr("tiny-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\nRequires-Dist: six\\n")
        out.writestr("tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        out.writestr("tiny-1.0.dist-info/RECORD", "")
    return name
"""
CONTENT = "def content():\n    return 'x = 1'\n"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
INFO = "Metadata-Version: 2.2\nName: tiny\nVersion: 1.0\n"


def files(more: str = CONTENT, asks: str = "[]") -> dict[str, str]:
    """The files of a source whose backend runs `more`, which defines `content`."""
    return {"own.py": BACKEND.format(more=more, asks=asks), "pyproject.toml": PROJECT}


def archive(path: Path, files: Mapping[str, str], top: str = "tiny-1.0/") -> Path:
    """A source distribution."""
    entries = (packed.entry(f"{top}{name}", text.encode()) for name, text in files.items())
    path.write_bytes(gzip.compress(packed.tar(*entries)))
    return path


def locked(
    locker: SourceLocker,
    python: str,
    platform: str = "linux/amd64",
    name: str = "tiny",
    specifier: str = "",
    beside: tuple[File, ...] = (),
    location: str = "./tiny",
) -> Target:
    """A target of one package alone, as `lock` gets it."""
    offer = locker.prepare(name, specifier, pythons=[python], location=location).offer
    file = File(
        kind="wheel",
        name=offer.distribution,
        version=offer.version,
        file=offer.file,
        sha256=offer.sha256,
        size=None,
        source=offer.source,
        provenance="read",
        by=offer.by,
    )
    files = (*beside, file)
    target = Target(platform=platform, python=python, base=None, files=files)  # type: ignore[arg-type]
    return locker.finish(target)
