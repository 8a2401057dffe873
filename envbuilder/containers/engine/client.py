"""Container engine access: connect, inspect images, and describe how to build and run.

Docker is reached through its SDK, podman through its client (`podman.py`). Failures of either
become a `ToolError` or `BuildError` that says what to do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from envbuilder.containers.engine import podman
from envbuilder.containers.engine.versions import parsed
from envbuilder.core import process
from envbuilder.core.errors import BuildError, ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

LABEL = "io.envbuilder."
OLDEST = (23, 0)
"""Docker 23 made BuildKit the default builder; `RUN --network` and `--build-context` need it."""
OLDEST_BUILDX = (0, 10)
_SOCKET = "/var/run/docker.sock"
_NO_NAME = "<none>:<none>"
_SECONDS = 60
_REMOVAL_SECONDS = 600
"""Docker's containerd store waits for running builds and cleans up before it answers."""
_CLIENT_HINT = (
    "Install the docker client with its buildx plugin (packages docker-cli and docker-buildx, or"
    " docker-buildx-plugin), or use --backend venv."
)


class Image(Struct, frozen=True, kw_only=True):
    """An image in the engine."""

    id: str
    """sha256 of its configuration or manifest, whichever the engine uses."""
    tags: tuple[str, ...]
    labels: dict[str, str]


class Engine(Struct, frozen=True, kw_only=True):
    """How a plan reaches an engine and builds with it."""

    client: Literal["docker", "podman"]
    command: tuple[str, ...]
    """The client's command line, pointed at this engine."""
    build: tuple[str, ...]
    """The build command, up to the options that do not depend on the engine."""
    tells: str
    """The option that names the file to which the digests of the built image are written."""
    version: str = ""
    """The engine's own version; Docker's builder is part of the engine."""
    versions: tuple[str, ...]
    """The command that reports the builder's version."""
    rootless: bool = False
    folder: str = ""
    """Where it stores images, if that is known and on this machine; else empty."""
    keeps_blobs: bool = False
    """Whether it stores layers as received, so that layers it has need not be sent again."""


class _Place(Struct, frozen=True, kw_only=True):
    """An engine's endpoint, and what points the docker client at it."""

    url: str | None
    tls: Any = None
    builder: str = "default"
    flags: tuple[str, ...] = ()
    named: bool = True


def describe(client: Any) -> Engine:
    """Return how to build and run with this engine.

    With Docker's containerd store, layers are written as zstd directly: measured, that is 2 to 3
    times faster than gzip, and smaller. The classic store accepts only what `--load` sends.
    """
    if isinstance(client, podman.Podman):
        # One layer for the whole final stage; SELinux labels would deny access to mounted folders.
        flags = ("build", "--layers=false", "--security-opt", "label=disable")
        return Engine(
            client="podman",
            command=client.command,
            build=(*client.command, *flags),
            tells="--iidfile",
            versions=(*client.command, "info"),
            rootless=client.rootless,
        )
    place = _place()
    info = client.info()
    status = info.get("DriverStatus") or ()
    local = (place.url or "").startswith("unix://")
    containerd = any("containerd.snapshotter" in str(value) for _, value in status)
    output = "type=image,oci-mediatypes=true,compression=zstd" if containerd else "type=docker"
    command = ("docker", *place.flags)
    return Engine(
        client="docker",
        command=command,
        build=(
            *(*command, "buildx", "build", "--progress", "plain"),
            *("--builder", place.builder, "--output", output),
            *("--provenance=false", "--sbom=false"),
        ),
        versions=(*command, "buildx", "inspect", place.builder),
        tells="--metadata-file",
        version=str(info.get("ServerVersion") or ""),
        folder=str(info.get("DockerRootDir") or "") if local else "",
        keeps_blobs=containerd,
    )


def configured() -> bool:
    """Return whether anything suggests an engine: a variable, a context, a socket or podman."""
    context = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "contexts" / "meta"
    return (
        bool(os.environ.get("DOCKER_HOST"))
        or context.is_dir()
        or any(Path(s).exists() for s in (_SOCKET, _rootless()))
        or process.which("podman") is not None
    )


