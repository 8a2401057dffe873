"""Connect to this machine's container engine, which is either Docker or podman."""

from __future__ import annotations

from contextlib import ExitStack

from envbuilder.containers.engine import interface, podman
from envbuilder.containers.engine.interface import Engine, short
from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.core.text import version_numbers

OLDEST = (23, 0)
"""Oldest supported version of Docker.

Docker 23 made BuildKit the default builder. `RUN --network` and `--build-context` need BuildKit.
"""
_SECONDS = 60


def connect() -> Engine:
    """Connect to a container engine that answers and is recent enough.

    podman is used if it answers on the configured socket. podman is also used if it is installed,
    no engine is configured explicitly, and Docker cannot be used because its client or socket is
    missing or this user is not allowed to open the socket. Raise `ToolError` (exit 4) if no engine
    can be used.
    """
    location = interface.find_docker()
    unusable = not location.may_be_opened() or process.which("docker") is None
    if unusable and not location.named and process.which("podman") is not None:
        return podman.connect(None)
    if location.socket and not location.socket.exists():  # the SDK would leak a socket
        raise _no_answer("no such file or directory")

    import docker
    from docker.errors import DockerException
    from requests import RequestException

    from envbuilder.containers.engine.docker import DockerEngine

    options = {"tls": location.tls} if location.tls else {}
    with ExitStack() as stack:
        try:
            client = docker.DockerClient(
                base_url=location.url, version="auto", timeout=_SECONDS, **options
            )
            stack.callback(client.close)
            version = client.version()
        except (DockerException, RequestException, OSError, ValueError) as error:
            raise _no_answer(short(error)) from error
        if any("podman" in str(c.get("Name")).lower() for c in version.get("Components") or ()):
            return podman.connect(location.url)
        number = str(version.get("Version", ""))
        if version_numbers(number) < OLDEST:
            raise ToolError(
                f"Docker {number} is too old: {OLDEST[0]} or newer is needed",
                "Update Docker, or use --backend venv.",
            )
        stack.pop_all()
    return DockerEngine(client, number, location)


def _no_answer(reason: str) -> ToolError:
    return ToolError(
        f"no container engine answers: {reason}",
        "Start Docker (or install podman), check DOCKER_HOST and your permissions for the socket,"
        " or use --backend venv, which needs no engine.",
    )
