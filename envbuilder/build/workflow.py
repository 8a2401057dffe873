"""The build workflow: request → profile → host → lock → plan → artifact.

The order of checks, with their exit codes, is a contract: arguments and profile (2), host (3),
lock (2), engine and tools (4), fetch and build (1), verify (5). Nothing is downloaded before the
tool check.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.build.backends import devices, environment
from envbuilder.build.backends.environment import Environment, Product
from envbuilder.build.plan import Artifact, BuildResult, MakeBase, Plan
from envbuilder.core.errors import BuildError, HostError, InvalidError, ToolError
from envbuilder.core.settings import require_own
from envbuilder.host import assumed, probe
from envbuilder.host.model import Host
from envbuilder.profiles import backends, choice, fitting, ways
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile, require_backend
from envbuilder.project import catalog
from envbuilder.signatures.statement import Signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.build.request import Request
    from envbuilder.build.sharing import Sharing
    from envbuilder.core import types
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.ways import Way


class Prepared(Struct, frozen=True, kw_only=True):
    """What a request makes, planned for a host, after all checks that precede a download."""

    profile: Profile
    host: Host
    product: Product


class _Decision(Struct, frozen=True, kw_only=True):
    """Everything that is decided before a backend plans."""

    profile: Profile
    backend: str
    lock: Lock
    host: Host
    signed: tuple[Signed, ...]
    """Accepted signatures of the lock."""
    way_out: str
    """How the profile works here otherwise; empty if nothing else is to be suggested."""
    environment: dict[str, str]
    """Variables that hide GPUs which do not work with the profile."""


def prepare_to_run(
    request: Request, settings: Settings, progress: Progress
) -> tuple[Prepared, Environment]:
    """Prepare an environment in which commands will run at once, on this host, which must fit."""
    library = catalog.library(settings)
    profile = requested(request, library)
    request = replace(request, to_run=True)
    decision = _decide(request, profile, probe.host(), library, settings, progress)
    prepared = _plan(decision, request, settings, progress)
    # An output could not run anything, but no command that runs something offers one.
    product = cast("Environment", prepared.product)
    product.device_variables, note = devices.visible(
        decision.profile.accelerator, decision.environment, os.environ
    )
    if note:
        progress.note(note)
    return prepared, product


def prepare_to_build(request: Request, settings: Settings, progress: Progress) -> Prepared:
    """Prepare a build whose result is for this host, or for the named one, which must fit.

    If it is for this host, only what cannot exist here is refused, and the rest is noted: it may be
    used elsewhere.
    """
    library = catalog.library(settings)
    profile = requested(request, library)
    if not assumed.is_assumed(request.target_host):
        decision = _decide(request, profile, probe.host(), library, settings, progress)
        return _plan(decision, request, settings, progress)
    host = assumed.find(request.target_host)
    progress.note(f"note: {host.notes[0]}")
    request = replace(request, to_run=True)
    decision = _decide(request, profile, host, library, settings, progress)
    if not backends.makes_image(decision.backend):
        _require_platform(host.platform, probe.host().platform)
    return _plan(decision, request, settings, progress)


def requested(request: Request, library: Library) -> Profile | None:
    """Return the requested profile, if any, before a host is probed."""
    return None if request.profile is None else library.profile(request.profile)


def choose_profile(
    library: Library, settings: Settings, host: Host, progress: Progress, backend: str | None = None
) -> Profile:
    """Return the profile that `choice.choose` picks, and note why."""
    chosen = choice.choose(library, settings, host, backend=backend)
    progress.note(f"profile {chosen.profile.name}: {chosen.reason}")
    return chosen.profile


def _decide(
    request: Request,
    profile: Profile | None,
    host: Host,
    library: Library,
    settings: Settings,
    progress: Progress,
) -> _Decision:
    """Decide on profile and backend, and check the host and the lock, in the contract's order."""
    if profile is None:
        # A native backend is not passed on: it would hide an accelerator that works in an image.
        image = backends.makes_image(request.backend or "") or bool(_image_options(request))
        backend = backends.IMAGE if image else None
        profile = choose_profile(library, settings, host, progress, backend)
    require_offered(profile, request)
    name = request.backend
    if name is None:
        lock = library.lock(profile.name)
        judged = () if request.force else ways.judged(profile, host, lock)
        name, reason = choose_backend(profile, request, settings, judged)
        progress.note(f"backend {name}: {reason}")
    way_out, variables = "", dict[str, str]()
    if not request.force:
        fit = choice.require_host(
            profile,
            host,
            library,
            backend=name,
            building=not request.to_run,
            locked=profile.framework_from_wheels(name),
        )
        way_out, variables = fit.way_out, fit.environment
        for reason in fit.reasons if fit.verdict == "warnings" else ():
            progress.note(f"warning: {reason}")
    usable = library.usable_lock(profile, name)
    for note in (*profile.warnings, *library.notes):
        progress.note(f"note: {note}")
    return _Decision(
        profile=profile,
        backend=name,
        lock=usable,
        host=host,
        signed=library.signed,
        way_out=way_out,
        environment=variables,
    )


