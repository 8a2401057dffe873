"""The build workflow: request → profile → host → lock → environment → artifact.

The order of checks, with their exit codes, is a contract: arguments and profile (2), host (3),
lock (2), engine and tools (4), fetch and build (1), verify (5). Nothing is downloaded before the
tool check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.build import render
from envbuilder.build.backends import environment as backends
from envbuilder.build.plan import BuildResult, MakeBase, Plan
from envbuilder.core.errors import BuildError, HostError, InvalidError, ToolError
from envbuilder.host import probe
from envbuilder.profiles import fitting, ways
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.build.request import Request
    from envbuilder.core import types as words
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.selection import Fit
    from envbuilder.profiles.ways import Way


class Chosen(Struct, frozen=True, kw_only=True):
    """A profile for this host, and the reason for it."""

    profile: Profile
    name: str
    reason: str


def choose_profile(
    settings: Settings, folders: Sequence[Path], here: Host, *, image: bool = False
) -> Chosen:
    """Return the profile chosen by configuration or host; raise `HostError` if none fits.

    `image`: an image was requested, so an engine is assumed where it will run.
    """
    from envbuilder.profiles import selection

    wanted = settings.configuration.profile
    if wanted:
        profile = profiles.load(wanted, folders)
        return Chosen(profile=profile, name=wanted, reason="set in the configuration")
    candidates = known(folders)
    choice = selection.choose(
        candidates,
        here,
        locks=locks(candidates, folders),
        # A native backend is not passed on: it would hide an accelerator that works in an image.
        backend="docker" if image else None,
    )
    if choice.profile is None:
        raise HostError(f"no profile fits this machine: {choice.reason}", "See: envbuilder detect")
    profile = next(p for p in candidates if p.name == choice.profile)
    return Chosen(profile=profile, name=profile.name, reason=choice.reason)


def asked(request: Request, folders: Sequence[Path]) -> Profile | None:
    """Return the requested profile, if any, before a host is probed."""
    return None if request.profile is None else profiles.load(request.profile, folders)


def decided(
    settings: Settings,
    folders: Sequence[Path],
    here: Host,
    progress: Progress,
    *,
    image: bool = False,
) -> Profile:
    """Return the profile chosen by configuration or host, and print a note with the reason."""
    chosen = choose_profile(settings, folders, here, image=image)
    progress.note(f"profile {chosen.name}: {chosen.reason}")
    return chosen.profile


def locked(
    name: str | None,
    settings: Settings,
    folders: Sequence[Path],
    target_host: Path | None = None,
    backend: str = "",
) -> tuple[Profile, Lock]:
    """Return a profile, by default the one that fits the host, and its lock, checked for use.

    The lock is empty if an environment of the backend takes nothing from it.
    """
    if name is None:
        from envbuilder.host import assumed as target

        name = choose_profile(settings, folders, target.find(target_host)).name
    profile = profiles.load(name, folders)
    return profile, _lock(profile, backend, folders)


def known(folders: Sequence[Path]) -> tuple[Profile, ...]:
    """Return all available profiles."""
    return tuple(profiles.load(name, folders) for name in profiles.names(folders))


def locks(candidates: Sequence[Profile], folders: Sequence[Path]) -> dict[str, Lock | None]:
    """Return the lock of each profile; None if it has no readable one."""
    found: dict[str, Lock | None] = {}
    for profile in candidates:
        path = lockfile.path_for(profile.name, folders)
        try:
            found[profile.name] = lockfile.load(path) if path else None
        except InvalidError:
            found[profile.name] = None
    return found


def own_lock(profile: Profile, folders: Sequence[Path]) -> Lock | None:
    """Return the lock of one profile; None if it has no readable one."""
    return locks([profile], folders)[profile.name]


def require_host(
    profile: Profile,
    here: Host,
    folders: Sequence[Path],
    *,
    backend: str | None,
    building: bool,
    locked: bool = True,
) -> Fit:
    """Return how the profile fits this host; raise `HostError` if the host cannot run it.

    Other profiles are read only for the error. `locked`: the wheels of the profile's lock will run.
    """
    from envbuilder.profiles import selection

    own = locks([profile], folders) if locked else {profile.name: None}
    fit = selection.fit(profile, here, lock=own[profile.name], backend=backend, building=building)
    if fit.verdict == "no":
        others = known(folders)
        selection.require(
            profile,
            here,
            locks=locks(others, folders) | own,
            backend=backend,
            building=building,
            others=others,
        )
    return fit


def prepare(
    request: Request, settings: Settings, progress: Progress, *, running: bool
) -> tuple[Profile, Host, backends.Environment]:
    """Return profile, host and planned environment of a request, after all checks of a plan.

    The host must fit if the result will run on it: on this one (`running`) or on a named one.
    Otherwise only what cannot exist here is refused, and the rest is noted.
    """
    from envbuilder.host import assumed as target

    folders = profiles.search_path(settings.project, settings.config_dir)
    profile = asked(request, folders)
    elsewhere = not running and target.is_assumed(request.target_host)
    here = target.find(request.target_host) if elsewhere else probe.host()
    if elsewhere:
        progress.note(f"note: {here.notes[0]}")
    image = request.backend == "docker" or bool(_image_options(request))
    profile = profile or decided(settings, folders, here, progress, image=image)
    backend = request.backend
    if backend is not None:
        profiles.require_backend(profile, backend)
    if request.python is not None and request.python not in profile.python.supported:
        raise InvalidError(
            f"profile '{profile.name}' has no Python {request.python}",
            f"It has: {', '.join(profile.python.supported)}.",
        )
    if backend is None:
        every = () if request.force else ways.judged(profile, here, own_lock(profile, folders))
        backend, reason = choose_backend(profile, request, settings, every)
        progress.note(f"backend {backend}: {reason}")
    building, way_out = not running and not elsewhere, ""
    if not request.force:
        fit = require_host(
            profile,
            here,
            folders,
            backend=backend,
            building=building,
            locked=profile.torch_from_wheels(backend),
        )
        way_out = fit.way_out
        for reason in fit.reasons if fit.verdict == "warnings" else ():
            progress.note(f"warning: {reason}")
    lock = _lock(profile, backend, folders)
    for warning in profile.warnings:
        progress.note(f"note: {warning}")
    if elsewhere and backend != "docker":
        _require_platform(here.platform, probe.host().platform)
    wanted = replace(request, to_run=running or elsewhere)
    environment = _planned(backend, way_out, (profile, lock, here, wanted, settings))
    claimed = [f for f in environment.plan.files if f.provenance != "read"]
    if claimed:
        names = ", ".join(f"{f.name} {f.version} ({f.by})" for f in claimed)
        progress.note(f"note: hashes claimed by others, which the download confirms: {names}")
    base, locked = environment.plan.base, environment.target.base
    if base is not None and locked is not None and locked.status and not request.dry_run:
        from envbuilder.packages.debian import base_image as base_status

        told = base_status.unlike(environment.target, base.ref, settings)
        if told:
            progress.note(f"warning: {told}")
    return profile, here, environment


def _planned(
    backend: str, way_out: str, arguments: tuple[Profile, Lock, Host, Request, Settings]
) -> backends.Environment:
    """Return a backend's environment; a `ToolError` for a missing engine gets `way_out` as hint."""
    try:
        return backends.prepare(backend)(*arguments)
    except ToolError as error:
        if backend != "docker" or not way_out or not fitting.engine(arguments[2]):
            raise
        # The original hint may suggest another backend, which does not help here.
        raise ToolError(error.message, way_out) from error


