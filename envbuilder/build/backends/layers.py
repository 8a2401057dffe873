"""The builder `layers`: assembles an image from layers, without a daemon, root or emulation.

Once loaded into an engine, the image is like that of any builder: `container.py` runs it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING

from msgspec import UNSET

from envbuilder.build import conventions, project_layer, render
from envbuilder.build.backends import base_python
from envbuilder.build.image import base as image_base
from envbuilder.build.image import parts
from envbuilder.build.outputs import Output
from envbuilder.build.payload import payload_sha256
from envbuilder.build.plan import (
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
from envbuilder.packages.space import Room, unpacked
from envbuilder.profiles.lock import lock_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.build.project_layer import ProjectLayer
    from envbuilder.build.request import Build, Product, Request
    from envbuilder.containers.engine.interface import BuildCommand, Engine
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File, Lock, Target
    from envbuilder.profiles.profile import Profile

BUILDER = "layers"
_AFTER_SYSTEM = "# --- wheels"
"""Start of the Dockerfile's stage after `system`."""


def plan(
    profile: Profile,
    lock: Lock,
    target: Target,
    base: image_base.Base,
    request: Request,
    settings: Settings,
    machine: types.Platform | None,
    build: BuildCommand | None,
    project: ProjectLayer | None = None,
) -> Plan:
    """Return the plan of the image; pure.

    `machine` is this machine's platform, whose uv installs the wheels. Raises `ToolError` if
    packages with maintainer scripts must be installed and there is no engine.
    """
    from envbuilder.build.image.layer_cache import FORMAT, SYSTEM_FORMAT
    from envbuilder.containers.oci.layer import compressor

    assert target.base is not None, "a target with a base"
    uv = lock.tool(machine)
    wheels, debs = target.of_kind("wheel"), target.of_kind("deb")
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
        "files": sorted(f.sha256 for f in (*wheels, *debs)),
        "unpacked": profile.unpack_packages,
        "payload": payload_sha256(),
        "made_by": {**made_by, **compressor()},
        **({"project": project.facts} if project else {}),
    }
    scripts = _runs_scripts(profile, target)
    digest = fingerprint(facts | ({"system": SYSTEM_FORMAT} if scripts else {}))
    tags = image_base.names(
        *(profile, target, digest, request, settings),
        newest=project_layer.NEWEST if project else image_base.LATEST,
    )
    locked = lock_digest(lock)
    labels = image_base.labels(profile, digest, locked)
    work = settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    system = None
    if scripts:
        system = _system(profile, lock, target, base, request, labels, work, build)
    cache, layout = str(settings.cache_dir / "layers"), str(work / "layout")
    is_delivered = request.output or request.push
    overlaps = build is not None and build.keeps_blobs and not is_delivered
    ahead = f"envbuilder/ahead:{digest[:12]}" if overlaps else ""
    base_files = tuple(f for step in base.make if isinstance(step, MakeBase) for f in step.files)
    files = (*base_files, *wheels, *debs, uv)
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
            system=system,
            layers=parts.outline(wheels, debs, target.python, project),
            project=project or UNSET,
            variables=variables,
            labels=labels,
            names=tags,
            ahead=ahead,
            cache=cache,
            fresh=request.rebuild,
            work=str(work / "stage"),
            records=str(settings.records_dir / digest),
        ),
    )
    artifact, delivery = end(
        profile, digest, layout, tags, ahead, BUILDER, made_by, request, settings
    )
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
        base_check=None
        if base.make or not base.folder
        else base_python.check(lock, target, base.ref, base.folder),
        workdir=str(work),
        files=files,
        steps=(*steps, *delivery),
        room=room(wheels, request, settings, build),
    )


def room(
    wheels: Sequence[File], request: Request, settings: Settings, build: BuildCommand | None
) -> tuple[Room, ...]:
    """Return the space for cached layers and the image; engines keep it packed and unpacked."""
    packed = sum(f.room for f in wheels)
    rooms = [Room(folder=str(settings.cache_dir), bytes=packed)]
    if request.output:
        rooms.append(Room(folder=str(reference.path_on_disk(request.output).parent), bytes=packed))
    elif build and build.storage and not request.push:
        rooms.append(Room(folder=build.storage, bytes=packed + unpacked(wheels)))
    return tuple(rooms)


