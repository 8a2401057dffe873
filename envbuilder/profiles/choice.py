"""Choose the profile of a command: the requested one, the configured one, or what fits the host.

What judges hosts is imported when one is judged: `render` with a named profile starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.errors import HostError
from envbuilder.profiles.frameworks import DEFAULT, FRAMEWORKS
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.selection import Fit


class Chosen(Struct, frozen=True, kw_only=True):
    """A profile for a host, and the reason for it."""

    profile: Profile
    reason: str


def choose(
    library: Library, settings: Settings, host: Host, *, backend: str | None = None
) -> Chosen:
    """Return the profile that the configuration names, else the one that fits the host best.

    `backend`: the only backend that counts. Raises `HostError` if no profile fits.
    """
    from envbuilder.profiles import selection

    configured = settings.configuration.profile
    if configured:
        return Chosen(profile=library.profile(configured), reason="set in the configuration")
    candidates = library.candidates()
    choice = selection.choose(candidates, host, locks=library.locks(candidates), backend=backend)
    framework, says_so = library.framework
    title = FRAMEWORKS[framework].title
    if choice.profile is None:
        of_framework = f" with {title} ({says_so})" if says_so else ""
        raise HostError(
            f"no profile{of_framework} fits this machine: {choice.reason}", "See: envbuilder detect"
        )
    # Of the framework that nobody need ask for, nothing is said.
    unusual = says_so and framework != DEFAULT
    reason = f"{title}, because {says_so}; {choice.reason}" if unusual else choice.reason
    return Chosen(profile=library.profile(choice.profile), reason=reason)


def locked(
    library: Library,
    settings: Settings,
    name: str | None,
    target_host: Path | None = None,
    backend: str = "",
) -> tuple[Profile, Lock]:
    """Return a profile, by default the one that fits the host, and its lock, checked for use.

    The lock is empty if an environment of the backend takes nothing from it.
    """
    if name is None:
        from envbuilder.host import assumed

        profile = choose(library, settings, assumed.find(target_host)).profile
    else:
        profile = library.profile(name)
    return profile, library.usable_lock(profile, backend)


def require_host(
    profile: Profile,
    host: Host,
    library: Library,
    *,
    backend: str | None,
    building: bool,
    locked: bool = True,
) -> Fit:
    """Return how the profile fits this host; raise `HostError` if the host cannot run it.

    Other profiles are read only for the error. `locked`: the wheels of the profile's lock will run.
    """
    from envbuilder.profiles import selection

    lock = library.lock(profile.name) if locked else None
    fit = selection.fit(profile, host, lock=lock, backend=backend, building=building)
    if fit.verdict == "no":
        others = library.candidates(profile.framework)
        selection.require(
            profile,
            host,
            locks=library.locks(others) | {profile.name: lock},
            backend=backend,
            building=building,
            others=others,
        )
    return fit
