"""Build an image from the rendered Dockerfile with the engine's own builder, without network.

Docker's BuildKit builds it, or podman's Buildah if podman is the engine. The stages `wheels` and
`debs`, which download in a plain `docker build`, are replaced by folders of hard links into the
store; the text of the final stage is always the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from envbuilder.build import project_layer, render
from envbuilder.build.backends import base_python, layers
from envbuilder.build.image import base as image_base
from envbuilder.build.payload import payload_sha256
from envbuilder.build.plan import (
    Artifact,
    CopyProject,
    LinkFiles,
    Plan,
    Receive,
    RecordImage,
    Run,
    Step,
    UsedBase,
    Write,
    WritePayload,
    fingerprint,
)
from envbuilder.containers.engine.interface import no_base
from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.packages.space import Room, unpacked
from envbuilder.profiles.lock import lock_digest

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.backends.container import DockerEnvironment
    from envbuilder.build.plan import MakeBase
    from envbuilder.build.project_layer import ProjectLayer
    from envbuilder.build.request import Build, Request
    from envbuilder.containers.engine.interface import BuildCommand, Engine
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile


_BASE = "envbuilder-base"
"""What the Dockerfile calls a base that buildx sends to an instance."""
_EXPORT = "type=oci,tar=false,oci-mediatypes=true,compression=zstd"


class Instance(Struct, frozen=True, kw_only=True):
    """A buildx instance that builds in place of the engine, and the base that is sent to it."""

    name: types.Instance
    base: str
    """Folder of the base's layout; empty in a dry run that has none."""
    base_digest: str
    made_by: dict[str, str]


def plan(
    profile: Profile,
    lock: Lock,
    target: Target,
    base: tuple[str, str],
    build: BuildCommand,
    request: Request,
    settings: Settings,
    made_base: MakeBase | None = None,
    project: ProjectLayer | None = None,
    instance: Instance | None = None,
) -> Plan:
    """Return the plan of the image; pure. `base` is the base image's reference and its id.

    `made_base` is the step that makes the base, if it is not a published image. `instance` is the
    buildx instance that builds, if the engine does not.
    """
    # The stages that download are replaced, so upstream URLs must not affect the fingerprint.
    urls = render.placeholder_urls(lock)
    files = render.render(profile, lock, "dockerfile", target.python, urls, project=project)
    texts = {
        f.name: f.content.decode() for f in files if f.name in {"Dockerfile", "requirements.txt"}
    }
    facts = {
        "backend": "docker",
        "builder": build.builder,
        "platform": target.platform,
        "base": base[1],
        "rendered": texts,
        "files": sorted(f.sha256 for f in target.files),
        "payload": payload_sha256(),
        **({"project": project.facts} if project else {}),
    }
    digest = fingerprint(facts)
    locked = lock_digest(lock)
    tags = image_base.names(
        *(profile, target, digest, request, settings),
        newest=project_layer.NEWEST if project else image_base.LATEST,
    )
    work = settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    context = work / "context"
    uv = lock.tool(target.platform)  # runs in the image's build, not on this machine
    wheels = (*target.of_kind("wheel"), uv)
    debs = target.of_kind("deb")
    steps: list[Step] = [
        *((made_base, image_base.loaded(made_base, settings)) if made_base else ()),
        LinkFiles(what="check wheels", files=wheels, folder=str(work / "wheels" / "wheels")),
        *(Write(what=f"write {n}", path=str(context / n), text=t) for n, t in texts.items()),
        WritePayload(what="add the payload", path=str(context / "payload.pyz")),
    ]
    if project:
        place = str(context / project_layer.CONTEXT / "files")
        steps.append(CopyProject(what="copy the project's files", project=project, folder=place))
    contexts = ["--build-context", f"wheels={work / 'wheels'}"]
    if debs:
        steps.append(
            LinkFiles(what="check packages", files=debs, folder=str(work / "debs" / "debs"))
        )
        contexts += ["--build-context", f"debs={work / 'debs'}"]
    exported, layout = work / "exported", work / "layout"
    if instance:
        at = f"@{instance.base_digest}" if instance.base_digest else ""
        contexts += ["--build-context", f"{_BASE}=oci-layout://{instance.base}{at}"]
        contexts += ["--output", f"{_EXPORT},dest={exported}"]
    # BuildKit takes its timestamps from this argument; Buildah does not know it.
    epoch = target.base.epoch if target.base and build.takes_epoch else None
    labels = image_base.labels(profile, digest, locked)
    steps.append(
        Run(
            what="build the image",
            argv=(
                *build.argv,
                *("--platform", target.platform, "--pull=false"),
                *("--build-arg", f"BASE_IMAGE={_BASE if instance else base[0]}"),
                *(("--build-arg", f"SOURCE_DATE_EPOCH={epoch}") if epoch is not None else ()),
                *(build.digests_option, str(work / "image.json")),
                *contexts,
                *(x for k, v in labels.items() for x in ("--label", f"{k}={v}")),
                *(x for t in tags for x in ("--tag", t)),
                *(["--no-cache"] if request.rebuild else []),
                str(context),
            ),
            hints={
                text: no_base(base[0])
                for text in ("failed to resolve source metadata", "creating build container")
            }
            | {
                # Matches the step's output, not its echoed text, which has a variable instead of 3.
                f"Python {target.python} is needed; the base image has 3": "The base image has"
                f" another Python. Name one with Python {target.python}: --base-image REF",
                "exec format error": f"This engine cannot run {target.platform} programs: build on"
                " such a machine, or install emulation (qemu-user-static with binfmt).",
                "failed to prepare extraction snapshot": "The engine dropped a layer of an image"
                " that lost its name during the build: run the same command again.",
                "no space left on device": "The engine's disk is full: envbuilder clean removes"
                " the images it built; docker (or podman) system df shows the rest.",
            },
        )
    )
    artifact = Artifact(kind="image", ref=tags[0])
    if instance:
        artifact, end = layers.end(
            *(profile, digest, str(layout), tags, "", build.builder, instance.made_by),
            *(request, settings),
        )
        receive = Receive(
            what="check the image",
            exported=str(exported),
            layout=str(layout),
            platform=target.platform,
            fingerprint=digest,
            instance=instance.name,
            names=tags,
        )
        steps += [receive, *end]
    else:
        steps += _recorded(profile, digest, tags, build, work, settings)
    return Plan(
        profile=profile.name,
        backend="docker",
        builder=build.builder,
        instance=instance.name if instance else UNSET,
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=artifact,
        lock=locked,
        base=None if made_base else UsedBase(ref=base[0], digest=_digest(base[1])),
        base_check=None
        if made_base
        else base_python.check(lock, target, base[0], instance.base if instance else ""),
        workdir=str(work),
        files=(uv, *(f for f in target.files if made_base or not f.role)),
        steps=tuple(steps),
        # The engine copies the files, installs them, and keeps the result.
        room=tuple(
            Room(folder=folder, bytes=sum(f.room for f in target.files) + unpacked(wheels))
            for folder in [build.storage]
            if folder
        ),
    )


