"""The docker backend: the rendered Dockerfile, built from the store, without network.

Docker's BuildKit builds it, or podman's Buildah where podman is the engine. The stages `wheels` and
`debs`, which download in a plain `docker build`, are replaced by folders of hard links into the
store; the final stage is the same text in all cases.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder import console, containers, engine, lockfile, podman, process, render
from envbuilder.backends import devices
from envbuilder.backends.venv import tool
from envbuilder.engine import LABEL
from envbuilder.errors import BuildError, InvalidError, ToolError
from envbuilder.pack import payload_sha256
from envbuilder.plan import (
    Artifact,
    LinkFiles,
    Plan,
    Room,
    Run,
    Step,
    UsedBase,
    Write,
    WritePayload,
    fingerprint,
    unpacked,
)
from envbuilder.verify import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.host import Host
    from envbuilder.lockfile import Lock, LockedBase, Target
    from envbuilder.options import Request
    from envbuilder.profiles import Base, Profile
    from envbuilder.settings import Settings

DATA = "/data"
WORK = "/work"


def base_ref(base: Base | LockedBase, request: Request, settings: Settings) -> str:
    """The base image to use: asked for, configured for this reference, or the locked one."""
    if request.base_image:
        return request.base_image
    configured = settings.configuration.base_images.get(base.ref)
    if configured:
        return configured
    return f"{base.ref}@{base.digest}" if base.digest else base.ref


def unavailable(profile: Profile, python: str, request: Request, settings: Settings) -> str:
    """Why docker is not the default here; empty when an engine and the base image are at hand."""
    if not engine.configured():
        return "no container engine was found"
    base = profile.base.get(python)
    if base is None:
        return f"the profile has no base image for Python {python}"
    ref = base_ref(base, request, settings)
    named = request.base_image or base.ref in settings.configuration.base_images
    try:
        client = engine.connect()
        if named or engine.image(client, ref):
            return ""
    except ToolError as error:
        return error.message
    return f"the base image {base.ref} is not in the engine"


def plan(
    profile: Profile,
    lock: Lock,
    target: Target,
    base: tuple[str, str],
    target_engine: engine.Engine,
    request: Request,
    settings: Settings,
) -> Plan:
    """How to make the image; pure. `base` is the base image's reference and its id."""
    # The stages that download are replaced, so where upstream is must not decide the fingerprint.
    nowhere = {f.source: f"https://{f.source}.invalid" for t in lock.targets for f in t.files}
    files = render.render(profile, lock, "dockerfile", target.python, nowhere)
    texts = {f.name: f.content.decode() for f in files if f.name != "payload.pyz"}
    builder = "buildkit" if target_engine.client == "docker" else "buildah"
    facts = {
        "backend": "docker",
        "builder": builder,
        "platform": target.platform,
        "base": base[1],
        "rendered": texts,
        "files": sorted(f.sha256 for f in target.files),
        "payload": payload_sha256(),
    }
    digest = fingerprint(facts)
    name = f"envbuilder/{profile.name}"
    ref = f"{name}:py{target.python}-{digest[:12]}"
    tags = (ref, f"{name}:latest", *([request.tag] if request.tag else []))
    work = settings.cache_dir / "build" / f"{profile.name}-{digest[:12]}"
    context = work / "context"
    wheels = (*target.of_kind("wheel"), tool(target, "uv"))
    debs = target.of_kind("deb")
    steps: list[Step] = [
        LinkFiles(what="check wheels", files=wheels, folder=str(work / "wheels" / "wheels")),
        *(Write(what=f"write {n}", path=str(context / n), text=t) for n, t in texts.items()),
        WritePayload(what="add the payload", path=str(context / "payload.pyz")),
    ]
    contexts = ["--build-context", f"wheels={work / 'wheels'}"]
    if debs:
        steps.append(
            LinkFiles(what="check packages", files=debs, folder=str(work / "debs" / "debs"))
        )
        contexts += ["--build-context", f"debs={work / 'debs'}"]
    labels = {
        "fingerprint": digest,
        "profile": profile.name,
        "lock": lockfile.lock_digest(lock),
    }
    steps.append(
        Run(
            what="build the image",
            argv=(
                *target_engine.build,
                *("--platform", target.platform, "--pull=false"),
                *("--build-arg", f"BASE_IMAGE={base[0]}"),
                *contexts,
                *(x for k, v in labels.items() for x in ("--label", f"{LABEL}{k}={v}")),
                *(x for t in tags for x in ("--tag", t)),
                *(["--no-cache"] if request.rebuild else []),
                str(context),
            ),
            hints={
                said: engine.no_base(base[0])
                for said in ("failed to resolve source metadata", "creating build container")
            }
            | {
                # What the step prints; its own text, which is printed too, has a variable there.
                f"Python {target.python} is needed; the base image has 3": "The base image has"
                f" another Python. Name one with Python {target.python}: --base-image REF",
                "exec format error": f"This engine cannot run {target.platform} programs: build on"
                " such a machine, or install emulation (qemu-user-static with binfmt).",
                "no space left on device": "The engine's disk is full: envbuilder clean removes"
                " images of ours, docker (or podman) system df shows the rest.",
            },
        )
    )
    return Plan(
        profile=profile.name,
        backend="docker",
        builder=builder,
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="image", ref=ref),
        lock=lockfile.lock_digest(lock),
        base=UsedBase(ref=base[0], digest=_digest(base[1])),
        workdir=str(work),
        files=target.files,
        steps=tuple(steps),
        # The engine copies the files in, installs them, and keeps the result.
        room=tuple(
            Room(folder=folder, bytes=sum(f.size or 0 for f in target.files) + unpacked(wheels))
            for folder in [target_engine.folder]
            if folder
        ),
    )


