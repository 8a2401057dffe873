"""The builder `layers`: assembles an image from layers, without a daemon, root or emulation.

Once loaded into an engine, the image is like that of any builder: `container.py` runs it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import TYPE_CHECKING

from msgspec import UNSET

from envbuilder.builds import conventions, project_layer, render
from envbuilder.builds.image import base as image_base
from envbuilder.builds.payload import payload_sha256
from envbuilder.builds.plan import (
    Artifact,
    Assemble,
    LinkFiles,
    Load,
    MakeBase,
    Plan,
    Push,
    Run,
    Save,
    Step,
    System,
    UsedBase,
    Write,
    fingerprint,
)
from envbuilder.containers.engine import connection
from envbuilder.containers.oci import reference
from envbuilder.core import types
from envbuilder.core.errors import ToolError
from envbuilder.packages.store import Room, unpacked
from envbuilder.profiles.lock import File, Target, lock_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.builds.request import Locked, Product
    from envbuilder.containers.engine.interface import BuildCommand, Engine
    from envbuilder.profiles.profile import Profile

BUILDER = "layers"
_AFTER_SYSTEM = re.compile(r"^# --- (?:interpreter|wheels)", re.MULTILINE)
"""Start of the Dockerfile's stage after `system`."""


def plan(
    build: Locked,
    target: Target,
    base: image_base.Base,
    machine: types.Platform | None,
    command: BuildCommand | None,
    project: project_layer.ProjectLayer | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of the image; pure.

    `machine` is this machine's platform, whose uv installs the wheels; `command` is the engine's
    builder, if there is an engine. Raises `ToolError` if packages with maintainer scripts must be
    installed without one.
    """
    from envbuilder.builds.image.layer_cache import FORMAT, SYSTEM_FORMAT
    from envbuilder.containers.oci.layer import compressor

    profile = build.profile
    lock = build.lock
    settings = build.settings
    assert target.base is not None, "a target with a base"
    uv = lock.tool(machine)
    wheels = target.of_kind("wheel")
    debs = target.of_kind("deb")
    interpreter = [target.of_image] if target.of_image else []
    variables = conventions.variables(profile)
    variables = project.variables(variables) if project else variables
    made_by = {"layers": str(FORMAT), "uv": uv.version, "zstd": str(compressor()["zstd"])}
    facts = {
        "backend": "docker",
        "builder": BUILDER,
        "platform": target.platform,
        "python": target.python,
        "base": base.identity,
        "epoch": target.base.epoch,
        "variables": variables,
        "files": sorted(f.sha256 for f in (*wheels, *debs, *interpreter)),
        "unpacked": profile.unpack_packages,
        "payload": payload_sha256(),
        "made_by": {**made_by, **compressor()},
        **({"project": project.facts} if project else {}),
    }
    scripts = _runs_scripts(profile, target)
    digest = fingerprint(facts | ({"system": SYSTEM_FORMAT} if scripts else {}))
    tags = image_base.names(build, target, digest, project)
    locked = lock_digest(lock)
    labels = image_base.labels(profile, digest, locked)
    work = settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    system = None
    if scripts:
        system = _system(build, target, base, labels, work, command)
    cache = str(settings.cache_dir / "layers")
    layout = str(work / "layout")
    is_delivered = build.request.output or build.request.push
    overlaps = command is not None and command.keeps_blobs and not is_delivered
    ahead = f"envbuilder/ahead:{digest[:12]}" if overlaps else ""
    base_files = tuple(f for step in base.make if isinstance(step, MakeBase) for f in step.files)
    files = (*base_files, *wheels, *debs, *interpreter, uv)
    steps: tuple[Step, ...] = (
        *base.make,
        Assemble(
            what="assemble the image",
            base=base.folder,
            layout=layout,
            platform=target.platform,
            python=target.python,
            epoch=target.base.epoch,
            uv=uv,
            wheels=wheels,
            debs=debs,
            interpreter=target.of_image or UNSET,
            system=system,
            project=project or UNSET,
            variables=variables,
            labels=labels,
            names=tags,
            ahead=ahead,
            cache=cache,
            fresh=build.request.rebuild,
            work=str(work / "stage"),
            records=str(settings.records_dir / digest),
        ),
    )
    artifact, delivery = end(build, digest, layout, tags, BUILDER, made_by, ahead)
    return Plan(
        profile=profile.name,
        backend="docker",
        builder=BUILDER,
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=artifact,
        lock=locked,
        base=None
        if base.make
        else UsedBase(ref=base.ref, digest=base.identity if base.identity != base.ref else ""),
        base_check=image_base.python_check(lock, target, base) if base.folder else None,
        workdir=str(work),
        files=files,
        steps=(*steps, *delivery),
        room=room(build, wheels, command),
        signatures=build.library.signed,
        notes=notes,
    )


def room(build: Locked, wheels: Sequence[File], command: BuildCommand | None) -> tuple[Room, ...]:
    """Return the space for cached layers and the image; engines keep it packed and unpacked."""
    request = build.request
    packed = sum(f.room for f in wheels)
    rooms = [Room(folder=str(build.settings.cache_dir), bytes=packed)]
    if request.output:
        rooms.append(Room(folder=str(reference.path_on_disk(request.output).parent), bytes=packed))
    elif command and command.storage and not request.push:
        rooms.append(Room(folder=command.storage, bytes=packed + unpacked(wheels)))
    return tuple(rooms)


def end(
    build: Locked,
    digest: types.Sha256,
    layout: str,
    tags: tuple[str, ...],
    builder: str,
    made_by: dict[str, str],
    ahead: str = "",
) -> tuple[Artifact, tuple[Step, ...]]:
    """Return the artifact and the steps that deliver it: to disk, registry or both, else engine.

    `ahead`: the temporary name of its preloaded layers, if there are any.
    """
    request = build.request
    settings = build.settings
    name = build.profile.name
    folder = str(settings.records_dir / digest)
    if not (request.push or request.output):
        load = Load(
            what="load the image into the engine",
            profile=name,
            fingerprint=digest,
            builder=builder,
            made_by=made_by,
            folder=folder,
            layout=layout,
            cache=str(settings.cache_dir / "layers"),
            names=tags,
            ahead=ahead,
        )
        return Artifact(kind="image", ref=tags[0]), (load,)
    artifact = Artifact(kind="registry", ref=request.push or "")
    steps = list[Step]()
    if request.output:
        kind = "archive" if reference.is_archive(request.output) else "layout"
        artifact = Artifact(kind=kind, ref=str(reference.path_on_disk(request.output)))
        steps.append(Save(what=f"write {artifact.ref}", layout=layout, target=artifact.ref))
    if request.push:
        push = Push(
            what=f"push {request.push}",
            profile=name,
            fingerprint=digest,
            builder=builder,
            made_by=made_by,
            folder=folder,
            layout=layout,
            ref=request.push,
            plain_http=request.push.partition("/")[0] in settings.configuration.plain_http,
        )
        steps.append(push)
    return artifact, tuple(steps)


def _system(
    build: Locked,
    target: Target,
    base: image_base.Base,
    labels: Mapping[str, str],
    work: Path,
    engine: BuildCommand | None,
) -> System:
    """Return the Dockerfile's stage of system packages, which an engine builds and exports."""
    if engine is None or reference.is_on_disk(base.ref):
        raise ToolError(
            f"the system packages of '{build.profile.name}' run scripts when they are installed:"
            " that requires an engine, and a base image that the engine can use",
            "Start Docker, and name a base image by its reference (ENVBUILDER_BASE_IMAGE=REF).",
        )
    assert target.base is not None, "a target with a base"
    debs = target.of_kind("deb")
    # The Dockerfile up to the stage `system`, which then is its last.
    urls = render.placeholder_urls(build.lock)
    rendered = next(render.render(build.profile, build.lock, "dockerfile", target.python, urls))
    text, *after = _AFTER_SYSTEM.split(rendered.content.decode(), maxsplit=1)
    assert after, "the Dockerfile's stages are marked"
    recipe = hashlib.sha256(text.encode()).hexdigest()
    context = work / "system"
    ref = f"envbuilder/system:{recipe[:12]}"
    exported = ""
    command = (*engine.argv, "--tag", ref)
    if engine.layout_argv:
        # The engine neither compresses the layer, unpacks it, nor sends it as a part of its image.
        ref = ""
        exported = str(work / "system-exported")
        command = (*engine.layout_argv[:-1], engine.layout_argv[-1] + exported)
    argv = (
        *command,
        *first_options(target, base.ref, target.base.epoch),
        "--build-context",
        f"debs={work / 'debs'}",
        *last_options(build, labels, (), context),
    )
    steps = (
        LinkFiles(what="check packages", files=debs, folder=str(work / "debs" / "debs")),
        Write(what="write Dockerfile", path=str(context / "Dockerfile"), text=text),
        Run(what="install the system packages", argv=argv),
    )
    return System(recipe=recipe, steps=steps, ref=ref, exported=exported or UNSET)


def first_options(target: Target, base: str, epoch: int | None) -> list[str]:
    """Return the options by which a builder knows the platform, the base and, if so, the time."""
    options = ["--platform", target.platform, "--pull=false", "--build-arg", f"BASE_IMAGE={base}"]
    if epoch is not None:
        options += ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
    return options


def last_options(
    build: Locked, labels: Mapping[str, str], tags: Sequence[str], context: Path
) -> list[str]:
    """Return the options that name the image, and the folder that it is built from."""
    options: list[str] = []
    for key, value in labels.items():
        options += ["--label", f"{key}={value}"]
    for tag in tags:
        options += ["--tag", tag]
    if build.request.rebuild:
        options.append("--no-cache")
    return [*options, str(context)]


# --- queries of this machine and its engine


def own_platform() -> types.Platform | None:
    """Return this machine's platform; None if it is not supported."""
    machine = os.uname().machine
    if sys.platform == "darwin":
        return "macos/arm64" if machine == "arm64" else None
    return types.container_platform(machine) if sys.platform == "linux" else None


def unsuitable(build: BuildCommand, profile: Profile, target: Target) -> str:
    """Return why another builder is the default for this engine and profile; empty if this is."""
    if not build.exports_layouts:
        return f"Docker {build.docker_version} cannot export a base image as an OCI layout"
    machine = own_platform()
    if machine is None:
        return "no uv is locked for this machine"
    if _runs_scripts(profile, target) and target.platform != machine:
        return f"packages of '{profile.name}' run scripts on {target.platform}"
    return ""


def _runs_scripts(profile: Profile, target: Target) -> bool:
    # No script can run on a base that is only unpacked.
    unpacks = profile.unpack_packages or bool(target.base and target.base.unpacked)
    return bool(target.of_kind("deb")) and not unpacks


def prepare(
    build: Locked, target: Target, engine: Engine | None = None, notes: tuple[str, ...] = ()
) -> Product:
    """Find the base and plan; `notes` are the plan's.

    An engine is queried only if it gets the image, has the base or runs scripts. `engine` is that
    engine, if already connected. Raises `ToolError` (exit 4) if something is missing.
    """
    from envbuilder.builds.backends.container import DockerEnvironment

    profile = build.profile
    lock = build.lock
    request = build.request
    settings = build.settings
    machine = own_platform()
    lock.tool(machine)  # fails before an engine is queried
    scripts = _runs_scripts(profile, target)
    aside = request.output or request.push
    if engine is None and (not aside or scripts):
        engine = connection.connect()
    if engine and scripts:
        engine.require_builder()
    base = image_base.find(target, engine, request, settings, scripts=scripts)
    command = engine.build_command if engine else None
    project = image_base.project_files(request, settings)
    planned = plan(build, target, base, machine, command, project, notes)
    if aside or engine is None:
        from envbuilder.builds.outputs import Output

        return Output(target, planned, settings)
    return DockerEnvironment(build, target, planned, engine)