def end(
    profile: Profile,
    digest: types.Sha256,
    layout: str,
    tags: tuple[str, ...],
    ahead: str,
    builder: str,
    made_by: dict[str, str],
    request: Request,
    settings: Settings,
) -> tuple[Artifact, tuple[Step, ...]]:
    """Return the artifact and the steps that deliver it: to disk, registry or both, else engine."""
    records = str(settings.records_dir / digest)
    artifact, end = Artifact(kind="image", ref=tags[0]), list[Step]()
    if request.push:
        artifact = Artifact(kind="registry", ref=request.push)
        host = request.push.partition("/")[0]
        end.append(
            Push(
                what=f"push {request.push}",
                layout=layout,
                ref=request.push,
                plain_http=host in settings.configuration.plain_http,
                uploads=str(settings.uploads_dir),
                profile=profile.name,
                fingerprint=digest,
                builder=builder,
                made_by=made_by,
                folder=records,
            )
        )
    if request.output:
        kind = "archive" if reference.is_archive(request.output) else "layout"
        artifact = Artifact(kind=kind, ref=str(reference.path_on_disk(request.output)))
        end.insert(0, Save(what=f"write {artifact.ref}", layout=layout, target=artifact.ref))
    load = Load(
        what="load the image into the engine",
        layout=layout,
        cache=str(settings.cache_dir / "layers"),
        profile=profile.name,
        fingerprint=digest,
        names=tags,
        ahead=ahead,
        builder=builder,
        made_by=made_by,
        folder=records,
    )
    return artifact, tuple(end) or (load,)


def _system(
    profile: Profile,
    lock: Lock,
    target: Target,
    base: image_base.Base,
    request: Request,
    labels: Mapping[str, str],
    work: Path,
    build: BuildCommand | None,
) -> System:
    """Return the Dockerfile's stage of system packages, which an engine builds and exports."""
    if build is None or reference.is_on_disk(base.ref):
        raise ToolError(
            f"the system packages of '{profile.name}' run scripts when they are installed: that"
            " requires an engine, and a base image that the engine can use",
            "Start Docker, and name a base image by its reference (--base-image REF).",
        )
    assert target.base is not None, "a target with a base"
    debs = target.of_kind("deb")
    text = _stage(profile, lock, target)
    recipe = hashlib.sha256(text.encode()).hexdigest()
    context, ref, exported = work / "system", f"envbuilder/system:{recipe[:12]}", ""
    command = (*build.argv, "--tag", ref)
    if build.layout_argv:
        # The engine neither compresses the layer, unpacks it, nor sends it as a part of its image.
        ref, exported = "", str(work / "system-exported")
        command = (*build.layout_argv[:-1], build.layout_argv[-1] + exported)
    argv = (
        *command,
        *("--platform", target.platform, "--pull=false"),
        *("--build-arg", f"BASE_IMAGE={base.ref}"),
        *("--build-arg", f"SOURCE_DATE_EPOCH={target.base.epoch}"),
        *("--build-context", f"debs={work / 'debs'}"),
        *(x for k, v in labels.items() for x in ("--label", f"{k}={v}")),
        *(["--no-cache"] if request.rebuild else []),
        str(context),
    )
    steps = (
        LinkFiles(what="check packages", files=debs, folder=str(work / "debs" / "debs")),
        Write(what="write Dockerfile", path=str(context / "Dockerfile"), text=text),
        Run(what="install the system packages", argv=argv),
    )
    return System(recipe=recipe, steps=steps, ref=ref, exported=exported or UNSET)


def _stage(profile: Profile, lock: Lock, target: Target) -> str:
    """Return the Dockerfile up to the stage `system`, which then is its last."""
    urls = render.placeholder_urls(lock)
    dockerfile = next(render.render(profile, lock, "dockerfile", target.python, urls))
    text, marker, _ = dockerfile.content.decode().partition(_AFTER_SYSTEM)
    assert marker, "the Dockerfile's stages are marked"
    return text


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


def prepare(build: Build, target: Target, engine: Engine | None = None) -> Product:
    """Find the base and plan.

    An engine is queried only if it gets the image, has the base or runs scripts. `engine` is that
    engine, if already connected. Raises `ToolError` (exit 4) if something is missing.
    """
    from envbuilder.build.backends.container import DockerEnvironment

    profile, lock, request, settings = build.profile, build.lock, build.request, build.settings
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
    project = project_layer.planned(settings) if request.with_project else None
    planned = plan(profile, lock, target, base, request, settings, machine, command, project)
    if aside or engine is None:
        return Output(target, planned, settings)
    return DockerEnvironment(build, target, planned, engine)