def _digest(identity: str) -> str:
    """The digest in `name@digest`, or an engine's id; empty where only a name is known."""
    found = re.search(r"(?:^|@)(?:sha256:)?([0-9a-f]{64})\Z", identity)
    return f"sha256:{found[1]}" if found else ""


class DockerEnvironment:
    """A planned image."""

    def __init__(
        self,
        profile: Profile,
        target: Target,
        made: Plan,
        client: Any,
        target_engine: engine.Engine,
        *,
        force: bool,
    ) -> None:
        self.profile, self.target, self.plan = profile, target, made
        self._client, self._engine, self._force = client, target_engine, force

    def existing(self) -> Artifact | None:
        """The image, if an earlier build made exactly this one."""
        found = engine.image(self._client, self.plan.artifact.ref)
        if found is None or found.labels.get(f"{LABEL}fingerprint") != self.plan.fingerprint:
            return None
        return Artifact(kind="image", ref=self.plan.artifact.ref, digest=found.id)

    def run_payload(
        self,
        arguments: Callable[[str], Sequence[str]],
        data: Path,
        on_line: Callable[[str], None],
    ) -> process.Completed:
        """Run the payload in a container without network; the data is mounted read-only."""
        import time

        argv = ["python", "/opt/envbuilder/payload.pyz", *arguments(DATA)]
        if isinstance(self._client, podman.Podman):
            flags = [
                *("--network", "none", "--read-only", "--tmpfs", "/tmp:exec"),  # noqa: S108
                *("--tmpfs", "/home/user:mode=1777", "--mount", devices.bound(str(data), DATA)),
                *devices.cli_options(self._device_options(), self._engine),
            ]
            ref = self.plan.artifact.ref
            return self._client.run(flags, ref, argv, on_line, TIMEOUT_SECONDS)
        options = {
            "image": self.plan.artifact.ref,
            "command": argv,
            "network_mode": "none",
            "read_only": True,
            "tmpfs": {"/tmp": "exec", "/home/user": "uid=1000,gid=1000"},  # noqa: S108
            **devices.sdk_options(self._device_options(), {str(data): DATA}),
        }
        started = time.monotonic()
        code, out, err, expired = containers.run(self._client, options, on_line, TIMEOUT_SECONDS)
        return process.Completed(
            argv=tuple(argv),
            returncode=code,
            stdout=out,
            stderr=err,
            seconds=time.monotonic() - started,
            timed_out=expired,
        )

    def _device_options(self) -> dict[str, Any]:
        options = devices.device_options(self.profile, devices.host_nodes(self.profile))
        if self._force and options["gpus"] and not self._knows_gpus():
            options["gpus"] = ""
        return options

    def _knows_gpus(self) -> bool:
        if self._engine.client == "podman":
            return podman.has_gpu_specification()
        return "nvidia" in (self._client.info().get("Runtimes") or {})

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Become the client's `run` with the working folder mounted, as the calling user."""
        del environ  # a container has its own
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        flags = devices.cli_options(self._device_options(), self._engine)
        if self._engine.rootless:
            flags += ("--userns", "keep-id")  # else the folder's owner is the container's root
        here = str(Path.cwd())
        if "," in here:
            raise InvalidError(f"{here}: a folder with ',' in its name cannot be mounted")
        process.replace(
            [
                # It was built here; an image of that name elsewhere is somebody else's.
                *(*self._engine.command, "run", "--rm", "--pull=never", "--interactive"),
                *(["--tty"] if terminal else []),
                *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
                *("--mount", f"type=bind,source={here},target={WORK}", "--workdir", WORK),
                *flags,
                *(self.plan.artifact.ref, *argv),
            ],
            {},
        )


def prepare(
    profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
) -> DockerEnvironment:
    """Ask the engine, find the base image and plan; `ToolError` (exit 4) where one is missing."""
    platform = "linux/arm64" if host.machine in {"arm64", "aarch64"} else "linux/amd64"
    python = request.python or render.image_python(profile)
    target = lockfile.select(lock, platform, python)
    if target.base is None:
        raise InvalidError(f"the lock of '{profile.name}' has no base image for Python {python}")
    client = engine.connect()
    here = engine.describe(client)
    engine.require_client(here)
    ref = base_ref(target.base, request, settings)
    base = (ref, ref) if request.dry_run else _base(client, here, ref, platform)
    made = plan(profile, lock, target, base, here, request, settings)
    return DockerEnvironment(profile, target, made, client, here, force=request.force)


def _base(client: Any, here: engine.Engine, ref: str, platform: str) -> tuple[str, str]:
    """The base image's reference and what it is: its digest, or its id in the engine.

    A digest says which image it is, wherever that is. A tag only does once the image is here: it
    is pulled first, so that the fingerprint before the build is the one after it.
    """
    found = engine.image(client, ref)
    if here.client == "podman" and found is None:
        named, ref = ref, podman.qualified(ref)
    else:
        named = ref
    if "@" in named:
        return ref, named
    if found is None:
        with console.progress().task(f"pull the base image {ref}"):
            engine.pull(here, ref, platform)
        found = engine.image(client, ref)
        if found is None:
            raise BuildError(f"{ref}: not in the engine after it was pulled", engine.no_base(ref))
    return ref, found.id
