"""Small real wheels, which uv installs."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    scripts: str = "",
    *,
    version: str = "1.0",
    needs: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with these files, these lines in its console_scripts, and what it requires."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {n}\n" for n in needs)
    members = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if scripts:
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    record = "".join(
        f"{path},{recorded(content)},{len(content)}\n" for path, content in members.items()
    )
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            entry = zipfile.ZipInfo(member)  # without a date: the same wheel every time
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return path


def recorded(content: bytes) -> str:
    """A hash as RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"
