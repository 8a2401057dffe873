"""Paths, user ids and variables that all builders use in images and environments."""

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
"""Path of the locked interpreter in an image. Images that use their base image's interpreter lack
it."""
OWN = "/opt/envbuilder"
"""Folder that contains envbuilder's own files in an image. In a container, envbuilder also mounts
folders of its own inside this folder."""
PAYLOAD = f"{OWN}/payload.pyz"
ID = 1000
"""User id and group id of the image's user."""
USER = f"{ID}:{ID}"
HOME = "/home/user"
WORK = "/work"
PASSWD = f"user:x:{ID}:{ID}::{HOME}:/bin/sh"
GROUP = f"user:x:{ID}:"
"""The image user's line in /etc/group. `PASSWD` is the user's line in /etc/passwd."""
ENTRYPOINT = (f"{PREFIX}/bin/python", "-I", PAYLOAD, "exec", "--")
"""Entry point of an image. It sets the number of threads based on the container's CPU quota and
affinity, and then replaces itself with the command. Python runs the entry point in isolated mode
(`-I`), but the command gets all variables of the container."""
COMMAND = ("python",)
PATH = f"{PREFIX}/bin"
"""Folder that contains the environment's programs. It is prepended to the base image's PATH."""


def variables(profile: Profile) -> dict[str, str]:
    """Return the variables that an image sets in addition to PATH, in the order to set them."""
    values = {"VIRTUAL_ENV": PREFIX, **dict(sorted(profile.environment.items()))}
    if profile.preload:
        values["LD_PRELOAD"] = ":".join(profile.preload)
    return values


def imports_from(folders: Iterable[PurePath], *others: str | None) -> dict[str, str]:
    """Return a mapping that sets PYTHONPATH to `folders`, followed by the folders in `others`.

    The mapping is empty if `folders` is empty.
    """
    first = list(map(str, folders))
    if first:
        return {"PYTHONPATH": os.pathsep.join([*first, *filter(None, others)])}
    return {}
