"""Paths, users and variables that all builders use in images and environments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envbuilder.profiles.profile import IMAGE_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import PurePath

    from envbuilder.profiles.profile import Profile

PREFIX = "/opt/env"
"""Path of the environment in an image."""
PYTHON = IMAGE_PYTHON
"""Path of the interpreter in an image, if it is not the base image's own."""
OWN = "/opt/envbuilder"
"""Path of envbuilder's own files in an image, and of its own folders mounted in a container."""
PAYLOAD = f"{OWN}/payload.pyz"
ID = 1000
"""User id and group id of the image's user."""
USER = f"{ID}:{ID}"
HOME = "/home/user"
WORK = "/work"
PASSWD = f"user:x:{ID}:{ID}::{HOME}:/bin/sh"
GROUP = f"user:x:{ID}:"
"""Lines of the image's user in /etc/passwd (`PASSWD`) and /etc/group (`GROUP`)."""
ENTRYPOINT = (f"{PREFIX}/bin/python", "-I", PAYLOAD, "exec", "--")
"""Entry point of an image. It sets the number of threads from the container's CPU quota and
affinity, then replaces itself with the command. It runs in isolated mode (`-I`), but passes all
variables of the container on to the command."""
COMMAND = ("python",)
PATH = f"{PREFIX}/bin"
"""Folder of the environment's programs, prepended to the base image's PATH."""


def variables(profile: Profile) -> dict[str, str]:
    """Return the variables that an image sets in addition to PATH, in the order to set them."""
    values = {"VIRTUAL_ENV": PREFIX, **dict(sorted(profile.environment.items()))}
    if profile.preload:
        values["LD_PRELOAD"] = ":".join(profile.preload)
    return values


def imports_from(folders: Iterable[PurePath], *others: str | None) -> dict[str, str]:
    """Return PYTHONPATH with `folders` before the values in `others`; empty without folders."""
    first = list(map(str, folders))
    if first:
        return {"PYTHONPATH": os.pathsep.join([*first, *filter(None, others)])}
    return {}