def _lock(profile: Profile, backend: str, folders: Sequence[Path]) -> Lock:
    """Return the profile's lock, checked for use; empty if the backend takes nothing from it."""
    if not profile.takes_lock(backend):
        return lockfile.nothing(profile)
    return lockfile.usable(profile, folders)


def _require_platform(wanted: str | None, own: str | None) -> None:
    """Raise `HostError` unless a native environment is built on the platform it is for."""
    if wanted != own:
        raise HostError(
            f"a native environment for {wanted or 'an unknown platform'} cannot be made on"
            f" {own or 'this system'}",
            "Run the build on that machine, or use --backend docker.",
        )


def _image_options(request: Request) -> str | None:
    """Return the first option of the request that only images have, if any."""
    return request.builder or request.output or request.push


def choose_backend(
    profile: Profile, request: Request, settings: Settings, every: Sequence[Way] = ()
) -> tuple[words.Backend, str]:
    """Return the backend that works on the host, and why; `every`: the ways judged there.

    If several work: docker if an engine answers and the base image is at hand, else venv. conda
    only if the profile has nothing else: it needs a lock of its own, and none is shipped.
    """
    usable: list[words.Backend] = [b for b in profile.backends if b != "conda"]
    usable = usable or ["conda"]
    if len(usable) == 1:
        return usable[0], f"the one that '{profile.name}' has"
    if "docker" in usable and _image_options(request):
        return "docker", "an image was asked for"
    best = {way.backend for way in every if way.works or way.level == every[0].level}
    left = [name for name in usable if name in best]
    if len(left) == 1:
        only = ways.only_image(tuple(every))
        return left[0], f"image only: {only}" if only else f"here only {left[0]} is possible"
    from envbuilder.build.backends import docker

    python = request.python or render.image_python(profile)
    reason = docker.unavailable(profile, python, request, settings)
    if reason:
        return "venv", reason
    return "docker", "an engine answers and has the base image"


