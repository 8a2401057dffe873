"""Query container engines over their Unix sockets.

`engines.json` in a recorded tree has the form of `ask`: by socket, relative to the root, either
{"Version", "Components", "Info"} (the responses of /version and /info) or {"error"}.
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

from envbuilder.core import decoding
from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOCKERS = ("run/docker.sock", "var/run/docker.sock")
"""Sockets of the system-wide engine: on most systems, two names of one path."""
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
"""Key that replaces the socket's path if this variable does not name a Unix socket."""
HIDDEN = "its folder is closed to this user"
"""The error of a socket that may or may not exist."""
_SECONDS = 0.3
_FULL_SECONDS = 2.0
_LIMIT = 1 << 16
_INFO_LIMIT = 1 << 20
_MOST = 32
_OK = re.compile(rb"HTTP/1\.[01] 200\b")


class Component(Struct, frozen=True, kw_only=True, rename="pascal"):
    """A component of an engine."""

    name: str = ""


class Runtime(Struct, frozen=True, kw_only=True):
    """A runtime with which an engine can start containers."""

    path: str = ""


class Device(Struct, frozen=True, kw_only=True):
    """A device that an engine discovered; `id` is its full CDI name."""

    id: str = field(name="ID", default="")


class Info(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The fields of /info that are used (moby, api/types/system/info.go)."""

    runtimes: dict[str, Runtime] | None = None
    spec_folders: tuple[str, ...] | None = field(name="CDISpecDirs", default=None)
    discovered_devices: tuple[Device, ...] | None = None


class Answer(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The fields of /version that are used, `info` if requested; `error` if there was no answer."""

    version: str = ""
    components: tuple[Component, ...] | None = None
    info: Info | None = None
    error: str = field(name="error", default="")


def ask(environ: Mapping[str, str], home: str, *, full: bool) -> str:
    """Query all engines of this machine; return their answers as JSON, without missing sockets.

    Like any client, this starts an engine whose socket systemd holds. `full` waits longer and
    requests more. `home` is the user's home folder, relative to the root.
    """
    named = environ.get(NAMED, "")
    answers: dict[str, Answer] = {}
    identities = set()
    for path in _places(environ.get("XDG_RUNTIME_DIR", "").strip("/"), home, named):
        # JSON needs valid text; environment variables may contain any bytes.
        key = os.fsencode(path).decode(errors="replace")
        try:
            status = Path("/", path).stat()
        except PermissionError:
            answers[key] = Answer(error=HIDDEN)
            continue
        except (OSError, ValueError):
            continue
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISSOCK(status.st_mode) and identity not in identities:
            identities.add(identity)
            answers[key] = _answer(f"/{path}", full=full)
    if named and not named.startswith("unix:///"):
        answers[NAMED] = Answer(error="it is not a Unix socket, so it was not queried")
    return msgspec.json.encode(answers).decode()


def parse(text: str | None) -> dict[str, Answer]:
    """Return the recorded answers by socket; none if `text` as a whole is damaged.

    A damaged answer has an `error`.
    """
    try:
        recorded = decoding.from_json(text or "{}", dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    answers = {}
    for path, data in list(recorded.items())[:_MOST]:
        try:
            answers[path] = decoding.convert(data, Answer)
        except (msgspec.ValidationError, RecursionError) as error:
            answers[path] = Answer(error=str(error))
    return answers


def _places(session: str, home: str, named: str) -> Iterator[str]:
    """Yield the sockets where engines listen, relative to the root."""
    yield from (*DOCKERS, _PODMAN)
    for folder, names in ((session, _SESSION), (home, _HOME)):
        if folder:
            yield from (f"{folder}/{name}" for name in names)
    if named.startswith("unix:///"):
        yield named.removeprefix("unix:").lstrip("/")


def _answer(path: str, *, full: bool) -> Answer:
    seconds = _FULL_SECONDS if full else _SECONDS
    try:
        answer = decoding.from_json(get(path, "/version", seconds=seconds), Answer)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Answer(error=clean(reason or str(error)) or type(error).__name__)
    if not full:
        return answer
    try:
        body = get(path, "/info", seconds=seconds, limit=_INFO_LIMIT)
        info = decoding.from_json(body, Info)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        return answer
    return msgspec.structs.replace(answer, info=info)


def get(path: str, target: str, *, seconds: float, limit: int = _LIMIT) -> bytes:
    """Return the body of the response to an HTTP request for `target`.

    `seconds` covers the whole exchange, from connecting to the last byte. `limit` is in bytes,
    head and body together. Raise `OSError` (`TimeoutError` if time runs out), and `ValueError`
    if the response is too long or not an HTTP "200 OK".
    """
    # Importing http.client would take 22 ms, a quarter of `detect`'s run time; this takes 5.
    import socket

    deadline = time.monotonic() + seconds
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(seconds)
        link.connect(path)
        # HTTP/1.0: the response ends with the connection, and is not chunked.
        link.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while part := link.recv(1 << 16):
            answer += part
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("timed out")
            if len(answer) > limit:
                raise ValueError("the response is too long")
            link.settimeout(remaining)
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if not _OK.match(head):
        first = head.split(b"\r\n", 1)[0][:60].decode("ascii", "replace")
        raise ValueError(f"it answered {first!r}" if first else "it sent no response")
    return body
