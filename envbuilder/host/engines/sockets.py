"""What container engines say over their Unix sockets.

`engines.json` in a recorded tree has the form of `ask`: by socket, relative to the root, either
{"Version", "Components", "Info"} (what /version says, and /info) or {"error"}.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOCKERS = ("run/docker.sock", "var/run/docker.sock")
"""Where the engine of the whole machine listens: one path, most often, by two names."""
_PODMAN = "run/podman/podman.sock"
_SESSION = ("docker.sock", "podman/podman.sock")
# Docker Desktop on macOS and on Linux, Colima, OrbStack.
_HOME = (
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".colima/default/docker.sock",
    ".orbstack/run/docker.sock",
)
NAMED = "DOCKER_HOST"
"""Stands for a socket where that variable names something that is none."""
HIDDEN = "its folder is closed to this user"
"""The error of a socket that may or may not be there."""
_SECONDS = 0.3
_FULL_SECONDS = 2.0
_LIMIT = 1 << 16
_INFO_LIMIT = 1 << 20
_MOST = 32
_OK = re.compile(rb"HTTP/1\.[01] 200\b")


class Component(Struct, frozen=True, kw_only=True, rename="pascal"):
    """A part of an engine."""

    name: str = ""


class Runtime(Struct, frozen=True, kw_only=True):
    """A runtime that an engine can start containers with."""

    path: str = ""


class Device(Struct, frozen=True, kw_only=True):
    """A device that an engine found; `id` is its full CDI name."""

    id: str = field(name="ID", default="")


class Info(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """As much as is used of /info (moby, api/types/system/info.go)."""

    runtimes: dict[str, Runtime] | None = None
    spec_folders: tuple[str, ...] | None = field(name="CDISpecDirs", default=None)
    discovered_devices: tuple[Device, ...] | None = None


class Answer(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """As much as is used of /version, and `info` where that was asked; `error` where none came."""

    version: str = ""
    components: tuple[Component, ...] | None = None
    info: Info | None = None
    error: str = field(name="error", default="")


def ask(environ: Mapping[str, str], home: str, *, full: bool) -> str:
    """The answers of all engines of this machine, as JSON; a missing socket has none.

    This starts an engine whose socket systemd holds, as any client does. `full` waits longer, and
    asks for more. `home` is the user's home folder, relative to the root.
    """
    named = environ.get(NAMED, "")
    found: dict[str, Answer] = {}
    seen = set()
    for path in _places(environ.get("XDG_RUNTIME_DIR", "").strip("/"), home, named):
        # As text that JSON can hold: an environment may hold any bytes.
        key = os.fsencode(path).decode(errors="replace")
        try:
            status = Path("/", path).stat()
        except PermissionError:
            found[key] = Answer(error=HIDDEN)
            continue
        except (OSError, ValueError):
            continue
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISSOCK(status.st_mode) and identity not in seen:
            seen.add(identity)
            found[key] = _answer(f"/{path}", full=full)
    if named and not named.startswith("unix:///"):
        found[NAMED] = Answer(error="it names no Unix socket, and was not asked")
    return msgspec.json.encode(found).decode()


def parse(text: str | None) -> dict[str, Answer]:
    """The recorded answers by socket: an error for a damaged one, none where all is damaged."""
    try:
        said = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    found = {}
    for path, data in list(said.items())[:_MOST]:
        try:
            found[path] = msgspec.convert(data, Answer)
        except (msgspec.ValidationError, RecursionError) as error:
            found[path] = Answer(error=str(error))
    return found


def _places(session: str, home: str, named: str) -> Iterator[str]:
    """Where engines listen, relative to the root."""
    yield from (*DOCKERS, _PODMAN)
    for folder, names in ((session, _SESSION), (home, _HOME)):
        if folder:
            yield from (f"{folder}/{name}" for name in names)
    if named.startswith("unix:///"):
        yield named.removeprefix("unix:").lstrip("/")


def _answer(path: str, *, full: bool) -> Answer:
    seconds = _FULL_SECONDS if full else _SECONDS
    try:
        answer = msgspec.json.decode(get(path, "/version", seconds=seconds), type=Answer)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Answer(error=clean(reason or str(error)) or type(error).__name__)
    if not full:
        return answer
    try:
        body = get(path, "/info", seconds=seconds, limit=_INFO_LIMIT)
        info = msgspec.json.decode(body, type=Info)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        return answer
    return msgspec.structs.replace(answer, info=info)


def get(path: str, target: str, *, seconds: float, limit: int = _LIMIT) -> bytes:
    """The body that an HTTP request for `target` brings.

    `seconds` is for all of it: to connect, to ask and to hear the last byte. `limit` is in bytes,
    head and body together. Raises `OSError` (`TimeoutError` when the time is over), and
    `ValueError` where the answer is too long or not the "200 OK" of a web server.
    """
    # http.client would take 22 ms to import, a quarter of all that `detect` takes; this takes 5.
    import socket

    deadline = time.monotonic() + seconds
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(seconds)
        link.connect(path)
        # HTTP/1.0: the answer ends with the connection, and does not come in chunks.
        link.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while part := link.recv(1 << 16):
            answer += part
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            if len(answer) > limit:
                raise ValueError("the answer is too long")
            link.settimeout(left)
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if not _OK.match(head):
        first = head.split(b"\r\n", 1)[0][:60].decode("ascii", "replace")
        raise ValueError(f"it answered {first!r}" if first else "it said nothing")
    return body
