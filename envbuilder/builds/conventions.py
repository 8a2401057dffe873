"""Conventions of images and environments that all builders share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envbuilder.profiles.profile import IMAGE_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import PurePath

    from envbuilder.profiles.profile import Profile

PREFIX = "/opt/env"
"""Location of the environment in an image."""
PYTHON = IMAGE_PYTHON
"""Location of an interpreter that is not from the base image."""
OWN = "/opt/envbuilder"
"""Location of envbuilder's own files, in the image and in mounts of a command."""
PAYLOAD = f"{OWN}/payload.pyz"
ID = 1000
"""uid and gid of the image's user."""
USER = f"{ID}:{ID}"
HOME = "/home/user"
WORK = "/work"
PASSWD = f"user:x:{ID}:{ID}::{HOME}:/bin/sh"
GROUP = f"user:x:{ID}:"
"""That user's lines in /etc/passwd and /etc/group."""
ENTRYPOINT = (f"{PREFIX}/bin/python", "-I", PAYLOAD, "exec", "--")
"""Sets the number of threads from the container's CPU quota and affinity, then becomes the
command. Runs isolated itself, but passes all variables of the container on to the command."""
COMMAND = ("python",)
PATH = f"{PREFIX}/bin"
"""Prepended to the base image's PATH."""


def variables(profile: Profile) -> dict[str, str]:
    """Return the variables that an image sets in addition to PATH, in this order."""
    values = {"VIRTUAL_ENV": PREFIX, **dict(sorted(profile.environment.items()))}
    if profile.preload:
        values["LD_PRELOAD"] = ":".join(profile.preload)
    return values


def imports_from(folders: Iterable[PurePath], *others: str | None) -> dict[str, str]:
    """Return the variable that makes Python import from folders, before those in other values."""
    first = list(map(str, folders))
    if first:
        return {"PYTHONPATH": os.pathsep.join([*first, *filter(None, others)])}
    return {}
