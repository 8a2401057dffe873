"""The docker backend: choose the builder of an image, or build it from the rendered Dockerfile.

The Dockerfile is built without network by Docker's BuildKit, or by podman's Buildah if podman is
the engine. The stages `wheels` and `debs`, which download in a plain `docker build`, are replaced
by folders of hard links into the store; the text of the final stage is always the same.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuilder.builds import project_layer, render
from envbuilder.builds.backends import layers
from envbuilder.builds.backends.container import DockerEnvironment
from envbuilder.builds.image import base as image_base
from envbuilder.builds.payload import payload_sha256
from envbuilder.builds.plan import (
    Artifact,
    CopyProject,
    LinkFiles,
    Plan,
    RecordImage,
    Run,
    Step,
    UsedBase,
    Write,
    WritePayload,
    fingerprint,
)
from envbuilder.containers.engine import connection, interface
from envbuilder.containers.engine.interface import BuildCommand, Engine, no_base
from envbuilder.containers.oci import reference
from envbuilder.core.errors import InvalidError, ToolError
from envbuilder.packages.store import Room, unpacked
from envbuilder.profiles.lock import File, Target, lock_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.builds.request import Locked, Product, Request
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


BUILDER: Final = "buildkit"
_FASTER = "builder layers: it makes the same image as the Dockerfile, but faster"


def unavailable(profile: Profile, request: Request, settings: Settings) -> str:
    """Return why docker is not the default; empty if engine and base image are available."""
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
            named = request.base_image or base.ref in settings.configuration.base_images
            if named or engine.image(image_base.base_ref(base, request, settings)):
                return ""
    except ToolError as error:
        return error.message
    return f"the base image {base.ref} is not in the engine"


def prepare(build: Locked) -> Product:
    """Choose the builder and plan with it; `ToolError` (exit 4) if something is missing."""
    profile = build.profile
    request = build.request
    target = image_base.target(profile, build.lock, build.host, request)
    if needs_layers(request):
        return layers.prepare(build, target)
    engine = connection.connect()
    reason = ""
    if request.builder is None:
        reason = layers.unsuitable(engine.build_command, profile, target)
        if not reason:
            return layers.prepare(build, target, engine, _notes(build, _FASTER))
    note = f"builder {engine.build_command.builder}: {reason}" if reason else ""
    return prepare_dockerfile(build, target, engine, _notes(build, note))


def _notes(build: Locked, reason: str) -> tuple[str, ...]:
    """Return the plan's note on why it has this builder, if there is a reason.

    What runs a command mostly builds nothing, and has its own line to print.
    """
    return (reason,) if reason and not build.running else ()


def needs_layers(request: Request) -> bool:
    """Return whether the request needs or names the builder `layers`.

    Raises `InvalidError` if it needs that builder and names another.
    """
    only = ""
    if request.base_image and reference.is_on_disk(request.base_image):
        only = "a base image on disk"
    elif request.output:
        only = "--output"
    elif request.push:
        only = "--push"
    if only and request.builder not in {None, layers.BUILDER}:
        raise InvalidError(
            f"{only} needs the builder {layers.BUILDER}, not {request.builder}",
            "Leave --builder out.",
        )
    return bool(only) or request.builder == layers.BUILDER


# --- the rendered Dockerfile


def _linked(
    target: Target, every: Sequence[File], dockerfile: str, work: Path
) -> dict[str, LinkFiles]:
    """Return the steps that link files into the build's additional contexts, by context."""
    built = tuple(file for file in every if file.source in render.MADE)
    wheels = tuple(file for file in every if file not in built)
    groups = {"wheels": ("wheels", wheels)}
    if " AS built\n" in dockerfile:
        groups["built"] = ("what was built", built)
    if debs := target.of_kind("deb"):
        groups["debs"] = ("packages", debs)
    if target.of_image:
        groups["interpreter"] = ("the interpreter", (target.of_image,))
    steps: dict[str, LinkFiles] = {}
    for name, (what, files) in groups.items():
        folder = str(work / name / name)
        steps[name] = LinkFiles(what=f"check {what}", files=files, folder=folder)
    return steps


def plan(
    build: Locked,
    target: Target,
    base: image_base.Base,
    command: BuildCommand,
    project: project_layer.ProjectLayer | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of the image; pure."""
    profile = build.profile
    lock = build.lock
    settings = build.settings
    # The stages that download are replaced, so upstream URLs must not affect the fingerprint.
    urls = render.placeholder_urls(lock)
    files = render.render(profile, lock, "dockerfile", target.python, urls, project=project)
    files_of_target = target.fetched(managed=False)
    texts = {file.name: file.content.decode() for file in islice(files, 2)}
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
    work = settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
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
        place = str(context / project_layer.CONTEXT / "files")
        steps.append(CopyProject(what="copy the project's files", project=project, folder=place))
    contexts = []
    for name in linked:
        contexts += ["--build-context", f"{name}={work / name}"]
    # BuildKit takes its timestamps from this argument; Buildah does not know it.
    epoch = target.base.epoch if target.base and command.takes_epoch else None
    labels = image_base.labels(profile, digest, locked)
    steps.append(
        Run(
            what="build the image",
            argv=(
                *command.argv,
                *layers.first_options(target, base.ref, epoch),
                command.digests_option,
                str(work / "image.json"),
                *contexts,
                *layers.last_options(build, labels, tags, context),
            ),
            hints={
                "failed to resolve source metadata": no_base(base.ref),
                "creating build container": no_base(base.ref),
                # Matches the step's output, not its echoed text, which has a variable instead of 3.
                f"Python {target.python} is needed; the base image has 3": "The base image has"
                f" another Python. Name one with Python {target.python}: ENVBUILDER_BASE_IMAGE=REF",
                "exec format error": f"This engine cannot run {target.platform} programs: build on"
                " such a machine, or install emulation (qemu-user-static with binfmt).",
                "failed to prepare extraction snapshot": "The engine dropped a layer of an image"
                " that lost its name during the build: run the same command again.",
                "no space left on device": "The engine's disk is full: `envbuilder clean` removes"
                " the images it built; docker (or podman) system df shows the rest.",
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
            folder=str(settings.records_dir / digest),
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
    """Return the digest in `name@digest` or in an engine's id; empty if only a name is known."""
    match = re.search(r"(?:^|@)(?:sha256:)?([0-9a-f]{64})\Z", identity)
    return f"sha256:{match[1]}" if match else ""


def prepare_dockerfile(
    build: Locked, target: Target, engine: Engine, notes: tuple[str, ...] = ()
) -> DockerEnvironment:
    """Find the base image and plan; `ToolError` (exit 4) if the engine's builder is missing."""
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
                f"the base of '{profile.name}' for {target.platform} is only unpacked: the steps"
                " of a Dockerfile cannot run on it",
                "Use --builder layers, or another base image: ENVBUILDER_BASE_IMAGE=REF.",
            )
        step = image_base.debian_step(target, settings)
        make = (step, image_base.loaded(step, settings))
        base = image_base.Base(ref=ref, identity=f"debian:{step.identity}", make=make)
        if not request.dry_run:
            image_base.require_maker(step)
    elif not request.dry_run:
        name, identity = image_base.identified(engine, ref, target.platform)
        base = image_base.Base(ref=name, identity=identity)
    project = image_base.project_files(request, settings)
    planned = plan(build, target, base, engine.build_command, project, notes)
    return DockerEnvironment(build, target, planned, engine)
