"""Tars and zips of plain data."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

Content = bytes | str | None
"""Bytes make a file, text a link to it, None a folder."""


def entry(name: str, content: Content = b"", **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of a tar, with further attributes of `TarInfo`."""
    data = content if isinstance(content, bytes) else b""
    kinds = {bytes: tarfile.REGTYPE, str: tarfile.SYMTYPE}
    link = content if isinstance(content, str) else ""
    made = tarfile.TarInfo(name)
    usual = {"type": kinds.get(type(content), tarfile.DIRTYPE), "linkname": link, "size": len(data)}
    for fact, value in {**usual, **facts}.items():
        setattr(made, fact, value)
    return made, data


def tar(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data.ljust(member.size, b"\0")))
    return out.getvalue()


def zipped(files: Mapping[str, bytes | str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()
