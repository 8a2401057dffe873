"""The files of an image, and those that its wheels state."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layout import Layout, Manifest
from envbuilder.core.archives import Tar

RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
AARCH64 = 183
"""ELF's number for 64-bit ARM."""


class Content(NamedTuple):
    """A plain file of the image."""

    sha256: str
    head: bytes

    @property
    def machine(self) -> int | None:
        """ELF's number of the processor; None where it is no program and no library."""
        if self.head[:4] != b"\x7fELF":
            return None
        return int.from_bytes(self.head[18:20], "little")


def read(layout: Layout, manifest: Manifest) -> dict[str, Content]:
    """Path → content of every plain file."""
    files: dict[str, Content] = {}
    for each in manifest.layers:
        for member, archive in layer.members(layout.checked(each)):
            if member.islnk():
                files[member.name] = files[member.linkname]
            elif member.isreg():
                files[member.name] = _content(member, archive)
    return files


def _content(member: tarfile.TarInfo, archive: Tar) -> Content:
    head = b""
    digest = hashlib.sha256()
    for piece in archive.pieces(member):
        head = head or piece[:20]
        digest.update(piece)
    return Content(digest.hexdigest(), head)


def record(wheel: Path) -> dict[str, str]:
    """Path → sha256, as a wheel states it of its files."""
    with zipfile.ZipFile(wheel) as archive:
        # setuptools has wheels of others inside, with a RECORD each.
        name = next(n for n in archive.namelist() if RECORD.fullmatch(n))
        text = archive.read(name).decode()
    rows = [(path, said.removeprefix("sha256=")) for path, said, _ in csv.reader(io.StringIO(text))]
    return {p: base64.urlsafe_b64decode(f"{said}==").hex() for p, said in rows if said}
