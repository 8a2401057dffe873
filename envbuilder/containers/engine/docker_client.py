"""The docker client: its endpoint and its buildx plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from envbuilder.containers.engine.interface import short
from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.core.text import version_numbers

_SOCKET = "/var/run/docker.sock"


class Endpoint(Struct, frozen=True, kw_only=True):
    """An engine's endpoint, and what points the docker client at it."""

    url: str | None
    tls: Any = None
    builder: str = "default"
    flags: tuple[str, ...] = ()
    named: bool = True
    """Whether it was configured, rather than found."""

    @property
    def socket(self) -> Path | None:
        """The Unix socket; None if it is another kind of endpoint."""
        path = (self.url or "").removeprefix("unix://")
        return Path(path) if path.startswith("/") else None

    @property
    def explicit_flags(self) -> tuple[str, ...]:
        """Flags that lead the docker client here whatever its configuration and variables say."""
        words = ["--host", self.url or ""]
        if self.tls:
            words.append("--tlsverify" if self.tls.verify else "--tls")
            certificate, key = self.tls.cert or ("", "")
            for name, file in (("cacert", self.tls.ca_cert), ("cert", certificate), ("key", key)):
                if file:
                    words += [f"--tls{name}", str(file)]
        return tuple(words)

    def may_be_opened(self) -> bool:
        """Return whether this user may open the endpoint; only Unix sockets are checked."""
        path = (self.url or "").removeprefix("unix://")
        return bool(self.url) and (path == self.url or os.access(path, os.R_OK | os.W_OK))


def find() -> Endpoint:
    """Return the endpoint that the docker client uses."""
    import docker.utils

    if os.environ.get("DOCKER_HOST"):
        options = docker.utils.kwargs_from_env()
        return Endpoint(url=options["base_url"], tls=options.get("tls"))
    context = _context()
    if context is not None:
        return Endpoint(url=str(context.Host), tls=context.TLSConfig, builder=context.name)
    if Path(_SOCKET).exists():
        return Endpoint(url=f"unix://{_SOCKET}", named=False)
    if _rootless().exists():
        url = f"unix://{_rootless()}"
        return Endpoint(url=url, flags=("--host", url), named=False)
    return Endpoint(url=None, named=False)


def configured() -> bool:
    """Return whether anything suggests an engine: a variable, a context, a socket or podman."""
    context = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "contexts" / "meta"
    return (
        bool(os.environ.get("DOCKER_HOST"))
        or context.is_dir()
        or any(Path(s).exists() for s in (_SOCKET, _rootless()))
        or process.which("podman") is not None
    )


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


# --- the plugin

OLDEST_BUILDX = (0, 10)
_SECONDS = 60
_CLIENT_HINT = (
    "Install the docker client with its buildx plugin (packages docker-cli and docker-buildx, or"
    " docker-buildx-plugin), or use --backend venv."
)


def require_plugin() -> None:
    """Raise `ToolError` (exit 4) if the docker client or a recent enough buildx is missing."""
    require_client()
    done = process.run(["docker", "buildx", "version"], timeout=_SECONDS)
    if done.returncode != 0:
        raise ToolError("the docker client has no buildx plugin", _CLIENT_HINT)
    printed = done.stdout.split()
    text = next((w for w in printed if w[:1] in "v0123456789" and "." in w), "")
    if version_numbers(text) < OLDEST_BUILDX:
        raise ToolError(
            f"buildx {text or '(unknown)'} is too old: 0.10 or newer is needed", _CLIENT_HINT
        )


def require_client() -> None:
    """Raise `ToolError` (exit 4) if the docker client is missing."""
    if process.which("docker") is None:
        raise ToolError("the docker client is not on PATH", _CLIENT_HINT)
