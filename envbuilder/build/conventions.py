"""What every image of ours is, whoever makes it: the Dockerfile and `oci.image` ask here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuilder.profiles.profile import Profile

PREFIX = "/opt/env"
"""The environment."""
PAYLOAD = "/opt/envbuilder/payload.pyz"
ID = 1000
"""The number of the user, and of its group."""
HOME = "/home/user"
WORK = "/work"
PASSWD = f"user:x:{ID}:{ID}::{HOME}:/bin/sh"
GROUP = f"user:x:{ID}:"
"""The lines that make the user known."""
ENTRYPOINT = (f"{PREFIX}/bin/python", "-I", PAYLOAD, "exec", "--")
"""Sets the number of threads from the container's CPU quota and affinity, then becomes the
command. Isolated itself; the command gets all variables that the container was given."""
COMMAND = ("python",)
PATH = f"{PREFIX}/bin"
"""Goes before the base image's own."""


def variables(profile: Profile) -> dict[str, str]:
    """What an image sets besides PATH, in this order."""
    found = {"VIRTUAL_ENV": PREFIX, **dict(sorted(profile.environment.items()))}
    if profile.preload:
        found["LD_PRELOAD"] = ":".join(profile.preload)
    return found