def connect() -> Any:
    """Return a client of an engine that answers and is recent enough.

    Raise `ToolError` (exit 4) if there is none. The client is a `docker.DockerClient`, or a
    `podman.Podman` if podman is what answers. Podman is also used if it is installed, no engine is
    configured explicitly, and Docker's socket or client is missing or this user may not open the
    socket.
    """
    place = _place()
    useless = not _may_open(place.url) or process.which("docker") is None
    if useless and not place.named and process.which("podman") is not None:
        return podman.connect(None)

    socket = (place.url or "").removeprefix("unix://")
    if socket.startswith("/") and not Path(socket).exists():  # the SDK would leak a socket
        raise _no_answer("no such file or directory")

    import docker
    from docker.errors import DockerException
    from requests import RequestException

    options = {"tls": place.tls} if place.tls else {}
    try:
        client = docker.DockerClient(
            base_url=place.url, version="auto", timeout=_SECONDS, **options
        )
        version = client.version()
    except (DockerException, RequestException, OSError, ValueError) as error:
        raise _no_answer(short(error)) from error
    if _name(version) == "podman":
        return podman.connect(place.url)
    if parsed(str(version.get("Version", ""))) < OLDEST:
        raise ToolError(
            f"Docker {version.get('Version')} is too old: {OLDEST[0]} or newer is needed",
            "Update Docker, or use --backend venv.",
        )
    return client


def _no_answer(reason: str) -> ToolError:
    return ToolError(
        f"no container engine answers: {reason}",
        "Start Docker (or install podman), check DOCKER_HOST and your rights on the socket,"
        " or use --backend venv, which needs none.",
    )


def _may_open(url: str | None) -> bool:
    """Return whether this user may open the endpoint; only Unix sockets are checked."""
    path = (url or "").removeprefix("unix://")
    return bool(url) and (path == url or os.access(path, os.R_OK | os.W_OK))


def _place() -> _Place:
    """Return the endpoint that the docker client uses: DOCKER_HOST, the context, or a socket."""
    import docker.utils

    if os.environ.get("DOCKER_HOST"):
        found = docker.utils.kwargs_from_env()
        return _Place(url=found["base_url"], tls=found.get("tls"))
    context = _context()
    if context is not None:
        return _Place(url=str(context.Host), tls=context.TLSConfig, builder=context.name)
    if Path(_SOCKET).exists():
        return _Place(url=f"unix://{_SOCKET}", named=False)
    if _rootless().exists():
        url = f"unix://{_rootless()}"
        return _Place(url=url, flags=("--host", url), named=False)
    return _Place(url=None, named=False)


def _context() -> Any:
    """Return the configured docker context, or None; raise `ToolError` if it cannot be read."""
    from docker.context import ContextAPI

    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context: Any = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises bare exceptions
        raise ToolError(f"the docker context cannot be read: {short(error)}") from error
    if context is None and name:
        raise ToolError(f"there is no docker context '{name}'", "See: docker context ls")
    return context if context is not None and context.Host and context.name != "default" else None


def _rootless() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "docker.sock"


def require_client(found: Engine) -> None:
    """Raise `ToolError` (exit 4) if the docker client or a recent enough buildx is missing."""
    if found.client == "podman":
        return  # its client has answered already
    if process.which("docker") is None:
        raise ToolError("the docker client is not on PATH", _CLIENT_HINT)
    done = process.run(["docker", "buildx", "version"], timeout=_SECONDS)
    if done.returncode != 0:
        raise ToolError("the docker client has no buildx plugin", _CLIENT_HINT)
    words = done.stdout.split()
    text = next((w for w in words if w[:1] in "v0123456789" and "." in w), "")
    if parsed(text.lstrip("v")) < OLDEST_BUILDX:
        raise ToolError(
            f"buildx {text or '(unknown)'} is too old: 0.10 or newer is needed", _CLIENT_HINT
        )


def _name(version: dict[str, Any]) -> str:
    components = [str(c.get("Name", "")) for c in version.get("Components") or ()]
    return "podman" if any("podman" in c.lower() for c in components) else "docker"


def short(error: Exception) -> str:
    """Return an engine's failure in a few words."""
    text = str(error)
    for known in ("Permission denied", "No such file or directory", "Connection refused"):
        if known in text:
            return known.lower()
    return text.partition("\n")[0][:200] if text else type(error).__name__


