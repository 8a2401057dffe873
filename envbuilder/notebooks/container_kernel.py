"""Run a kernel in a container, for as long as whoever started it is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.containers import inside
from envbuilder.core import process
from envbuilder.notebooks import connection

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.access import Access
    from envbuilder.build.backends.container import DockerEnvironment

_VARIABLES = {"JPY_PARENT_PID": "1"}
"""Without it, a kernel prints advice for a shell; its parent is the container's first process."""


def run(environment: DockerEnvironment, file: Path, stated: Access) -> int:
    """Run the kernel of a connection file with what the project states; return its exit code.

    The connection goes through a pipe: its key is in no argument list, and in no file that would
    have to be mounted. The container ends when that pipe is closed, even if this process is killed.
    """
    opened = connection.read(file)
    kernel = ("python", "-m", "ipykernel_launcher", "-f", inside.BEGINNING)
    access = replace(stated, ports=opened.ports, variables={**stated.variables, **_VARIABLES})
    command = environment.command(inside.guarded(("python", "-I"), kernel), access)
    parent = os.getppid()
    return process.hold(command, f"{opened.text}\n", lambda: os.getppid() == parent)
