"""Run podman containers to their end, through its client."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core import process
from envbuilder.core.errors import ToolError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SECONDS = 60.0
_OWN_FAILURES = frozenset({125, 126, 127})


def run(
    command: Sequence[str],
    flags: Sequence[str],
    image: str,
    arguments: Sequence[str],
    on_stdout: Callable[[str], None],
    timeout: float,
) -> process.Completed:
    """Run a container to its end with the client `command`; it is removed in any case.

    Raise `VerifyError` or `ToolError` if it cannot be started.
    """
    name = f"envbuilder-{secrets.token_hex(6)}"
    started = ("run", "--rm", "--pull=never", "--name", name, *flags, image, *arguments)
    # conmon leaves a file `oom` in its working folder when memory runs out.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = process.run(
                [*command, *started],
                cwd=Path(folder),
                timeout=timeout,
                on_stdout=on_stdout,
                holds_stdin="--interactive" in flags,
            )
        finally:
            # Killing the waiting client does not stop the container.
            removal = ("rm", "--force", "--time", "0", "--ignore", name)
            process.run([*command, *removal], timeout=_SECONDS)
    if done.returncode in _OWN_FAILURES and not done.timed_out:
        raise not_started(done.last_words)
    return done


def not_started(text: str) -> VerifyError | ToolError:
    """Return the error for a container that podman could not run."""
    if "CDI devices" in text:
        return ToolError(
            f"podman does not know the device: {text}",
            "Install the container toolkit of the GPU's vendor and describe the GPUs with"
            " `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` or `amd-ctk cdi generate"
            " --output=/etc/cdi/amd.json`, or use --force to leave the flag out.",
        )
    if "no such file or directory" in text and "/dev/" in text:
        return ToolError(
            f"podman cannot give the container its device: {text}",
            "Install the GPU's driver, or use --force to leave the device flags out.",
        )
    return VerifyError(f"the container cannot be started: {text}")
