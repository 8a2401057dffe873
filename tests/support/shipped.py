"""The profiles that are shipped, and their locks."""

from __future__ import annotations

from envbuilder.core import resources
from envbuilder.profiles import lock, profile
from envbuilder.profiles.library import Library

FOLDERS = (resources.profiles_dir(),)
LIBRARY = Library(FOLDERS)
"""Reads each profile and each lock once for all tests of a process."""


def shipped_profile(name: str) -> profile.Profile:
    return profile.load(name, FOLDERS)


def shipped_lock(name: str) -> lock.Lock:
    return lock.load(FOLDERS[0] / f"locks/{name}.json")
