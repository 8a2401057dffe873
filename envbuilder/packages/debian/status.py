"""What is installed in a Debian system: its dpkg status, as text in and data out."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian.package import Stanza, said

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "var/lib/dpkg/status"
"""Where dpkg keeps it, below the root."""
FOLDER = "var/lib/dpkg/status.d/"
"""Where images without dpkg (distroless) keep one file a package."""
PATHS = (FILE, FOLDER)

# Unpacked: its files are there, and in some bases no script ever runs.
_PRESENT = frozenset({"installed", "triggers-awaited", "triggers-pending", "unpacked"})


class Status(Struct, frozen=True, kw_only=True):
    """The packages of a base."""

    packages: dict[str, Stanza]
    digest: str
    """sha256 of the status file; of several, in the order of their names, one after the other."""


def parse(files: Mapping[str, bytes], architecture: str) -> Status | None:
    """What is installed, from the files below `PATHS`; None where there are none.

    Packages of other architectures are left out. Raises `InvalidError` for files that say nothing.
    """
    from debian.deb822 import Deb822

    # The sums that distroless images keep beside each package are no status.
    found = {p: d for p, d in files.items() if not p.endswith(".md5sums")}
    if not found:
        return None
    digest = hashlib.sha256()
    packages: dict[str, Stanza] = {}
    for _, data in sorted(found.items()):
        digest.update(data)
        lines = data.decode("utf-8", "replace").splitlines()
        for paragraph in Deb822.iter_paragraphs(lines, use_apt_pkg=False):
            fields = {key: " ".join(value.split()) for key, value in paragraph.items()}
            stanza = _installed(fields, architecture)
            if stanza is not None:
                packages[stanza.name] = stanza
    if not packages:
        raise InvalidError(f"the base's dpkg status names no installed package of {architecture}")
    return Status(packages=packages, digest=digest.hexdigest())


def _installed(fields: Mapping[str, str], architecture: str) -> Stanza | None:
    name, version = fields.get("Package", ""), fields.get("Version", "")
    # dpkg writes three words (wish, flag, state); distroless images write none.
    state = fields.get("Status", "install ok installed").rpartition(" ")[2]
    if not name or not version or state not in _PRESENT:
        return None
    if fields.get("Architecture", architecture) not in {architecture, "all"}:
        return None
    return Stanza(name=name, version=version, **said(fields))
