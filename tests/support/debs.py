"""Small real .deb files, made without dpkg."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File


def tar(members: Mapping[str, bytes | str | None], mtime: int = 0) -> bytes:
    """Bytes make a file, text a link to it, None a folder; files below `bin` are programs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.mtime = mtime
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size, entry.mode = len(content), 0o755 if "bin/" in name else 0o644
            archive.addfile(entry, io.BytesIO(content if isinstance(content, bytes) else b""))
    return out.getvalue()


def deb(
    name: str,
    version: str = "1",
    control_files: dict[str, bytes] | None = None,
    data: Mapping[str, bytes | str | None] | None = None,
    **fields: str,
) -> bytes:
    stated = {"Package": name, "Version": version, "Architecture": "amd64", **fields}
    control = "".join(f"{k}: {v}\n" for k, v in stated.items())
    inside = tar({"control": control.encode(), **(control_files or {})})
    return packed(inside, tar(data or {f"usr/share/{name}": b"x"}))


def packed(control: bytes, data: bytes) -> bytes:
    """Return a .deb of two tars."""
    parts = {"debian-binary": b"2.0\n", "control.tar": control, "data.tar": data}
    out = b"!<arch>\n"
    for part, content in parts.items():
        out += f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def stored(store: Store, name: str, version: str = "1", **fields: str) -> File:
    """A package of a base, in the store."""
    data = deb(name, version, **fields)
    path = store.path(hashlib.sha256(data).hexdigest())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return File(
        kind="deb", name=name, version=version, file=f"pool/{name}_{version}_amd64.deb",
        sha256=path.name, size=len(data), source="debian", provenance="read",
        by="bookworm Release of 2026-07-11T10:16:37Z", role="base",
    )  # fmt: skip


def layer(path: Path, members: list[tuple[str, bytes | str | None]]) -> Path:
    """A layer as a tar: bytes make a file, text a link to it, None a folder."""
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content if isinstance(content, bytes) else b""))
    return path