def require_offered(profile: Profile, request: Request) -> None:
    """Raise `InvalidError` if the profile lacks the requested backend or Python."""
    if request.backend is not None:
        require_backend(profile, request.backend)
    if request.python is not None and request.python not in profile.python.supported:
        raise InvalidError(
            f"profile '{profile.name}' has no Python {request.python}",
            f"It has: {', '.join(profile.python.supported)}.",
        )


def _plan(
    decision: _Decision, request: Request, settings: Settings, progress: Progress
) -> Prepared:
    """Plan with the backend, which checks its tools; note which hashes are claims."""
    profile, host = decision.profile, decision.host
    require_own(settings)
    prepare = environment.prepare(decision.backend)
    try:
        product = prepare(profile, decision.lock, host, request, settings)
    except ToolError as error:
        is_image = backends.makes_image(decision.backend)
        if not is_image or not decision.way_out or not fitting.engine(host):
            raise
        # The original hint may suggest another backend, which does not help here.
        raise ToolError(error.message, decision.way_out) from error
    except BuildError as error:  # the base image cannot be obtained
        python = request.python or profile.image_python
        _suggest_packages(error, profile.name, python, request, settings)
        raise
    for note in product.plan.notes:
        progress.note(note)
    signatures = (*decision.signed, *product.plan.signatures)
    for signed in signatures:
        progress.note(f"signed by key {signed.keyid}: {signed.name}")
    product.plan = replace(product.plan, signatures=signatures)
    claimed = [f for f in product.plan.files if f.provenance != "read"]
    if claimed:
        names = ", ".join(f"{f.name} {f.version} ({f.by})" for f in claimed)
        progress.note(f"note: hashes claimed by others, which the download confirms: {names}")
    return Prepared(profile=profile, host=host, product=product)


def _suggest_packages(
    error: BuildError, name: str, python: str, request: Request, settings: Settings
) -> None:
    """Add to an error about a base image the profile whose base needs no registry, if any."""
    variant = None if request.base_image else catalog.library(settings).on_packages(name, python)
    if variant is not None:
        error.hint += (
            f"\nWithout a registry: --profile {variant} makes its base from locked Debian packages"
            f" (Python {python})."
        )


def _require_platform(platform: str | None, this_platform: str | None) -> None:
    """Raise `HostError` unless a native environment is built on the platform it is for."""
    if platform != this_platform:
        raise HostError(
            f"a native environment for {platform or 'an unknown platform'} cannot be made on"
            f" {this_platform or 'this system'}",
            "Run the build on that machine, or use --backend docker.",
        )


def _image_options(request: Request) -> str | None:
    """Return the first option of the request that only images have, if any."""
    return request.builder or request.output or request.push


def choose_backend(
    profile: Profile, request: Request, settings: Settings, judged: Sequence[Way] = ()
) -> tuple[types.Backend, str]:
    """Return the backend that works on the host, and why; `judged`: its ways on that host.

    If several work: the preferred one whose means are at hand (for an image an engine that answers
    and has the base image), else the last one.
    """
    usable = backends.automatic(profile.backends)
    if len(usable) == 1:
        return usable[0], f"the only one that '{profile.name}' has"
    if backends.IMAGE in usable and _image_options(request):
        return backends.IMAGE, "an image was requested"
    best = {way.backend for way in judged if way.works or way.level == judged[0].level}
    possible = [name for name in usable if name in best]
    if len(possible) == 1:
        (name,) = possible
        only = ways.only_image(tuple(judged))
        return name, f"image only: {only}" if only else f"only {name} is possible on this host"
    from envbuilder.build.backends import docker

    reason = docker.unavailable(profile, request, settings)
    if reason:
        return next(name for name in usable if not backends.makes_image(name)), reason
    return backends.IMAGE, "an engine answers and has the base image"


