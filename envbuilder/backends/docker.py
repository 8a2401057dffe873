"""The docker backend: the rendered Dockerfile, built by BuildKit from the store, without network.

The stages `wheels` and `debs`, which download in a plain `docker build`, are replaced by folders of
hard links into the store; the final stage is the same text in both cases.
"""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder import engine, lockfile, process, render
from envbuilder.backends.venv import tool
from envbuilder.engine import LABEL
from envbuilder.errors import InvalidError, ToolError
from envbuilder.pack import payload_sha256
from envbuilder.plan import (
    Artifact,
    LinkFiles,
    Plan,
    Run,
    Step,
    Write,
    WritePayload,
    fingerprint,
)
from envbuilder.verify import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from envbuilder.host import Host
    from envbuilder.lockfile import Lock, LockedBase, Target
    from envbuilder.options import Request
    from envbuilder.profiles import Profile
    from envbuilder.settings import Settings

OLDEST_BUILDX = (0, 10)
DATA = "/data"
WORK = "/work"


def base_ref(base: LockedBase, request: Request, settings: Settings) -> str:
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
    try:
        client = engine.connect()
    except ToolError as error:
        return error.message
    ref = base_ref(_as_locked(base), request, settings)
    if request.base_image or base.ref in settings.configuration.base_images:
        return ""
    return "" if engine.image(client, ref) else f"the base image {base.ref} is not in the engine"


def _as_locked(base: Any) -> LockedBase:
    return lockfile.LockedBase(
        ref=base.ref,
        digest=base.digest,
        date=base.date,
        python_path=base.python_path,
        python_version=base.python_version,
    )


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
    facts = {
        "backend": "docker",
        "builder": "buildkit",
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
                *("docker", "buildx", "build", "--progress", "plain"),
                *("--builder", target_engine.builder, "--output", target_engine.output),
                *("--platform", target.platform, "--pull=false"),
                *("--provenance=false", "--sbom=false"),
                *("--build-arg", f"BASE_IMAGE={base[0]}"),
                *contexts,
                *(x for k, v in labels.items() for x in ("--label", f"{LABEL}{k}={v}")),
                *(x for t in tags for x in ("--tag", t)),
                *(["--no-cache"] if request.rebuild else []),
                str(context),
            ),
            hints={
                "failed to resolve source metadata": f"The base image {base[0]} is not in the"
                " engine and cannot be pulled. Name another with --base-image REF, or set a mirror"
                " in envbuilder.yaml (base_images:).",
                "no space left on device": "The engine's disk is full: envbuilder clean removes"
                " images of ours, docker system df shows the rest.",
            },
        )
    )
    return Plan(
        profile=profile.name,
        backend="docker",
        builder="buildkit",
        platform=target.platform,
        python=target.python,
        fingerprint=digest,
        artifact=Artifact(kind="image", ref=ref),
        workdir=str(work),
        files=target.files,
        steps=tuple(steps),
    )


class DockerEnvironment:
    """A planned image."""

    def __init__(
        self, profile: Profile, target: Target, made: Plan, client: Any, *, force: bool
    ) -> None:
        self.profile, self.target, self.plan = profile, target, made
        self._client, self._force = client, force

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
        options = {
            "image": self.plan.artifact.ref,
            "command": argv,
            "network_mode": "none",
            "read_only": True,
            "tmpfs": {"/tmp": "exec", "/home/user": "uid=1000,gid=1000"},  # noqa: S108
            **sdk_options(self._device_options(), {str(data): DATA}),
        }
        started = time.monotonic()
        code, out, err, expired = engine.run(self._client, options, on_line, TIMEOUT_SECONDS)
        return process.Completed(
            argv=tuple(argv),
            returncode=code,
            stdout=out,
            stderr=err,
            seconds=time.monotonic() - started,
            timed_out=expired,
        )

    def _device_options(self) -> dict[str, Any]:
        options = device_options(self.profile, _host_nodes(self.profile))
        if self._force:
            runtimes = self._client.info().get("Runtimes") or {}
            if options["gpus"] and "nvidia" not in runtimes:
                options["gpus"] = ""
        return options

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Become `docker run` with the working folder mounted, as the calling user."""
        del environ  # a container has its own
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        flags = cli_options(self._device_options())
        here = str(Path.cwd())
        if "," in here:
            raise InvalidError(f"{here}: a folder with ',' in its name cannot be mounted")
        process.replace(
            [
                *("docker", "run", "--rm", "--interactive", *(["--tty"] if terminal else [])),
                *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
                *("--mount", f"type=bind,source={here},target={WORK}", "--workdir", WORK),
                *flags,
                *(self.plan.artifact.ref, *argv),
            ],
            {},
        )


def _host_nodes(profile: Profile) -> dict[str, int]:
    """Device nodes, folders and groups of the host that the profile's flags depend on."""
    found = {}
    paths = [*profile.run.devices, *profile.run.volumes]
    for pattern in profile.run.groups_of:
        paths += glob.glob(pattern)  # noqa: PTH207 (an absolute pattern)
    for path in paths:
        if Path(path).exists():
            found[path] = Path(path).stat().st_gid
    return found


