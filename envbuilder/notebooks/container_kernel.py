"""Run a kernel in a container, for as long as whoever started it is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core import process
from envbuilder.notebooks import connection
from envbuilder.notebooks.inside import GUARD

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.access import Access
    from envbuilder.build.backends.container import DockerEnvironment


def run(environment: DockerEnvironment, file: Path, stated: Access) -> int:
    """Run the kernel of a connection file with what the project states; return its exit code.

    The connection goes through a pipe: its key is in no argument list, and in no file that would
    have to be mounted. The container ends when that pipe is closed, even if this process is killed.
    """
    opened = connection.read(file)
    guarded = ("python", "-I", "-c", GUARD.read_text(encoding="utf-8"))
    command = environment.command(guarded, replace(stated, ports=opened.ports))
    parent = os.getppid()
    return process.hold(command, f"{opened.text}\n", lambda: os.getppid() == parent)
