"""The container engine, through the docker SDK: is it there, what does it hold, run something.

Works with Docker and with podman's Docker-compatible socket. Every failure of the SDK becomes a
`ToolError` that says what to do.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.errors import BuildError, ToolError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LABEL = "io.envbuilder."
OLDEST = (23, 0)
"""Docker 23 made BuildKit the default builder; `RUN --network` and `--build-context` need it."""
_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_SECONDS = 60


class Image(Struct, frozen=True, kw_only=True):
    """An image in the engine."""

    id: str
    """sha256 of its configuration or manifest, as the engine names it."""
    tags: tuple[str, ...]
    labels: dict[str, str]


class Engine(Struct, frozen=True, kw_only=True):
    """What a build needs to know of an engine: buildx's name for it, and how it takes an image."""

    builder: str
    output: str


def describe(client: Any) -> Engine:
    """The engine's own builder, and the fastest output that its image store takes.

    With the containerd store, layers go in as zstd at once; measured, that is 2 to 3 times faster
    than gzip and smaller. The classic store only takes what `--load` sends.
    """
    from docker.context import ContextAPI

    context = None if os.environ.get("DOCKER_HOST") else ContextAPI.get_current_context()
    status = client.info().get("DriverStatus") or ()
    containerd = any("containerd.snapshotter" in str(value) for _, value in status)
    return Engine(
        builder=context.name if context is not None else "default",
        output="type=image,oci-mediatypes=true,compression=zstd" if containerd else "type=docker",
    )


def configured() -> bool:
    """Whether anything suggests an engine: a variable, a context or a socket."""
    context = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "contexts" / "meta"
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"))
    sockets = (*_SOCKETS, rootless / "docker.sock", rootless / "podman/podman.sock")
    return (
        bool(os.environ.get("DOCKER_HOST"))
        or context.is_dir()
        or any(Path(s).exists() for s in sockets)
    )


def connect() -> Any:
    """A client of an engine that answers and is new enough; `ToolError` (exit 4) otherwise."""
    import docker
    from docker.errors import DockerException
    from requests import RequestException

    try:
        client = docker.DockerClient(base_url=endpoint(), version="auto", timeout=_SECONDS)
        version = client.version()
    except (DockerException, RequestException, OSError, ValueError) as error:
        raise ToolError(
            f"no container engine answers: {_short(error)}",
            "Start Docker (or podman's socket), check DOCKER_HOST and your rights on the socket,"
            " or use --backend venv, which needs none.",
        ) from error
    name = _name(version)
    if name == "docker" and _parsed(str(version.get("Version", ""))) < OLDEST:
        raise ToolError(
            f"Docker {version.get('Version')} is too old: {OLDEST[0]} or newer is needed",
            "Update Docker, or use --backend venv.",
        )
    return client


def endpoint() -> str | None:
    """Where the engine listens: DOCKER_HOST, the current docker context, or a known socket."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    from docker.context import ContextAPI

    context = ContextAPI.get_current_context()
    if context is not None and context.Host and context.name != "default":
        return str(context.Host)
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"))
    for socket in (*_SOCKETS, rootless / "docker.sock", rootless / "podman/podman.sock"):
        if Path(socket).exists():
            return f"unix://{socket}"
    return None


def _name(version: dict[str, Any]) -> str:
    components = [str(c.get("Name", "")) for c in version.get("Components") or ()]
    return "podman" if any("podman" in c.lower() for c in components) else "docker"


def _parsed(text: str) -> tuple[int, int]:
    numbers = [int(n) for n in re.split(r"[-+]", text, maxsplit=1)[0].split(".")[:2] if n.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def _short(error: Exception) -> str:
    text = str(error)
    for known in ("Permission denied", "No such file or directory", "Connection refused"):
        if known in text:
            return known.lower()
    return text.partition("\n")[0][:200] if text else type(error).__name__


def image(client: Any, ref: str) -> Image | None:
    """An image by tag or id, or None."""
    from docker.errors import ImageNotFound, NotFound

    try:
        found = client.images.get(ref)
    except (ImageNotFound, NotFound):
        return None
    labels = {str(k): str(v) for k, v in (found.labels or {}).items()}
    return Image(id=found.id, tags=tuple(found.tags), labels=labels)


def own_images(profile: str | None) -> tuple[str, ...]:
    """Tags of the images that carry our label, of one profile or all."""
    label = f"{LABEL}fingerprint"
    wanted = [label] if profile is None else [label, f"{LABEL}profile={profile}"]
    found = connect().images.list(filters={"label": wanted})
    return tuple(sorted({tag for i in found for tag in (i.tags or [i.id])}))


def remove_images(refs: Sequence[str]) -> None:
    """Remove images by tag; `BuildError` when one is in use."""
    from docker.errors import APIError

    client = connect()
    for ref in refs:
        try:
            client.images.remove(ref)
        except APIError as error:
            raise BuildError(
                f"{ref}: cannot be removed: {error.explanation}",
                "Stop the containers that use it, then try again.",
            ) from error


def load_image(archive: Path, tags: Sequence[str]) -> None:
    """Load an image archive and tag it; `BuildError` when the engine refuses."""
    from docker.errors import DockerException

    try:
        with archive.open("rb") as stream:
            loaded = connect().images.load(stream)
        for tag in tags:
            loaded[0].tag(tag)
    except (DockerException, IndexError) as error:
        raise BuildError(f"the engine cannot load the image: {_short(error)}") from error


def run(
    client: Any,
    options: dict[str, Any],
    on_stdout: Callable[[str], None],
    timeout: float,
) -> tuple[int, str, str, bool]:
    """Run a container to its end: exit code, stdout, stderr, whether it ran out of time.

    The container is removed, whatever happens. Raises `VerifyError` when it cannot be started.
    """
    import threading

    from docker.errors import APIError

    try:
        container = client.containers.create(**options)
    except APIError as error:
        raise _not_started(error) from error
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        container.kill()

    timer = threading.Timer(timeout, stop)
    out = _Lines(on_stdout)
    err = _Lines(lambda line: None)
    try:
        stream = container.attach(stdout=True, stderr=True, stream=True, demux=True, logs=True)
        container.start()
        timer.start()
        for stdout, stderr in stream:
            out.feed(stdout or b"")
            err.feed(stderr or b"")
        code = int(container.wait()["StatusCode"])
    except APIError as error:
        raise _not_started(error) from error
    finally:
        timer.cancel()
        container.remove(force=True)
    out.end()
    err.end()
    return code, out.text, err.text, expired.is_set()


def _not_started(error: Any) -> VerifyError | ToolError:
    text = str(error.explanation or error)
    if "could not select device driver" in text or "no such file or directory" in text:
        return ToolError(
            f"the engine cannot give the container its device: {text}",
            "Install the GPU's container toolkit (NVIDIA) or driver, or use --force to leave the"
            " device flags out.",
        )
    return VerifyError(f"the container cannot be started: {text}")


class _Lines:
    """Bytes in, whole lines out."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._rest, self._all = on_line, b"", bytearray()

    def feed(self, data: bytes) -> None:
        self._all += data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def end(self) -> None:
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))

    @property
    def text(self) -> str:
        return self._all.decode(errors="replace")
