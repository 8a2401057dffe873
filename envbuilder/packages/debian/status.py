"""Read which packages a Debian system has installed, from its dpkg status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian.suite import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.core import types


FILE = "var/lib/dpkg/status"
"""The path of dpkg's status file below the root."""
FOLDER = "var/lib/dpkg/status.d/"
"""The folder in which images without dpkg (distroless) keep one file per package."""
PATHS = (FILE, FOLDER)

# `unpacked` counts as installed: the files are there, and in some bases no script ever runs.
_PRESENT = frozenset({"installed", "triggers-awaited", "triggers-pending", "unpacked"})


def parse(files: Mapping[str, bytes], architecture: str) -> dict[str, str] | None:
    """Return the installed packages (name → version), from the files below `PATHS`.

    None if there are no files. Packages of other architectures are left out. Raise `InvalidError`
    if the files list no package.
    """
    from debian.deb822 import Deb822

    # The md5sums that distroless images keep beside each package are not status files.
    status = [data for path, data in sorted(files.items()) if not path.endswith(".md5sums")]
    if not status:
        return None
    packages: dict[str, str] = {}
    for data in status:
        lines = data.decode("utf-8", "replace").splitlines()
        for paragraph in Deb822.iter_paragraphs(lines, use_apt_pkg=False):
            fields = {key: " ".join(value.split()) for key, value in paragraph.items()}
            if _installed(fields, architecture):
                packages[fields["Package"]] = fields["Version"]
    if not packages:
        raise InvalidError(f"the base's dpkg status lists no installed package for {architecture}")
    return packages


def _installed(fields: Mapping[str, str], architecture: str) -> bool:
    # dpkg writes three words (wish, flag, state); distroless images write none.
    state = fields.get("Status", "install ok installed").rpartition(" ")[2]
    return bool(
        fields.get("Package")
        and fields.get("Version")
        and state in _PRESENT
        and fields.get("Architecture", architecture) in {architecture, "all"}
    )


def of_contents(contents: dict[str, bytes], platform: types.Platform, where: str) -> dict[str, str]:
    """Return the packages (name → version) by files of an image, named `where` in messages.

    Raise `InvalidError` if it has no dpkg status.
    """
    files = {p: d for p, d in contents.items() if p.startswith(PATHS)}
    packages = parse(files, ARCHITECTURES[platform])
    if packages is None:
        raise InvalidError(f"{where}: not a Debian system: it has no {FILE}")
    return packages