def image(client: Any, ref: str) -> Image | None:
    """Return an image by tag or id, or None."""
    from docker.errors import ImageNotFound, NotFound

    if isinstance(client, podman.Podman):
        data = client.image(ref)
        if data is None:
            return None
        return Image(
            id=f"sha256:{data['Id'].removeprefix('sha256:')}",
            tags=tuple(data.get("RepoTags") or ()),
            labels=data.get("Labels") or {},
        )
    try:
        found = client.images.get(ref)
    except (ImageNotFound, NotFound):
        return None
    labels = {str(k): str(v) for k, v in (found.labels or {}).items()}
    return Image(id=found.id, tags=tuple(found.tags), labels=labels)


def variables(client: Any, ref: str) -> tuple[str, ...]:
    """Return an image's own environment variables as `NAME=VALUE`; empty if the image is gone."""
    from docker.errors import ImageNotFound, NotFound

    try:
        is_podman = isinstance(client, podman.Podman)
        data = (client.image(ref) if is_podman else client.images.get(ref).attrs) or {}
    except (ImageNotFound, NotFound):
        return ()
    return tuple(str(pair) for pair in (data.get("Config") or {}).get("Env") or ())


def pull(found: Engine, ref: str, platform: str) -> None:
    """Pull an image; raise `BuildError` if that fails."""
    done = process.run([*found.command, "pull", "--quiet", "--platform", platform, ref])
    if done.returncode != 0:
        raise BuildError(f"{ref}: cannot be pulled: {done.last_words}", no_base(ref))


def no_base(ref: str) -> str:
    """Return a hint for a base image that cannot be obtained."""
    return (
        f"The base image {ref} is not in the engine and cannot be pulled. Name another with"
        " --base-image REF, or set a mirror in envbuilder.yaml (base_images:)."
    )


def labelled(client: Any) -> tuple[Image, ...]:
    """Return the images that carry envbuilder's label, including those that inherited it."""
    from docker.errors import APIError
    from requests import RequestException

    label = f"{LABEL}fingerprint"
    if isinstance(client, podman.Podman):
        listed = client.labelled(label)
    else:
        try:
            listed = client.api.images(filters={"label": [label]})
        except (APIError, RequestException) as error:
            raise ToolError(f"the engine cannot list its images: {short(error)}") from error
    images = {
        f"sha256:{i['Id'].removeprefix('sha256:')}": Image(
            id=f"sha256:{i['Id'].removeprefix('sha256:')}",
            tags=tuple(t for t in i.get("RepoTags") or i.get("Names") or () if t != _NO_NAME),
            labels={str(k): str(v) for k, v in (i.get("Labels") or {}).items()},
        )
        for i in listed
    }
    return tuple(images[key] for key in sorted(images))


def last_step(client: Any, found: Image) -> str:
    """Return the command of the last step in an image's history; empty if unknown."""
    from docker.errors import APIError
    from requests import RequestException

    if isinstance(client, podman.Podman):
        history = (client.image(found.id) or {}).get("History") or [{}]
        return str(history[-1].get("created_by") or "")
    try:
        history = client.api.history(found.id)
    except (APIError, RequestException):
        return ""
    return str(history[0].get("CreatedBy") or "") if history else ""


def forget(ref: str) -> None:
    """Remove a tag if the engine has it; raise `BuildError` if it cannot be removed."""
    if image(connect(), ref) is not None:
        remove_images([ref])


def remove_images(refs: Sequence[str], only: str = "") -> None:
    """Remove images by tag.

    Raise `BuildError` if one is in use, if the engine fails or, with `only`, if a tag no longer
    names the image with that id.

    Parent images stay: they are not envbuilder's to remove. Also, if a tag was once given to a
    `docker commit` of the image it names now, Docker 26.1 (containerd store) takes the image for
    its own parent and follows that chain forever.
    """
    from docker.errors import APIError
    from requests import RequestException

    client = connect()
    if not isinstance(client, podman.Podman):
        client.api.timeout = _REMOVAL_SECONDS
    for ref in refs:
        if only and ((there := image(client, ref)) is None or there.id != only):
            raise BuildError(f"{ref}: names another image by now, or none", "Run it again.")
        if isinstance(client, podman.Podman):
            client.remove(ref)
            continue
        try:
            client.images.remove(ref, noprune=True)
        except APIError as error:
            raise BuildError(
                f"{ref}: cannot be removed: {error.explanation}",
                "Stop the containers that use it, then try again.",
            ) from error
        except RequestException as error:
            raise BuildError(
                f"{ref}: cannot be removed: {short(error)}", "Try again: envbuilder clean"
            ) from error