def build(
    environment: backends.Environment, request: Request, settings: Settings, progress: Progress
) -> BuildResult:
    """Fetch what is missing and run the plan, unless exactly this result exists."""
    from envbuilder.build.attestation import documents
    from envbuilder.build.backends import base_python
    from envbuilder.build.execute import execute
    from envbuilder.packages import space
    from envbuilder.packages.debian import members as deb_members
    from envbuilder.packages.fetch import fetch
    from envbuilder.packages.python import wheel_conflicts as wheel_records
    from envbuilder.packages.store import Store

    plan = environment.plan
    artifact = None if request.rebuild else environment.existing()
    status, seconds = "reused", 0.0
    if artifact is None:
        if changed := environment.changed():
            progress.note(f"note: {changed}; it is built anew")
        space.require(plan.files, plan.room, settings)
        base_python.require(plan, settings, progress)
        fetch(plan.files, environment.target, settings, progress)
        store = Store(settings.store_dir)
        wheel_records.require_compatible(plan.files, plan.python, store)
        if plan.backend == "docker":
            deb_members.require_clean(plan.files, store)
        seconds = execute(plan, settings, progress)
        status, artifact = "built", environment.existing()
        if artifact is None:
            raise BuildError(
                f"{plan.artifact.ref} is not there after its build, or was changed meanwhile",
                "Run the same command again.",
            )
    made_by = environment.made_by() | _base_made_by(plan)
    written = documents.ensure(
        plan, artifact, settings, progress, anew=status == "built", versions=made_by
    )
    if request.push:
        from envbuilder.build.attestation import publish

        publish.attach(request.push, plan.fingerprint, written, settings, progress)
    return BuildResult(
        status=status,
        profile=plan.profile,
        backend=plan.backend,
        builder=plan.builder,
        artifact=artifact,
        documents=written,
        fingerprint=plan.fingerprint,
        seconds=round(seconds, 3),
        made_by=made_by,
    )


def _base_made_by(plan: Plan) -> dict[str, str]:
    """Return the programs that make the plan's base → their versions; empty if it makes none."""
    base = next((step for step in plan.steps if isinstance(step, MakeBase)), None)
    if base is None:
        return {}
    from envbuilder.build.image import debian_base

    return debian_base.made_by(base)
