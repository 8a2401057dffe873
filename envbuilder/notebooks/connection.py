"""Connection files, which Jupyter writes for each kernel: its ports, and its messages' key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.containers.engine.container import LOOPBACK, Port
from envbuilder.core import decoding, files
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

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


def read(path: Path) -> Connection:
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
