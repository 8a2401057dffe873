"""Which buildx instance builds a profile: `builders:` of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import types

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PLATFORMS = tuple(p for p in types.PLATFORMS if p.startswith("linux/"))
"""Platforms of images."""


def assigned(builders: Mapping[str, types.Instance], profile: str, platform: str) -> str:
    """Return the instance for a profile on a platform; empty if none is assigned.

    `PROFILE@PLATFORM` goes before `PROFILE`, and that before `PLATFORM`.
    """
    keys = (f"{profile}@{platform}", profile, platform)
    return next((builders[key] for key in keys if key in builders), "")


def meant(key: str) -> tuple[str, str]:
    """Return the profile and the platform that a key names, each empty if it names none."""
    profile, _, platform = key.partition("@")
    return ("", profile) if "/" in profile else (profile, platform)


def problem(key: str, profiles: Collection[str] | None) -> tuple[str, Collection[str]] | None:
    """Return the part of a key that names nothing and the names that it may be; None if all does.

    `profiles` are those that exist; None: any name may be one.
    """
    profile, platform = meant(key)
    if platform or "@" in key:
        if platform not in PLATFORMS:
            return platform or key, PLATFORMS
        if not profile:
            return None if "@" not in key else (key, PLATFORMS)
    if profiles is None:
        return None if types.is_name(profile) else (profile, ())
    return None if profile in profiles else (profile, profiles)
