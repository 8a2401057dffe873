"""Small real wheels, which uv installs."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write(folder: Path, name: str, files: Mapping[str, bytes], scripts: str = "") -> Path:
    """A wheel of version 1.0 with these files, and these lines in its console_scripts."""
    info = f"{name}-1.0.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    record = "".join(f"{path},{recorded(content)},\n" for path, content in members.items())
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def recorded(content: bytes) -> str:
    """A hash as RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"