def _recorded(
    profile: Profile,
    digest: types.Sha256,
    tags: tuple[str, ...],
    build: BuildCommand,
    work: Path,
    settings: Settings,
) -> tuple[Step, ...]:
    """Return the steps that record what the engine built."""
    metadata, versions = str(work / "image.json"), str(work / "versions")
    return (
        Run(what="read the builder's version", argv=build.version_argv, output=versions),
        RecordImage(
            what="record the image",
            profile=profile.name,
            fingerprint=digest,
            ref=tags[0],
            builder=build.builder,
            metadata=metadata,
            engine={"docker": build.docker_version} if build.docker_version else {},
            versions=versions,
            folder=str(settings.records_dir / digest),
            names=tags,
        ),
    )


def _digest(identity: str) -> str:
    """Return the digest in `name@digest` or in an engine's id; empty if only a name is known."""
    match = re.search(r"(?:^|@)(?:sha256:)?([0-9a-f]{64})\Z", identity)
    return f"sha256:{match[1]}" if match else ""


def prepare(build: Build, target: Target, engine: Engine) -> DockerEnvironment:
    """Find the base image and plan; `ToolError` (exit 4) if the engine's builder is missing."""
    from envbuilder.build.backends.container import DockerEnvironment
    from envbuilder.build.image import debian_base

    profile, lock, request, settings = build.profile, build.lock, build.request, build.settings
    assert target.base is not None, "a target with a base"
    engine.require_builder()
    ref = image_base.base_ref(target.base, request, settings)
    make_base = None
    if target.base.suite and ref == target.base.ref:
        if target.base.unpacked:
            raise InvalidError(
                f"the base of '{profile.name}' for {target.platform} is only unpacked: the steps"
                " of a Dockerfile cannot run on it",
                "Use --builder layers, or another base image: --base-image REF.",
            )
        make_base = debian_base.step(target, settings)
        base = (ref, f"debian:{make_base.identity}")
        if not request.dry_run:
            debian_base.require_tool(make_base)
    else:
        base = (ref, ref)
        if not request.dry_run:
            base = image_base.identified(engine, ref, target.platform)
    project = project_layer.planned(settings) if request.with_project else None
    planned = plan(
        *(profile, lock, target, base, engine.build_command, request, settings, make_base, project)
    )
    return DockerEnvironment(build, target, planned, engine)