def device_options(profile: Profile, nodes: Mapping[str, int]) -> dict[str, Any]:
    """What a container needs to reach the device; `nodes`: existing paths → their group ids."""
    run = profile.run
    groups = {gid for path, gid in nodes.items() if path not in (*run.devices, *run.volumes)}
    return {
        "gpus": run.gpus,
        "devices": [d for d in run.devices if d in nodes],
        "groups": sorted(groups),
        "volumes": [v for v in run.volumes if v in nodes],
        "shm_size": run.shm_size,
    }


def sdk_options(options: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Device options as the docker SDK takes them, with further folders mounted read-only."""
    import docker.types

    # Mounts, not volumes: a volume whose source is missing would be made on the host, as root.
    sources = {**folders, **{v: v for v in options["volumes"]}}
    made: dict[str, Any] = {
        "shm_size": options["shm_size"],
        "mounts": [
            docker.types.Mount(target, source, type="bind", read_only=True)
            for source, target in sources.items()
        ],
    }
    if options["gpus"]:
        made["device_requests"] = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    if options["devices"]:
        made["devices"] = [f"{d}:{d}:rwm" for d in options["devices"]]
    if options["groups"]:
        made["group_add"] = [str(g) for g in options["groups"]]
    return made


def cli_options(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Device options as `docker run` takes them."""
    flags = ["--shm-size", options["shm_size"]]
    if options["gpus"]:
        flags += ["--gpus", options["gpus"]]
    for device in options["devices"]:
        flags += ["--device", device]
    for group in options["groups"]:
        flags += ["--group-add", str(group)]
    for volume in options["volumes"]:
        flags += ["--mount", f"type=bind,source={volume},target={volume},readonly"]
    return tuple(flags)


def require_buildx() -> None:
    """`ToolError` (exit 4) when the docker client or a new enough buildx is missing."""
    hint = (
        "Install the docker client with its buildx plugin (packages docker-cli and docker-buildx,"
        " or docker-buildx-plugin), or use --backend venv."
    )
    if process.which("docker") is None:
        raise ToolError("the docker client is not on PATH", hint)
    done = process.run(["docker", "buildx", "version"], timeout=60)
    if done.returncode != 0:
        raise ToolError("the docker client has no buildx plugin", hint)
    words = done.stdout.split()
    text = next((w for w in words if w[:1] in "v0123456789" and "." in w), "")
    numbers = tuple(int(n) for n in text.lstrip("v").split("+")[0].split(".")[:2] if n.isdigit())
    if numbers < OLDEST_BUILDX:
        raise ToolError(f"buildx {text or '(unknown)'} is too old: 0.10 or newer is needed", hint)


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
    require_buildx()
    ref = base_ref(target.base, request, settings)
    # A digest says which image it is, wherever that is; a tag only does for an image that is here.
    found = None if "@" in ref else engine.image(client, ref)
    identity = found.id if found else ref
    made = plan(profile, lock, target, (ref, identity), engine.describe(client), request, settings)
    return DockerEnvironment(profile, target, made, client, force=request.force)
