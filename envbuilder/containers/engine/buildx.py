"""The docker client's buildx plugin, and the builder instances that it knows."""

from __future__ import annotations

from envbuilder.containers.engine.versions import parsed
from envbuilder.core import process
from envbuilder.core.errors import ToolError

OLDEST = (0, 10)
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
    if parsed(text.lstrip("v")) < OLDEST:
        raise ToolError(
            f"buildx {text or '(unknown)'} is too old: 0.10 or newer is needed", _CLIENT_HINT
        )


def require_client() -> None:
    """Raise `ToolError` (exit 4) if the docker client is missing."""
    if process.which("docker") is None:
        raise ToolError("the docker client is not on PATH", _CLIENT_HINT)


def describe(instance: str) -> str:
    """Return what buildx prints of an instance, with its version of BuildKit if it is running.

    Raises `ToolError` (exit 4) if there is no such instance, or buildx itself is missing.
    """
    require_plugin()
    done = process.run(["docker", "buildx", "inspect", instance], timeout=_SECONDS)
    if done.returncode != 0 or done.timed_out:
        raise ToolError(
            f"buildx has no instance '{instance}' that it can use, which the configuration assigns"
            f" (builders:): {'no answer' if done.timed_out else done.last_words}",
            f"Create it: docker buildx create --name {instance} --driver docker-container"
            " ssh://USER@HOST (also: --driver remote, --driver kubernetes). Those that exist:"
            " docker buildx ls",
        )
    return done.stdout
