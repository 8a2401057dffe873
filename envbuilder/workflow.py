"""The whole flow on one screen: request → profile → host → lock → environment → artifact.

The order of checks is a contract: arguments and profile (2), host (3), lock (2), engine and tools
(4), fetch and build (1), verify (5). Nothing is downloaded before the tool check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder import backends, lockfile, profiles, render, words
from envbuilder.errors import HostError, InvalidError
from envbuilder.host import Host
from envbuilder.plan import BuildResult
from envbuilder.profiles import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.console import Progress
    from envbuilder.options import Request
    from envbuilder.settings import Settings


class Chosen(Struct, frozen=True, kw_only=True):
    """A profile for this host, and why."""

    profile: Profile
    host: Host
    name: str
    reason: str


def choose_profile(settings: Settings, folders: Sequence[Path]) -> Chosen:
    """The profile that the configuration or the host decides for; `HostError` when none fits."""
    from envbuilder import host, selection

    here = host.probe()
    wanted = settings.configuration.profile
    if wanted:
        profile = profiles.load(wanted, folders)
        return Chosen(profile=profile, host=here, name=wanted, reason="set in the configuration")
    candidates = known(folders)
    choice = selection.choose(candidates, here)
    if choice.profile is None:
        raise HostError(f"no profile fits this machine: {choice.reason}", "See: envbuilder detect")
    profile = next(p for p in candidates if p.name == choice.profile)
    return Chosen(profile=profile, host=here, name=profile.name, reason=choice.reason)


def asked_or_chosen(
    request: Request, settings: Settings, folders: Sequence[Path], progress: Progress
) -> tuple[Profile, Host]:
    """The profile that was asked for, or the one decided for (and noted), with this host."""
    from envbuilder import host

    if request.profile is not None:
        return profiles.load(request.profile, folders), host.probe()
    chosen = choose_profile(settings, folders)
    progress.note(f"profile {chosen.name}: {chosen.reason}")
    return chosen.profile, chosen.host


def known(folders: Sequence[Path]) -> tuple[Profile, ...]:
    """All profiles that can be used."""
    return tuple(profiles.load(name, folders) for name in profiles.names(folders))


def require_host(
    profile: Profile, here: Host, folders: Sequence[Path], *, backend: str | None, building: bool
) -> None:
    """`HostError` where this host cannot run the profile; other profiles are only read then."""
    from envbuilder import selection

    if selection.fit(profile, here, backend=backend, building=building).verdict == "no":
        others = known(folders)
        selection.require(profile, here, backend=backend, building=building, others=others)


def prepare(
    request: Request, settings: Settings, progress: Progress, *, running: bool
) -> tuple[Profile, Host, backends.Environment]:
    """Everything up to the plan. `running`: the result will be run here, so the host must fit."""
    folders = profiles.search_path(settings.project, settings.config_dir)
    profile, here = asked_or_chosen(request, settings, folders, progress)
    backend = request.backend
    if backend is not None and backend not in profile.backends:
        raise InvalidError(
            f"profile '{profile.name}' has no {backend} backend",
            f"It has: {', '.join(profile.backends)}.",
        )
    if request.python is not None and request.python not in profile.python.supported:
        raise InvalidError(
            f"profile '{profile.name}' has no Python {request.python}",
            f"It has: {', '.join(profile.python.supported)}.",
        )
    if not request.force:
        require_host(profile, here, folders, backend=backend, building=not running)
    path = lockfile.path_for(profile.name, folders)
    lock = lockfile.require_usable(profile, lockfile.load(path) if path else None)
    for warning in profile.warnings:
        progress.note(f"note: {warning}")
    if backend is None:
        backend, reason = choose_backend(profile, request, settings)
        progress.note(f"backend {backend}: {reason}")
    environment = backends.prepare(backend)(profile, lock, here, request, settings)
    claimed = [f for f in environment.plan.files if f.provenance != "read"]
    if claimed:
        names = ", ".join(f"{f.name} {f.version} ({f.by})" for f in claimed)
        progress.note(f"note: hashes claimed by others, which the download confirms: {names}")
    return profile, here, environment


def choose_backend(
    profile: Profile, request: Request, settings: Settings
) -> tuple[words.Backend, str]:
    """Docker where an engine answers and the base image is at hand, else the embedded venv."""
    usable = [b for b in profile.backends if b in backends.AVAILABLE]
    if not usable:
        raise InvalidError(
            f"profile '{profile.name}' has no backend that can build",
            f"It has: {', '.join(profile.backends)}. envbuilder builds: "
            f"{', '.join(backends.AVAILABLE)}.",
        )
    if len(usable) == 1:
        return usable[0], f"the one that '{profile.name}' has"
    from envbuilder.backends import docker

    python = request.python or render.image_python(profile)
    reason = docker.unavailable(profile, python, request, settings)
    if reason:
        return "venv", reason
    return "docker", "an engine answers and has the base image"


def build(
    environment: backends.Environment, request: Request, settings: Settings, progress: Progress
) -> BuildResult:
    """Fetch what is missing and run the plan, unless exactly this result exists."""
    from envbuilder.execute import execute
    from envbuilder.fetch import fetch

    plan = environment.plan
    artifact = None if request.rebuild else environment.existing()
    status, seconds = "reused", 0.0
    if artifact is None:
        fetch(plan.files, environment.target, settings, progress)
        seconds = execute(plan, settings, progress)
        status, artifact = "built", environment.existing()
        assert artifact is not None, "a finished build must be recognised"
    return BuildResult(
        status=status,
        profile=plan.profile,
        backend=plan.backend,
        builder=plan.builder,
        artifact=artifact,
        fingerprint=plan.fingerprint,
        seconds=round(seconds, 3),
    )
