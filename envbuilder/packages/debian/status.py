"""Parse the dpkg status of a Debian system: which packages are installed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian.package import Stanza, said

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "var/lib/dpkg/status"
"""The path of dpkg's status file below the root."""
FOLDER = "var/lib/dpkg/status.d/"
"""The folder in which images without dpkg (distroless) keep one file per package."""
PATHS = (FILE, FOLDER)

# `unpacked` counts as installed: the files are there, and in some bases no script ever runs.
_PRESENT = frozenset({"installed", "triggers-awaited", "triggers-pending", "unpacked"})


class Status(Struct, frozen=True, kw_only=True):
    """The packages of a base."""

    packages: dict[str, Stanza]
    digest: str
    """sha256 of the status file; several files are hashed as one, in the order of their names."""


def parse(files: Mapping[str, bytes], architecture: str) -> Status | None:
    """Return the installed packages, from the files below `PATHS`; None if there are no files.

    Packages of other architectures are left out. Raise `InvalidError` if the files name no package.
    """
    from debian.deb822 import Deb822

    # The md5sums that distroless images keep beside each package are not status files.
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
