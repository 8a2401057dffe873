"""Small real .deb files, made without dpkg."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support import packed
from tests.support.packed import Content


def tar(members: Mapping[str, Content], mtime: int = 0) -> bytes:
    """Files below `bin` are programs."""
    entries = [packed.entry(f"./{name}", c, mtime=mtime) for name, c in members.items()]
    for member, _ in entries:
        if member.isdir() or (member.isreg() and "bin/" in member.name):
            member.mode = 0o755
    return packed.tar(*entries)


def deb(
    name: str,
    version: str = "1",
    control_files: dict[str, bytes] | None = None,
    data: Mapping[str, Content] | None = None,
    **fields: str,
) -> bytes:
    stated = {"Package": name, "Version": version, "Architecture": "amd64", **fields}
    control = "".join(f"{k}: {v}\n" for k, v in stated.items())
    inside = tar({"control": control.encode(), **(control_files or {})})
    return of(inside, tar(data or {f"usr/share/{name}": b"x"}))


def of(control: bytes, data: bytes) -> bytes:
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
