"""Run a build from beginning to end. Start reading here.

      choose → judge → lock → plan → finish

Each stage takes the result of the previous stage (`request.Chosen` to `Built`). All stages except
the last only make decisions. They download nothing, with one exception: if the lock has only the
source of a package, the source is fetched and its wheel built, because the plan depends on the
wheel. `finish` carries out the plan, unless its result already exists. The order of the checks and
their exit codes are a contract: arguments and profile (2), host (3), lock (2), engine and tools
(4), fetching and building (1). Verification (5) is up to the caller.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from importlib import import_module
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.builds import project_folder
from envbuilder.builds.backends import devices, in_use
from envbuilder.builds.plan import NATIVE, BuildResult, MakeBase, UnpackWheels
from envbuilder.builds.request import Built, Chosen, Judged, Locked, Planned, Request, advance
from envbuilder.core.errors import (
    BuildError,
    Hint,
    HostError,
    InvalidError,
    ToolError,
    with_context,
)
from envbuilder.core.settings import PROJECT_FILE, Settings, require_own
from envbuilder.host import probe
from envbuilder.profiles import backends, choice, fit
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Profile, require_backend
from envbuilder.project import environments, variants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.builds.plan import Artifact
    from envbuilder.builds.request import Product
    from envbuilder.core import types
    from envbuilder.core.console import Progress
    from envbuilder.profiles.lock import File, Target


def prepare(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Planned:
    """Plan a build, after performing all checks that need no download.

    If `running` is true, commands will run in the result immediately, so the profile must fit this
    host. Otherwise, the result may be used on another machine: raise an error only if the result
    cannot be built on this machine, and print notes about other problems. If the request specifies
    a target host, the profile must always fit that host.
    """
    return plan(lock(judge(choose(request, settings, progress, running=running))))


def finish(build: Planned) -> Built:
    """Carry out a plan unless an earlier build made its result, and return the finished build."""
    started = time.monotonic()
    artifact = reusable(build)
    is_new = False
    if artifact is None:
        fetch(build)
        artifact, is_new = execute(build)
    build.product.restore_names()
    made_by = makers(build)
    documents = _attested(build, artifact, made_by, is_new=is_new)
    deliver(build, documents)
    result = BuildResult(
        status="built" if is_new else "reused",
        profile=build.profile.name,
        backend=build.plan.backend,
        builder=build.plan.builder,
        artifact=artifact,
        documents=documents,
        fingerprint=build.plan.fingerprint,
        seconds=round(time.monotonic() - started, 3) if is_new else 0.0,
        made_by=made_by,
    )
    return advance(build, Built, result=result)


def _attested(
    build: Planned, artifact: Artifact, made_by: dict[str, str], *, is_new: bool
) -> dict[str, str]:
    """Write the artifact's attestations if they are missing, and return their paths by name.

    If a command is about to run in a native environment, write no attestations, so that the command
    does not have to wait. In this case, only remove any outdated attestations.
    """
    waits = not build.running or artifact.kind not in NATIVE
    if not waits and not is_new:
        return {}
    from envbuilder.builds import attestations

    if waits:
        return attestations.ensure(
            build.plan, artifact, build.settings, build.progress, anew=is_new, versions=made_by
        )
    attestations.remove(build.plan, artifact, build.settings)
    return {}


# --- the stages


def choose(request: Request, settings: Settings, progress: Progress, *, running: bool) -> Chosen:
    """Choose the profile, unless the request names one, and print the reason for the choice.

    Raise `InvalidError` if the profile lacks the requested backend or Python version.
    """
    library = variants.library(settings)
    if not running and settings.project and settings.definition:
        environments.require_parts(settings.definition, settings.environment, settings.project)
    requested = library.named(request.profile) if request.profile is not None else None
    elsewhere = request.target_host is not None and not running
    host = probe.target(request.target_host) if elsewhere else probe.host()
    if requested and requested.name != request.profile:
        title = FRAMEWORKS[requested.framework].title
        progress.note(f"profile {requested.name}: {request.profile} for {title}")
    if elsewhere:
        progress.note(f"note: {host.notes[0]}")
    judged: tuple[fit.BackendFit, ...] = ()
    if requested is None:
        # A native backend is not passed on: it would hide an accelerator that works in an image.
        image = backends.makes_image(request.backend or "") or bool(request.image_option)
        backend = backends.IMAGE if image else None
        chosen = choice.choose(library, settings, host, backend=backend)
        progress.note(f"profile {chosen.profile.name}: {chosen.reason}")
        requested = chosen.profile
        judged = chosen.judged
    if request.backend is not None:
        require_backend(requested, request.backend)
    if request.python is not None and request.python not in requested.python.supported:
        raise InvalidError(
            f"profile '{requested.name}' has no Python {request.python}",
            f"It has: {', '.join(requested.python.supported)}.",
        )
    return Chosen(
        request=request,
        settings=settings,
        progress=progress,
        library=library,
        host=host,
        assumed=elsewhere,
        running=running or elsewhere,
        profile=requested,
        judged=judged,
    )


def judge(build: Chosen) -> Judged:
    """Choose the backend, unless the request names one, and check that the profile fits the host.

    With `--force`, the profile does not have to fit. Raise `HostError` if a native environment
    cannot be built on this machine for the target host's platform.
    """
    profile = build.profile
    host = build.host
    request = build.request
    judged = build.judged
    backend = request.backend
    if not judged and not request.force:
        judged = fit.judge_backends(profile, host, build.library.lock(profile.name))
    if backend is None:
        backend, reason = choose_backend(
            profile, request, build.settings, () if request.force else judged
        )
        build.progress.note(f"backend {backend}: {reason}")
    hiding: dict[str, str] = {}
    workaround = ""
    if not request.force:
        verdict = choice.require_host(
            profile,
            host,
            build.library,
            backend=backend,
            building=not build.running,
            judged=judged,
        )
        for reason in verdict.reasons if verdict.verdict == "warnings" else ():
            build.progress.note(f"warning: {reason}")
        hiding = verdict.environment
        workaround = verdict.workaround
    native = build.assumed and not backends.makes_image(backend)
    if native and host.platform != (actual := probe.host().platform):
        raise HostError(
            f"cannot build a native environment for {host.platform or 'an unknown platform'} on"
            f" {actual or 'this system'}",
            "Run the build on the target machine, or use --backend docker.",
        )
    variables, note = devices.visible(profile.accelerator, hiding, os.environ)
    return advance(
        build,
        Judged,
        backend=backend,
        workaround=workaround,
        device_variables=variables,
        device_note=note,
    )


def choose_backend(
    profile: Profile, request: Request, settings: Settings, judged: Sequence[fit.BackendFit] = ()
) -> tuple[types.Backend, str]:
    """Return the backend to use on the host, and the reason for choosing it.

    If several backends work and the project already uses a venv built from the profile, choose the
    venv backend, so that pulling an image does not change the choice. Otherwise, choose an image
    backend if an engine responds and has the base image. If not, choose the first native backend.
    """
    usable = backends.automatic(profile.backends)
    if len(usable) == 1:
        return usable[0], f"the only backend of '{profile.name}'"
    if backends.IMAGE in usable and request.image_option:
        return backends.IMAGE, "an image was requested"
    best = {
        fit_of_backend.backend
        for fit_of_backend in judged
        if fit_of_backend.works or fit_of_backend.level == judged[0].level
    }
    possible = [backend for backend in usable if backend in best]
    if len(possible) == 1:
        (name,) = possible
        only = fit.only_image(tuple(judged))
        return (
            name,
            f"only an image works: {only}" if only else "no other backend works on this host",
        )
    from envbuilder.builds import records

    stays = "venv" in (possible or usable) and not request.base_image
    if stays and records.has_venv(profile.name, settings):
        return "venv", "as in earlier builds (for an image, use --backend docker)"
    from envbuilder.builds.backends import docker

    reason = docker.unavailable(profile, request, settings)
    if reason:
        return next(filterfalse(backends.makes_image, usable)), reason
    return backends.IMAGE, "an engine answers and has the base image"


def lock(build: Judged) -> Locked:
    """Read the profile's lock, and add it to the build.

    Raise `InvalidError` or `SignatureError` if the lock cannot be used.
    """
    usable = build.library.usable_lock(build.profile)
    for note in (*build.profile.notes(build.host.cpu.flags), *build.library.notes):
        build.progress.note(f"note: {note}")
    return advance(build, Locked, lock=usable)


def plan(build: Locked) -> Planned:
    """Have the backend check its tools and plan the build, and print notes about the plan.

    One of the notes lists the files whose hashes are only claimed by other locks, until the
    download confirms them. Unless this is a dry run, first build wheels for packages that the lock
    contains only as sources.
    """
    require_own(build.settings)
    if build.settings.definition is not None and build.settings.project is not None:
        project_folder.require_own(build.settings.project)
    product = _prepared(build)
    progress = build.progress
    if sources := product.target.of_kind("source"):
        names = ", ".join(f"{f.name} {f.version}" for f in sources)
        if build.request.dry_run:
            progress.note(
                f"note: not in this plan, because they are first built from source: {names}"
            )
        else:
            build = _with_wheels(build, product.target)
            product = _prepared(build)
    for note in product.plan.notes:
        progress.note(note)
    for signature in build.library.signed:
        progress.note(f"signed by key {signature.keyid}: {signature.name}")
    claimed = [f for f in product.plan.files if f.provenance != "read"]
    if claimed:
        names = ", ".join(f"{f.name} {f.version} ({f.by})" for f in claimed)
        progress.note(
            f"note: hashes claimed by other locks, to be confirmed by the download: {names}"
        )
    if build.device_note and build.running:
        progress.note(build.device_note)
    return advance(build, Planned, product=product)


def _prepared(build: Locked) -> Product:
    """Have the backend check its tools and plan what it will build.

    If a missing engine or base image prevents that, add a hint to the error.
    """
    try:
        backend = import_module(f"envbuilder.builds.backends.{build.backend}")
        product: Product = backend.prepare(build)
    except ToolError as error:
        is_image = backends.makes_image(build.backend)
        if not is_image or not build.workaround or not fit.missing_engine(build.host):
            raise
        # The original hint may suggest another backend, which does not help here.
        raise ToolError(error.message, build.workaround) from error
    except BuildError as error:  # the base image cannot be obtained
        suggest_packages(error, build, build.request.python or build.profile.image_python)
        raise
    return product


def _with_wheels(build: Locked, target: Target) -> Locked:
    """Replace the sources in the lock's target with wheels, and return the build with the new lock.

    Any wheel that no earlier build has made is built now.
    """
    from envbuilder.packages.sources import source_locker

    wheels = source_locker.build_sources(target, build.settings, build.progress)
    targets = tuple(wheels if each == target else each for each in build.lock.targets)
    return replace(build, lock=replace(build.lock, targets=targets))


def suggest_packages(error: BuildError, build: Locked, python: str) -> None:
    """Add a hint to an error about a base image, suggesting a profile that needs no registry.

    The suggested profile is a variant of the build's profile whose base is made from Debian
    packages. Do nothing if there is no such variant.
    """
    if build.request.base_image:
        return
    if variant := build.library.on_packages(build.profile.name, python):
        without = (
            f"To build without a registry, use --profile {variant}, which makes its base from"
            f" locked Debian packages (Python {python})."
        )
        with_context(error, hint=without)


def reusable(build: Planned) -> Artifact | None:
    """Return the artifact if an earlier build made it and it can be used again, else None.

    Raise `BuildError` if an environment must be rebuilt but is in use.
    """
    request = build.request
    altered = build.product.altered() if request.restore and not request.rebuild else ""
    if altered:
        build.progress.note(f"note: rebuilding from wheels: {altered}")
    artifact = None if request.rebuild or altered else build.product.existing()
    replaces = artifact is None and (request.rebuild or altered or build.product.changed())
    if replaces and not backends.makes_image(build.backend):
        with in_use.replacing(Path(build.plan.artifact.ref)):
            pass
    return artifact


def fetch(build: Planned) -> None:
    """Fetch the files that are missing from the store, and check them for conflicts.

    First check that there is enough disk space for the files and for the result. Print warnings
    about packages that may not work on this host.
    """
    from envbuilder.builds.image import base
    from envbuilder.packages.debian.deb import require_clean
    from envbuilder.packages.fetch import LackingError
    from envbuilder.packages.python import kernels, libraries, wheel_conflicts
    from envbuilder.packages.sources.source_locker import fetch as fetch_files
    from envbuilder.packages.store import Store, objection, require_space

    plan = build.plan
    settings = build.settings
    progress = build.progress
    if changed := build.product.changed():
        progress.note(f"note: building again: {changed}")
    if settings.shared_store and (reason := objection(settings.shared_store)):
        progress.note(f"warning: downloading missing files, because {reason}")
    try:
        base.require_python(plan, settings, progress)
    except BuildError as error:
        suggest_packages(error, build, plan.python)
        raise
    require_space(plan.files, plan.room, settings)
    try:
        fetch_files(plan.files, build.product.target, settings, progress, _unpacking(build))
    except LackingError as error:
        raise with_context(error, hint=_what_decided(build, error.names)) from None
    store = Store.of(settings)
    wheel_conflicts.require_compatible(plan.files, plan.python, store)
    in_image = backends.makes_image(plan.backend)
    if in_image:
        require_clean(plan.files, store)
        base.require_libc(plan, build.product.target, settings, progress)
    read = kernels.read(build.profile, plan.files, store)
    for finding in fit.findings(build.profile, build.host, build.backend, build.lock, read):
        if finding.code == "package":
            progress.note(f"warning: {finding.text}")
    asked = build.product.target.system_packages
    for text in libraries.warnings(build.profile, plan.files, store, asked, in_image=in_image):
        progress.note(f"warning: {text}")


def _unpacking(build: Planned) -> Callable[[File], None]:
    """Return a function that unpacks a downloaded wheel if the plan needs the wheel unpacked."""
    from envbuilder.builds.image.unpacked import unpack
    from envbuilder.packages.store import Store

    root = build.settings.unpacked_dir
    store = Store.of(build.settings)
    steps = [s for s in build.plan.steps if isinstance(s, UnpackWheels) and s.unpacked == str(root)]
    wheels = {wheel for step in steps for wheel in step.files}

    def unpacked(file: File) -> None:
        with suppress(OSError):  # the step tries again
            if file in wheels:
                unpack(file, root, store)

    return unpacked


def execute(build: Planned) -> tuple[Artifact, bool]:
    """Run the plan, unless another process has made the artifact in the meantime.

    Return the artifact, and whether this build made it. Raise `BuildError` if the artifact is
    missing after the build.
    """
    from envbuilder.builds.execute import execute as execute_plan

    def is_done() -> bool:
        request = build.request
        if request.rebuild or (request.restore and build.product.altered()):
            return False
        return build.product.existing() is not None

    is_new = execute_plan(build.plan, build.settings, build.progress, is_done)
    with build.progress.task("check the result"):
        artifact = build.product.existing()
    if artifact is None:
        raise BuildError(
            f"{build.plan.artifact.ref} is missing, or another process changed it after its build",
            "Run the same command again.",
        )
    return artifact, is_new


def _what_decided(build: Planned, names: frozenset[str]) -> tuple[Hint, ...]:
    """Return a hint that lists the project's requirements that limited the framework's version.

    Return an empty tuple if the framework is not in `names`, or if nothing limited its version.
    """
    limits = build.lock.decision.limits if build.lock.decision else ()
    if not limits or names.isdisjoint(FRAMEWORKS[build.profile.framework].names):
        return ()
    return (Hint(f"Entries of {PROJECT_FILE} set the framework's release: {', '.join(limits)}."),)


def makers(build: Planned) -> dict[str, str]:
    """Return the versions of the programs that determine the artifact's bytes, by program name."""
    made_by = build.product.made_by()
    for step in build.plan.steps:
        if isinstance(step, MakeBase):
            from envbuilder.builds.image import debian_base

            made_by |= debian_base.made_by(step)
    return made_by


def deliver(build: Planned, documents: Mapping[str, str]) -> None:
    """Link a native environment into the project, and attach attestations to a pushed image.

    Also record that the project uses the artifact. A temporary artifact is neither linked nor
    recorded.
    """
    if not build.request.only_tag:
        from envbuilder.builds import records

        if not backends.makes_image(build.plan.backend):
            from envbuilder.builds.backends.venv import NativeEnvironment

            if isinstance(product := build.product, NativeEnvironment):
                # The folder above `bin`: on conda packages, the wheels are in a venv below the
                # prefix.
                prefix = (product.prefix / product.python).parent.parent
                if note := project_folder.link(build.settings, prefix):
                    build.progress.note(f"note: {note}")
        records.record_user(build.plan, build.settings)
    if push := build.request.push:
        from envbuilder.builds import outputs

        outputs.attach(push, build.plan.fingerprint, documents, build.settings, build.progress)
