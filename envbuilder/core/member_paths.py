"""Check the paths that packages may install, for every member of a layer or an environment.

Some names in a layer are commands: `.wh.NAME` deletes a file of the layers below. A path through
a link leads elsewhere than it appears to.
"""

from __future__ import annotations

import re

from envbuilder.core.text import shown

_STRAY = re.compile(r"(?:^|/)(?:\.{0,2}|\.wh\.[^/]*)(?:/|\Z)|[\x00-\x1f\x7f-\x9f]")
_LONGEST_NAME = 255
_LONGEST_PATH = 4095
_PYTHON = re.compile(r"bin/(?:python|python3|python3\.[0-9]+)")
_RESERVED = ("lib/envbuilder", "envbuilder.json", "pyvenv.cfg", "venv")
"""Paths below a prefix that builds write themselves, including the record of files to check."""


def objection(path: str) -> str:
    """Return why no package may install a path, relative to a root; empty if one may."""
    stray = _STRAY.search(path)
    if stray is None:
        encoded = path.encode(errors="surrogateescape")
        longest = max(map(len, encoded.split(b"/"))) if len(encoded) > _LONGEST_NAME else 0
        too_long = longest > _LONGEST_NAME or len(encoded) > _LONGEST_PATH
        return f"{shown(path)} is longer than file systems allow" if too_long else ""
    name = stray[0].strip("/")
    if name.startswith(".wh."):
        return f"{shown(path)} would delete another file from an image"
    leads_out = name == ".." or path.startswith("/")
    return f"{shown(path)} {'leads out of its folder' if leads_out else 'is not a normalized path'}"


def of_the_build(path: str, *, with_python: bool) -> str:
    """Return why a package may not install a path below a prefix; empty if it may.

    `with_python`: the paths of an interpreter are reserved, too.
    """
    plain = path.casefold()
    if any(plain == own or plain.startswith(f"{own}/") for own in _RESERVED) or (
        with_python and _PYTHON.fullmatch(plain)
    ):
        return f"{shown(path)} is a file that envbuilder writes itself"
    return ""


class Folders:
    """Check for paths that lead through something other than a folder; paths come sorted."""

    def __init__(self) -> None:
        self._no_folders: set[str] = set()
        self._checked: set[str] = {""}

    def objection(self, path: str, *, is_folder: bool) -> str:
        """Return why a path conflicts with those before it; empty if it does not."""
        folder = path.rpartition("/")[0]
        while folder not in self._checked:
            if folder in self._no_folders:
                return f"{shown(path)} leads through {shown(folder)}, which is not a folder"
            self._checked.add(folder)
            folder = folder.rpartition("/")[0]
        if not is_folder:
            self._no_folders.add(path)
        return ""
