"""podman through its own client, with or without its socket.

Its Docker-compatible socket has no BuildKit and silently ignores parts of a request, so builds and
runs use the `podman` command; `--url` points it at the configured engine.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import process
from envbuilder.core.errors import BuildError, ToolError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OLDEST = (4, 8)
"""From its release notes: `--build-context` came with 4.2, `RUN --network` with 4.5 (Buildah 1.30),
heredocs and `ADD --checksum` with 4.8 (Buildah 1.33)."""
GPU = "nvidia.com/gpu"
"""The device kind in the Container Device Interface (CDI) files of NVIDIA's toolkit."""
_SPECIFICATIONS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_SECONDS = 60.0
_OWN_FAILURES = frozenset({125, 126, 127})
_HINT = f"Install podman {OLDEST[0]}.{OLDEST[1]} or newer, use Docker, or use --backend venv."


class Podman(Struct, frozen=True, kw_only=True):
    """A podman that answers and is new enough."""

    command: tuple[str, ...]
    rootless: bool
    remote: bool = False
    """Whether a service does the work, maybe on another machine: it sees no local files."""

    def image(self, ref: str) -> dict[str, Any] | None:
        """Return what the engine reports about an image, or None."""
        done = self._ask("image", "inspect", ref)
        if done.returncode != 0:
            if re.search(r"image not known|no such image", done.stderr, re.IGNORECASE):
                return None
            raise ToolError(f"podman cannot look for {ref}: {done.last_words}")
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    def labelled(self, label: str) -> list[dict[str, Any]]:
        """Return what the engine reports about each image with this label."""
        done = self._ask("images", "--format", "json", "--filter", f"label={label}")
        if done.returncode != 0:
            raise ToolError(f"podman cannot list its images: {done.last_words}")
        images: list[dict[str, Any]] = json.loads(done.stdout or "[]")
        return images

    def remove(self, ref: str) -> None:
        """Remove an image by tag or id."""
        done = self._ask("rmi", ref)
        if done.returncode != 0:
            raise BuildError(
                f"{ref}: cannot be removed: {done.last_words}",
                "Stop the containers that use it, then try again.",
            )

    def run(
        self,
        flags: Sequence[str],
        image: str,
        argv: Sequence[str],
        on_stdout: Callable[[str], None],
        timeout: float,
    ) -> process.Completed:
        """Run a container to its end; it is removed in any case.

        Raise `VerifyError` or `ToolError` if it cannot be started.
        """
        name = f"envbuilder-{secrets.token_hex(6)}"
        started = ("run", "--rm", "--pull=never", "--name", name, *flags, image, *argv)
        # conmon leaves a file `oom` in its working folder when memory runs out.
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = process.run(
                    [*self.command, *started],
                    cwd=Path(folder),
                    timeout=timeout,
                    on_stdout=on_stdout,
                )
            finally:
                # Killing the waiting client does not stop the container.
                self._ask("rm", "--force", "--time", "0", "--ignore", name)
        if done.returncode in _OWN_FAILURES and not done.timed_out:
            raise not_started(done.last_words)
        return done

    def _ask(self, *arguments: str) -> process.Completed:
        return process.run([*self.command, *arguments], timeout=_SECONDS)


def connect(url: str | None) -> Podman:
    """Return the engine at `url`, or this user's own; raise `ToolError` if it is unusable."""
    if process.which("podman") is None:
        raise ToolError("podman's socket answers, but its client is not on PATH", _HINT)
    command = ("podman", "--url", url) if url else ("podman",)
    client = process.run(["podman", "--version"], timeout=_SECONDS)
    if client.returncode != 0:
        raise ToolError(f"the podman client does not work: {client.last_words}", _HINT)
    _require(client.stdout.strip().rpartition(" ")[2], "the podman client")
    done = process.run([*command, "info", "--format", "json"], timeout=_SECONDS)
    try:
        info = json.loads(done.stdout)
        version = info["version"]["Version"]
        rootless = bool(info["host"]["security"]["rootless"])
        remote = bool(info["host"].get("serviceIsRemote"))
    except (ValueError, KeyError, TypeError) as error:
        raise ToolError(f"podman does not answer: {done.last_words}", _HINT) from error
    _require(version, "podman")
    return Podman(command=command, rootless=rootless, remote=remote)


def _require(version: str, what: str) -> None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) < OLDEST:
        oldest = f"{OLDEST[0]}.{OLDEST[1]}"
        raise ToolError(
            f"{what} {version or '(unknown version)'} is too old: {oldest} or newer is needed",
            _HINT,
        )


def not_started(text: str) -> VerifyError | ToolError:
    """Return the error for a container that podman could not run."""
    if "CDI devices" in text:
        return ToolError(
            f"podman does not know the device: {text}",
            "Install NVIDIA's container toolkit and describe the GPUs with nvidia-ctk cdi"
            " generate --output=/etc/cdi/nvidia.yaml, or use --force to leave the flag out.",
        )
    if "no such file or directory" in text and "/dev/" in text:
        return ToolError(
            f"podman cannot give the container its device: {text}",
            "Install the GPU's driver, or use --force to leave the device flags out.",
        )
    return VerifyError(f"the container cannot be started: {text}")


def has_gpu_specification() -> bool:
    """Return whether NVIDIA's toolkit has described the GPUs to podman."""
    files = [f for folder in _SPECIFICATIONS if folder.is_dir() for f in folder.iterdir()]
    return any(GPU in f.read_text(errors="replace") for f in files if os.access(f, os.R_OK))
