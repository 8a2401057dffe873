"""The docker backend: choose the builder of an image, and plan the build.

The first builder is the engine's own: Docker's BuildKit, or Buildah if the engine is podman. It
builds the rendered Dockerfile without network access. In a plain `docker build`, the stages
`wheels` and `debs` download files. In this backend, these stages are replaced by folders of hard
links to files in the store. The text of the final stage is the same in both cases.

The second builder, `layers`, assembles the same image. Once an image is in an engine, it no longer
matters which builder made it: `container.py` runs the image. This module is long because both
builders share names, labels and options.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from envbuilder.builds import conventions, project_layer, render
from envbuilder.builds.backends.container import DockerEnvironment
from envbuilder.builds.image import base as image_base
from envbuilder.builds.payload import compiler_sha256, payload_sha256
from envbuilder.builds.plan import (
    Artifact,
    Assemble,
    CopyProject,
    LinkFiles,
    Load,
    MakeBase,
    Plan,
    Push,
    RecordImage,
    Run,
    Save,
    Step,
    System,
    UsedBase,
    Write,
    WritePayload,
    fingerprint,
)
from envbuilder.containers.engine import connection, interface
from envbuilder.containers.engine.interface import BuildCommand, Engine, no_base
from envbuilder.containers.oci import reference
from envbuilder.core import types
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.packages.store import Room, unpacked
from envbuilder.profiles.lock import File, Target, lock_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.builds.request import Locked, Product, Request
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


LAYERS = "layers"
_AFTER_SYSTEM = re.compile(r"^# --- (?:interpreter|wheels)", re.MULTILINE)
"""Matches the start of the Dockerfile's first stage after `system`."""
_FASTER = "builder layers: makes the same image as the Dockerfile, but faster"


def unavailable(profile: Profile, request: Request, settings: Settings) -> str:
    """Return the reason why docker is not the default backend.

    The reason is empty if an engine is running and the base image is available.
    """
    python = request.python or profile.image_python
    if not interface.configured_docker():
        return "no container engine was found"
    base = profile.base.get(python)
    is_made = python in profile.debian_base and not request.base_image
    if base is None and not is_made:
        return f"the profile has no base image for Python {python}"
    try:
        with connection.connect() as engine:
            if base is None or is_made:
                image_base.require_maker()
                return ""
            is_chosen = request.base_image or base.ref in settings.configuration.base_images
            if is_chosen or engine.image(image_base.base_ref(base, request, settings)):
                return ""
    except ToolError as error:
        return error.message
    return f"the base image {base.ref} is not in the engine"


def prepare(build: Locked) -> Product:
    """Choose the builder and plan the image.

    Raise `ToolError` (exit 4) if something that the builder needs is missing.
    """
    target = image_base.target(build.profile, build.lock, build.host, build.request)
    if needs_layers(build.request):
        return prepare_layers(build, target)
    engine = connection.connect()
    reason = ""
    if build.request.builder is None:
        reason = unsuitable(engine.build_command, build.profile, target)
        if not reason:
            return prepare_layers(build, target, engine, _notes(build, _FASTER))
    note = f"builder {engine.build_command.builder}: {reason}" if reason else ""
    return prepare_dockerfile(build, target, engine, _notes(build, note))


def _notes(build: Locked, reason: str) -> tuple[str, ...]:
    """Return a tuple with a note about the choice of builder, or an empty tuple without a `reason`.

    Commands that run something get no note: they rarely build anything, and they print a line of
    their own.
    """
    return (reason,) if reason and not build.running else ()


def needs_layers(request: Request) -> bool:
    """Return whether the request selects the builder `layers` or has options that require it.

    Raise `InvalidError` if the request has such options but selects another builder.
    """
    only = ""
    if request.base_image and reference.is_on_disk(request.base_image):
        only = "a base image on disk"
    elif request.output:
        only = "--output"
    elif request.push:
        only = "--push"
    if only and request.builder not in {None, LAYERS}:
        raise InvalidError(
            f"{only} requires the builder {LAYERS}, not {request.builder}",
            "Remove --builder.",
        )
    return bool(only) or request.builder == LAYERS


