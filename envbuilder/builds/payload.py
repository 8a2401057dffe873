"""Pack the payload into a single zipapp file whose bytes depend only on the payload's code."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from envbuilder.core import resources
from envbuilder.core.files import file_sha256

_MAIN = "from payload.__main__ import main\n\nraise SystemExit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


COMPILER = Path(__file__).with_name("inside") / "compile_bytecode.py"
"""Path of the script that compiles the environment's modules. The environment's Python runs it."""
RECORD = "record"
"""Name of the only folder to which the payload may write. All its other folders are read-only."""


@cache
def payload_pyz() -> bytes:
    """Return the content of `payload.pyz`."""
    folder = resources.payload_dir()
    members = {
        f"payload/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*.py")
    }
    return zipped({**members, "__main__.py": _MAIN.encode()}, resources.MARK)


def zipped(members: Mapping[str, bytes], comment: str = "") -> bytes:
    """Return a ZIP file whose bytes depend only on its members and the comment.

    Members are stored, not compressed, because the output of zlib differs between versions.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = comment.encode()
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3  # Unix, on every host
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, members[name])
    return buffer.getvalue()


def payload_sha256() -> str:
    """Return the sha256 of `payload.pyz`."""
    return hashlib.sha256(payload_pyz()).hexdigest()


def compiler_sha256() -> str:
    """Return the sha256 of `COMPILER`, the program that compiles modules to bytecode."""
    return file_sha256(COMPILER)


TIMEOUT_SECONDS = 4 * 3600.0
"""Timeout for the payload in seconds.

It is long because an epoch on a slow two-core machine takes minutes. It is finite because a driver
may hang.
"""