def build(
    product: Product,
    request: Request,
    settings: Settings,
    progress: Progress,
    sharing: Sharing | None = None,
) -> BuildResult:
    """Fetch what is missing and run the plan, unless exactly this result exists.

    `sharing`: what the build shares with those beside it.
    """
    from envbuilder.build.attestation import documents

    plan = product.plan
    artifact = None if request.rebuild else product.existing()
    built, started = False, time.monotonic()
    if artifact is None:
        built, artifact = _make(product, request, settings, progress, sharing)
    if not built:
        product.restore_names()
    made_by = product.made_by() | _base_made_by(plan)
    attestations = documents.ensure(
        *(plan, artifact, settings, progress),
        anew=built,
        versions=made_by,
    )
    if not request.only_tag and (note := _link(product, settings)):
        progress.note(f"note: {note}")
    if backends.makes_image(plan.backend):
        from envbuilder.build.image import project_record

        project_record.keep(plan, artifact, settings)
    if request.push:
        from envbuilder.build.attestation import publish

        publish.attach(request.push, plan.fingerprint, attestations, settings, progress)
    return BuildResult(
        status="built" if built else "reused",
        profile=plan.profile,
        backend=plan.backend,
        builder=plan.builder,
        artifact=artifact,
        documents=attestations,
        fingerprint=plan.fingerprint,
        seconds=round(time.monotonic() - started, 3) if built else 0.0,
        made_by=made_by,
    )


def _link(product: Product, settings: Settings) -> str:
    """Link the project to its native environment; return a sentence if that is not possible."""
    from envbuilder.build import project_link
    from envbuilder.build.backends.native import NativeEnvironment

    if not isinstance(product, NativeEnvironment):
        return ""
    # The folder above `bin`: on conda packages, the wheels are in a venv below the prefix.
    return project_link.update(settings, (product.prefix / product.python).parent.parent)


def _make(
    product: Product,
    request: Request,
    settings: Settings,
    progress: Progress,
    sharing: Sharing | None,
) -> tuple[bool, Artifact]:
    """Fetch what is missing, and run the plan, unless another process has done so meanwhile.

    Return whether it ran, and the artifact.
    """
    from envbuilder.build.backends import base_python
    from envbuilder.build.execute import execute
    from envbuilder.packages import shared_store, space
    from envbuilder.packages.debian.deb import require_clean
    from envbuilder.packages.fetch import fetch
    from envbuilder.packages.python import wheel_conflicts
    from envbuilder.packages.store import Store

    plan = product.plan
    if changed := product.changed():
        progress.note(f"note: {changed}; it is built again")
    if settings.shared_store and (why := shared_store.objection(settings.shared_store)):
        progress.note(f"warning: {why}; what it lacks is downloaded")
    space.require(plan.files, plan.room, settings)
    try:
        base_python.require(plan, settings, progress)
    except BuildError as error:
        _suggest_packages(error, plan.profile, plan.python, request, settings)
        raise
    with sharing.downloads if sharing else contextlib.nullcontext():
        fetch(plan.files, product.target, settings, progress)
    store = Store.of(settings)
    wheel_conflicts.require_compatible(plan.files, plan.python, store)
    if backends.makes_image(plan.backend):
        require_clean(plan.files, store)

    def is_done() -> bool:
        return not request.rebuild and product.existing() is not None

    with sharing.turn(plan.profile) if sharing else contextlib.nullcontext():
        built = execute(plan, settings, progress, is_done, sharing.layers if sharing else None)
    with progress.task("check what was built"):
        artifact = product.existing()
    if artifact is None:
        raise BuildError(
            f"{plan.artifact.ref} is missing after its build, or was changed in the meantime",
            "Run the same command again.",
        )
    return built, artifact


def _base_made_by(plan: Plan) -> dict[str, str]:
    """Return the programs that make the plan's base → their versions; empty if it makes none."""
    base = next((step for step in plan.steps if isinstance(step, MakeBase)), None)
    if base is None:
        return {}
    from envbuilder.build.image import debian_base

    return debian_base.made_by(base)