# --- the rendered Dockerfile


def _linked(
    target: Target, every: Sequence[File], dockerfile: str, work: Path
) -> dict[str, LinkFiles]:
    """Return the steps that provide the files for the build as hard links in extra build contexts.

    The keys are the names of the contexts.
    """
    built = tuple(file for file in every if file.source in render.MADE)
    groups = {"wheels": ("wheels", tuple(file for file in every if file not in built))}
    if " AS built\n" in dockerfile:
        groups["built"] = ("what was built", built)
    if debs := target.of_kind("deb"):
        groups["debs"] = ("packages", debs)
    if target.of_image:
        groups["interpreter"] = ("the interpreter", (target.of_image,))
    steps: dict[str, LinkFiles] = {}
    for name, (what, files) in groups.items():
        steps[name] = LinkFiles(what=f"check {what}", files=files, folder=str(work / name / name))
    return steps


def plan(
    build: Locked,
    target: Target,
    base: image_base.Base,
    command: BuildCommand,
    project: project_layer.ProjectLayer | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Plan an image that is built from the Dockerfile. This has no side effects."""
    profile = build.profile
    lock = build.lock
    # The stages that download are replaced, so upstream URLs must not affect the fingerprint.
    urls = render.placeholder_urls(lock)
    files = render.render(profile, lock, "dockerfile", target.python, urls, project=project)
    files_of_target = target.fetched(managed=False)
    texts = {file.name: file.content.decode() for file in islice(files, 2 + profile.bytecode)}
    facts = {
        "backend": "docker",
        "builder": command.builder,
        "platform": target.platform,
        "base": base.identity,
        "rendered": texts,
        "files": sorted(f.sha256 for f in files_of_target),
        "payload": payload_sha256(),
        **({"project": project.facts} if project else {}),
    }
    digest = fingerprint(facts)
    locked = lock_digest(lock)
    tags = image_base.names(build, target, digest, project)
    work = build.settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    context = work / "context"
    uv = lock.tool(target.platform)  # runs in the image's build, not on this machine
    every = (*target.of_kind("wheel"), uv)
    linked = _linked(target, every, texts["Dockerfile"], work)
    steps: list[Step] = [
        *base.make,
        *linked.values(),
        *(Write(what=f"write {n}", path=str(context / n), text=t) for n, t in texts.items()),
        WritePayload(what="add the payload", path=str(context / "payload.pyz")),
    ]
    if project:
        folder = str(context / project_layer.CONTEXT / "files")
        steps.append(CopyProject(what="copy the project's files", project=project, folder=folder))
    contexts = []
    for name in linked:
        contexts += ["--build-context", f"{name}={work / name}"]
    # BuildKit takes its timestamps from this argument; Buildah does not know it.
    epoch = target.base.epoch if target.base and command.takes_epoch else None
    steps.append(
        Run(
            what="build the image",
            argv=(
                *command.argv,
                *_first_options(target, base.ref, epoch),
                command.digests_option,
                str(work / "image.json"),
                *contexts,
                *_last_options(build, image_base.labels(profile, digest, locked), tags, context),
            ),
            hints={
                "failed to resolve source metadata": no_base(base.ref),
                "creating build container": no_base(base.ref),
                # Matches the step's output, not its echoed text, which has a variable instead of 3.
                f"Python {target.python} is needed; the base image has 3": (
                    "The base image has another Python version. Name an image with Python"
                    f" {target.python}: ENVBUILDER_BASE_IMAGE=REF"
                ),
                "exec format error": (
                    f"This engine cannot run {target.platform} programs: build on a machine of"
                    " that platform, or install emulation (qemu-user-static with binfmt)."
                ),
                "failed to prepare extraction snapshot": "The engine dropped a layer of an image"
                " that lost its name during the build: run the same command again.",
                "no space left on device": (
                    "The engine's disk is full: `envbuilder clean` removes the images it built,"
                    " and docker (or podman) system df shows what else uses space."
                ),
            },
        )
    )
    # The engine copies the files, installs them, and keeps the result.
    room: tuple[Room, ...] = ()
    if command.storage:
        size = sum(f.room for f in target.files) + unpacked(every)
        room = (Room(folder=command.storage, bytes=size),)
    versions = str(work / "versions")
    steps += [
        Run(what="read the builder's version", argv=command.version_argv, output=versions),
        RecordImage(
            what="record the image",
            profile=profile.name,
            fingerprint=digest,
            builder=command.builder,
            # The engine's version, if its builder is part of it.
            made_by={"docker": command.docker_version} if command.docker_version else {},
            folder=str(build.settings.records_dir / digest),
            metadata=str(work / "image.json"),
            versions=versions,
            names=tags,
        ),
    ]
    return Plan(
        profile=profile.name,
        backend="docker",
        builder=command.builder,
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="image", ref=tags[0]),
        lock=locked,
        base=None if base.make else UsedBase(ref=base.ref, digest=_digest(base.identity)),
        base_check=image_base.python_check(lock, target, base),
        workdir=str(work),
        files=(uv, *(f for f in files_of_target if base.make or not f.role)),
        steps=tuple(steps),
        room=room,
        signatures=build.library.signed,
        notes=notes,
    )


def _digest(identity: str) -> str:
    """Return the digest in `name@digest` or in an engine's image id, or "" for a plain name."""
    match = re.search(r"(?:^|@)(?:sha256:)?([0-9a-f]{64})\Z", identity)
    return f"sha256:{match[1]}" if match else ""


def prepare_dockerfile(
    build: Locked, target: Target, engine: Engine, notes: tuple[str, ...] = ()
) -> DockerEnvironment:
    """Find the base image and plan a build from the Dockerfile.

    Raise `ToolError` (exit 4) if the engine's builder is missing, and `InvalidError` if the
    packages of the base are only unpacked, not installed.
    """
    profile = build.profile
    request = build.request
    settings = build.settings
    assert target.base is not None, "a target with a base"
    engine.require_builder()
    ref = image_base.base_ref(target.base, request, settings)
    base = image_base.Base(ref=ref, identity=ref)
    if target.base.suite and ref == target.base.ref:
        if target.base.unpacked:
            raise InvalidError(
                f"the base of '{profile.name}' for {target.platform} is unpacked without"
                " running package scripts, so a Dockerfile's steps cannot run on it",
                "Use --builder layers, or another base image: ENVBUILDER_BASE_IMAGE=REF.",
            )
        step = image_base.debian_step(target, settings)
        base = image_base.Base(
            ref=ref,
            identity=f"debian:{step.identity}",
            make=(step, image_base.loaded(step, settings)),
        )
        if not request.dry_run:
            image_base.require_maker(step)
    elif not request.dry_run:
        name, identity = image_base.identified(engine, ref, target.platform)
        base = image_base.Base(ref=name, identity=identity)
    project = image_base.project_files(request, settings)
    planned = plan(build, target, base, engine.build_command, project, notes)
    return DockerEnvironment(build, target, planned, engine)


# --- the builder layers: assembles the image, without a daemon, root or emulation


def plan_layers(
    build: Locked,
    target: Target,
    base: image_base.Base,
    machine: types.Platform | None,
    command: BuildCommand | None,
    project: project_layer.ProjectLayer | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Plan an image that the builder `layers` assembles. This has no side effects.

    `machine` is the platform of this machine, on which uv installs the wheels. `command` describes
    the engine's builder, or is None if there is no engine. Raise `ToolError` if packages have
    maintainer scripts but there is no engine to run them.
    """
    from envbuilder.builds.image.layer_cache import FORMAT, SYSTEM_FORMAT
    from envbuilder.containers.oci.layer import compressor

    profile = build.profile
    assert target.base is not None, "a target with a base"
    uv = build.lock.tool(machine)
    wheels = target.of_kind("wheel")
    debs = target.of_kind("deb")
    interpreter = [target.of_image] if target.of_image else []
    variables = conventions.variables(profile)
    variables = project.variables(variables) if project else variables
    made_by = {"layers": str(FORMAT), "uv": uv.version, "zstd": str(compressor()["zstd"])}
    facts = {
        "backend": "docker",
        "builder": LAYERS,
        "platform": target.platform,
        "python": target.python,
        "base": base.identity,
        "epoch": target.base.epoch,
        "variables": variables,
        "files": sorted(f.sha256 for f in (*wheels, *debs, *interpreter)),
        "bytecode": compiler_sha256() if profile.bytecode else "",
        "unpacked": profile.unpack_packages,
        "payload": payload_sha256(),
        "made_by": {**made_by, **compressor()},
        **({"project": project.facts} if project else {}),
    }
    scripts = _runs_scripts(profile, target)
    digest = fingerprint(facts | ({"system": SYSTEM_FORMAT} if scripts else {}))
    tags = image_base.names(build, target, digest, project)
    locked = lock_digest(build.lock)
    labels = image_base.labels(profile, digest, locked)
    work = build.settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    system = None
    if scripts:
        system = _system(build, target, base, labels, work, command)
    compiled = str(work / "unpacked" if build.request.rebuild else build.settings.unpacked_dir)
    cache = str(build.settings.cache_dir / "layers")
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
            unpacked=compiled if profile.bytecode else "",
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
            records=str(build.settings.records_dir / digest),
        ),
    )
    artifact, delivery = _end(build, digest, layout, tags, made_by, ahead)
    return Plan(
        profile=profile.name,
        backend="docker",
        builder=LAYERS,
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=artifact,
        lock=locked,
        base=None
        if base.make
        else UsedBase(ref=base.ref, digest=base.identity if base.identity != base.ref else ""),
        base_check=image_base.python_check(build.lock, target, base) if base.folder else None,
        workdir=str(work),
        files=files,
        steps=(*steps, *delivery),
        room=_room(build, wheels, command),
        signatures=build.library.signed,
        notes=notes,
    )


def _room(build: Locked, wheels: Sequence[File], command: BuildCommand | None) -> tuple[Room, ...]:
    """Return, for each folder, the disk space that the cached layers and the image need.

    The estimate for an engine is higher, because engines store an image both compressed and
    unpacked.
    """
    request = build.request
    packed = sum(f.room for f in wheels)
    rooms = [Room(folder=str(build.settings.cache_dir), bytes=packed)]
    if request.output:
        rooms.append(Room(folder=str(reference.path_on_disk(request.output).parent), bytes=packed))
    elif command and command.storage and not request.push:
        rooms.append(Room(folder=command.storage, bytes=packed + unpacked(wheels)))
    return tuple(rooms)


def _end(
    build: Locked,
    digest: types.Sha256,
    layout: str,
    tags: tuple[str, ...],
    made_by: dict[str, str],
    ahead: str,
) -> tuple[Artifact, tuple[Step, ...]]:
    """Return the artifact, and the steps that save, push or load the image.

    As requested, the image is saved to disk, pushed to a registry, or both. If neither was
    requested, it is loaded into an engine. `ahead` is the temporary name of the preloaded layers,
    or empty if there are none.
    """
    request = build.request
    settings = build.settings
    folder = str(settings.records_dir / digest)
    if not (request.push or request.output):
        load = Load(
            what="load the image into the engine",
            profile=build.profile.name,
            fingerprint=digest,
            builder=LAYERS,
            made_by=made_by,
            folder=folder,
            layout=layout,
            cache=str(settings.cache_dir / "layers"),
            names=tags,
            ahead=ahead,
        )
        return Artifact(kind="image", ref=tags[0]), (load,)
    artifact = Artifact(kind="registry", ref=request.push or "")
    steps: list[Step] = []
    if request.output:
        kind = "archive" if reference.is_archive(request.output) else "layout"
        artifact = Artifact(kind=kind, ref=str(reference.path_on_disk(request.output)))
        steps.append(Save(what=f"write {artifact.ref}", layout=layout, target=artifact.ref))
    if request.push:
        push = Push(
            what=f"push {request.push}",
            profile=build.profile.name,
            fingerprint=digest,
            builder=LAYERS,
            made_by=made_by,
            folder=folder,
            layout=layout,
            ref=request.push,
            plain_http=request.push.partition("/")[0] in settings.configuration.plain_http,
            uploads=str(settings.uploads_dir),
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
    """Describe how an engine builds and exports the Dockerfile stage that installs system packages.

    Raise `ToolError` if there is no engine, or if the base image is on disk.
    """
    if engine is None or reference.is_on_disk(base.ref):
        raise ToolError(
            f"the system packages of '{build.profile.name}' run scripts during installation,"
            " which requires an engine and a base image that the engine can load",
            "Start Docker, and name a base image in a registry (ENVBUILDER_BASE_IMAGE=REF).",
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
        *_first_options(target, base.ref, target.base.epoch),
        "--build-context",
        f"debs={work / 'debs'}",
        *_last_options(build, labels, (), context),
    )
    steps = (
        LinkFiles(what="check packages", files=debs, folder=str(work / "debs" / "debs")),
        Write(what="write Dockerfile", path=str(context / "Dockerfile"), text=text),
        Run(what="install the system packages", argv=argv),
    )
    return System(recipe=recipe, steps=steps, ref=ref, exported=exported or UNSET)


def _first_options(target: Target, base: str, epoch: int | None) -> list[str]:
    """Return the builder's options for the platform, the base image and, if set, the timestamp."""
    options = ["--platform", target.platform, "--pull=false", "--build-arg", f"BASE_IMAGE={base}"]
    if epoch is not None:
        options += ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
    return options


def _last_options(
    build: Locked, labels: Mapping[str, str], tags: Sequence[str], context: Path
) -> list[str]:
    """Return the builder's options for labels, tags and caching, followed by the context folder."""
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
    """Return this machine's platform, or None if it is not supported."""
    machine = os.uname().machine
    if sys.platform == "darwin":
        return "macos/arm64" if machine == "arm64" else None
    return types.container_platform(machine) if sys.platform == "linux" else None


def unsuitable(build: BuildCommand, profile: Profile, target: Target) -> str:
    """Return the reason why `layers` is not the default builder for this engine and profile.

    The reason is empty if `layers` is the default builder.
    """
    if not build.exports_layouts:
        return f"Docker {build.docker_version} cannot export a base image as an OCI layout"
    machine = own_platform()
    if machine is None:
        return "the lock has no uv for this machine"
    if target.platform == machine:
        return ""
    if _runs_scripts(profile, target):
        return f"packages of '{profile.name}' run scripts, which requires {target.platform}"
    return f"compiling modules requires {target.platform}" if profile.bytecode else ""


def _runs_scripts(profile: Profile, target: Target) -> bool:
    # No script can run on a base that is only unpacked.
    unpacks = profile.unpack_packages and not target.system_packages
    return bool(target.of_kind("deb")) and not (unpacks or (target.base and target.base.unpacked))


def prepare_layers(
    build: Locked, target: Target, engine: Engine | None = None, notes: tuple[str, ...] = ()
) -> Product:
    """Find the base image and plan an image that the builder `layers` assembles.

    An engine is used only if the image will be loaded into it, if it has the base image, or if it
    must run maintainer scripts. `engine` is that engine, if it is already connected. `notes` become
    part of the plan. Raise `ToolError` (exit 4) if something is missing.
    """
    request = build.request
    machine = own_platform()
    build.lock.tool(machine)  # fails before an engine is queried
    if build.profile.bytecode and target.platform != machine and not request.dry_run:
        from envbuilder.builds.image.interpreter import HINT

        raise ToolError(f"this machine cannot compile modules for {target.platform}", HINT)
    scripts = _runs_scripts(build.profile, target)
    aside = request.output or request.push
    if engine is None and (not aside or scripts):
        engine = connection.connect()
    if engine and scripts:
        engine.require_builder()
    base = image_base.find(target, engine, request, build.settings, scripts=scripts)
    command = engine.build_command if engine else None
    project = image_base.project_files(request, build.settings)
    planned = plan_layers(build, target, base, machine, command, project, notes)
    if aside or engine is None:
        from envbuilder.builds.outputs import Output

        return Output(target, planned, build.settings)
    return DockerEnvironment(build, target, planned, engine)
