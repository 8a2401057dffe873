"""Run a kernel in a container, reachable by the ports of the connection file that Jupyter writes.

A connection file names the ports and holds the key of the kernel's messages.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.containers import inside
from envbuilder.containers.engine.container import LOOPBACK, Port
from envbuilder.core import decoding, files, process
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.access import Access
    from envbuilder.build.backends.container import DockerEnvironment

_LARGEST = 16 << 10
_Port = Annotated[int, Meta(ge=1, le=65535)]


class _Read(Struct, frozen=True):
    """What decides how a container is started; other keys are the kernel's."""

    shell_port: _Port
    iopub_port: _Port
    stdin_port: _Port
    control_port: _Port
    hb_port: _Port
    transport: Literal["tcp"]
    ip: Literal["127.0.0.1", "localhost"]


class Connection(Struct, frozen=True, kw_only=True):
    """What a kernel in a container gets of a connection file."""

    ports: tuple[Port, ...]
    """Those of this machine that lead into the container."""
    text: str
    """The file's content for the kernel, which listens on all addresses of the container."""


def read_connection(path: Path) -> Connection:
    """Return what a connection file states. Raises `InvalidError` if a container cannot have it."""
    try:
        content: dict[str, Any] = decoding.strict_json(files.read(path, _LARGEST))
        stated = decoding.convert(content, _Read)
    except (OSError, ValueError) as error:  # msgspec's is a ValueError, too
        raise InvalidError(f"{path}: not a connection file of a kernel here: {error}") from error
    numbers = (
        *(stated.shell_port, stated.iopub_port, stated.stdin_port),
        *(stated.control_port, stated.hb_port),
    )
    if len(set(numbers)) != len(numbers):
        raise InvalidError(f"{path}: not a connection file of a kernel here: a port appears twice")
    return Connection(
        ports=tuple(Port(host=LOOPBACK, outside=number, inside=number) for number in numbers),
        text=msgspec.json.encode({**content, "ip": "0.0.0.0"}).decode(),  # noqa: S104
    )


_VARIABLES = {"JPY_PARENT_PID": "1"}
"""Without it, a kernel prints advice for a shell; its parent is the container's first process."""


def run(environment: DockerEnvironment, file: Path, stated: Access) -> int:
    """Run the kernel of a connection file with what the project states; return its exit code.

    The connection goes through a pipe: its key is in no argument list, and in no file that would
    have to be mounted. The container ends when that pipe is closed, even if this process is killed.
    """
    opened = read_connection(file)
    kernel = ("python", "-m", "ipykernel_launcher", "-f", inside.BEGINNING)
    access = replace(stated, ports=opened.ports, variables={**stated.variables, **_VARIABLES})
    command = environment.command(inside.guarded(("python", "-I"), kernel), access)
    parent = os.getppid()
    return process.hold(command, f"{opened.text}\n", lambda: os.getppid() == parent)
