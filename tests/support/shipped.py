"""The profiles that are shipped, and their locks."""

from __future__ import annotations

from envbuilder.core import resources
from envbuilder.profiles import lock, profile

FOLDERS = (resources.profiles_dir(),)


def shipped_profile(name: str) -> profile.Profile:
    return profile.load(name, FOLDERS)


def shipped_lock(name: str) -> lock.Lock:
    return lock.load(FOLDERS[0] / f"locks/{name}.json")
