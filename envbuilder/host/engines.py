"""Find the container engines that respond, and the programs that give containers access to a GPU.

Engines are queried over their Unix sockets. In a recorded tree, `engines.json` has the format that
`ask` returns. It maps the path of each socket, relative to the root, to {"Version", "Components",
"Info"} (the responses to /version and /info) or to {"error"}. `full.json` maps commands to their
output: {"docker buildx version": "…"}.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from envbuilder.core import decoding, process
from envbuilder.core.errors import ToolError
from envbuilder.host.model import Containers, Engine, State
from envbuilder.host.snapshot import Reader, Snapshot, clean

DOCKERS = ("run/docker.sock", "var/run/docker.sock")
"""Sockets of the system-wide Docker engine. On most systems, both paths lead to the same socket."""
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
"""Key used instead of a socket's path if the variable DOCKER_HOST does not name a Unix socket."""
HIDDEN = "its folder is closed to this user"
"""Error for a socket in a folder that this user cannot access, so that the socket may not exist."""
_SECONDS = 0.3
_FULL_SECONDS = 2.0
"""Maximum time in seconds to wait for a response on a socket: the usual limit, and the limit with
`full`."""
_LIMIT = 1 << 16
_INFO_LIMIT = 1 << 20
"""Maximum sizes in bytes of the responses to /version and /info. The program at the socket is
untrusted."""
_MOST_ANSWERS = 32
"""Maximum number of sockets' responses to read from a recorded tree, which is untrusted."""
_OK = re.compile(rb"HTTP/1\.[01] 200\b")
_ANSWERS = "engines.json"
_FULL = "full.json"
_BUILDX_VERSION = "docker buildx version"
_MOST = 32
"""Maximum number of an engine's runtimes to read."""
# Where the docker client searches for plugins; in /opt/homebrew only if configured.
_PLUGIN_FOLDERS = (
    "usr/local/lib/docker/cli-plugins",
    "usr/local/libexec/docker/cli-plugins",
    "usr/lib/docker/cli-plugins",
    "usr/libexec/docker/cli-plugins",
    "opt/homebrew/lib/docker/cli-plugins",
)
_BUILDX = "docker-buildx"
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin")
_RUNTIMES = (
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-container-toolkit",
    "nvidia-ctk",
)
_GPU_RUNTIME = re.compile(r"nvidia|-container-runtime")
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~_-]{0,63}\Z", re.ASCII)
_VERSION = re.compile(r"v?([0-9]{1,6}\.[0-9A-Za-z.+~-]{1,40})\Z", re.ASCII)


class Component(Struct, frozen=True, kw_only=True, rename="pascal"):
    """A component of an engine, as listed in the response to /version."""

    name: str = ""


class Runtime(Struct, frozen=True, kw_only=True):
    """A runtime with which an engine can start containers."""

    path: str = ""


class Info(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The fields of the response to /info that envbuilder uses (moby, api/types/system/info.go)."""

    runtimes: dict[str, Runtime] | None = None


class Answer(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The fields of the response to /version that envbuilder uses.

    `info` is the response to /info, if /info was requested. `error` is the reason why there was no
    response.
    """

    version: str = ""
    components: tuple[Component, ...] | None = None
    info: Info | None = None
    error: str = field(name="error", default="")


def ask(environ: Mapping[str, str], home: str, *, full: bool) -> str:
    """Query all engines on this machine, and return their responses as JSON.

    Sockets that do not exist are omitted. As with any client, a query starts an engine whose socket
    belongs to systemd. With `full`, the function waits longer and also requests /info. `home` is
    the path of the user's home folder, relative to the root.
    """
    docker_host = environ.get(NAMED, "")
    answers: dict[str, Answer] = {}
    identities = set()
    for path in _places(environ.get("XDG_RUNTIME_DIR", "").strip("/"), home, docker_host):
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
    if docker_host and not docker_host.startswith("unix:///"):
        answers[NAMED] = Answer(error="it is not a Unix socket, so it was not queried")
    return msgspec.json.encode(answers).decode()


def parse(text: str | None) -> dict[str, Answer]:
    """Parse the recorded responses, and return them keyed by the paths of the sockets.

    If a single response is damaged, its `error` says why. If `text` as a whole is damaged, return
    an empty dictionary.
    """
    try:
        recorded = decoding.from_json(text or "{}", dict[str, Any])
    except (ValueError, RecursionError):
        return {}
    answers = {}
    for path, data in list(recorded.items())[:_MOST_ANSWERS]:
        try:
            answers[path] = decoding.convert(data, Answer)
        except (ValueError, RecursionError) as error:
            answers[path] = Answer(error=str(error))
    return answers


def _places(session: str, home: str, docker_host: str) -> Iterator[str]:
    """Yield the paths of the sockets on which engines may listen.

    The paths are relative to the root.
    """
    yield from (*DOCKERS, _PODMAN)
    for folder, names in ((session, _SESSION), (home, _HOME)):
        if folder:
            for name in names:
                yield f"{folder}/{name}"
    if docker_host.startswith("unix:///"):
        yield docker_host.removeprefix("unix:").lstrip("/")


def _answer(path: str, *, full: bool) -> Answer:
    seconds = _FULL_SECONDS if full else _SECONDS
    try:
        answer = decoding.from_json(get(path, "/version", seconds=seconds), Answer)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Answer(error=clean(reason or str(error)) or type(error).__name__)
    if not full:
        return answer
    try:
        info = decoding.from_json(get(path, "/info", seconds=seconds, limit=_INFO_LIMIT), Info)
    except (OSError, ValueError, RecursionError):
        return answer
    return replace(answer, info=info)


def get(path: str, target: str, *, seconds: float, limit: int = _LIMIT) -> bytes:
    """Send an HTTP request for `target` to a Unix socket, and return the body of the response.

    `seconds` limits the whole exchange, from connecting to the last byte. `limit` is the maximum
    size of the response in bytes, including the status line and headers. Raise `OSError` if the
    request fails (`TimeoutError` if the time runs out), and `ValueError` if the response is too
    long or is not an HTTP "200 OK".
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
        while received := link.recv(1 << 16):
            answer += received
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("timed out")
            if len(answer) > limit:
                raise ValueError("the response is too long")
            link.settimeout(remaining)
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if not _OK.match(head):
        first = head.split(b"\r\n", 1)[0][:60].decode("ascii", "replace")
        raise ValueError(f"its answer was {first!r}" if first else "it sent no response")
    return body


def read(reader: Reader, *, full: bool) -> None:
    """Read which container engines, plugins and runtimes the machine has.

    On the live machine, query each socket. With `full`, also request more data and run buildx. In a
    recorded tree, only read files.
    """
    plugins: tuple[str, ...] = _PLUGIN_FOLDERS
    if reader.live:
        home = os.path.expanduser("~").strip("/")  # noqa: PTH111 (Path.home may raise)
        reader.files[_ANSWERS] = ask(os.environ, home, full=full)
        plugins = (f"{home}/.docker/cli-plugins", *plugins)
    else:
        reader.file(_ANSWERS)
    if full:
        _read_full(reader)
    for folder in plugins:
        _program(reader, f"{folder}/{_BUILDX}")
    for folder in _PROGRAM_FOLDERS:
        for name in _RUNTIMES:
            _program(reader, f"{folder}/{name}")


def decide(snapshot: Snapshot) -> Containers:
    """Return the container engines, plugins and runtimes that a snapshot shows."""
    answers = _recorded(snapshot.files)
    version = _buildx_version(snapshot)
    return Containers(
        engines=tuple(
            _engine(path, answer) for path, answer in answers.items() if answer.error != HIDDEN
        ),
        buildx=bool(version) or _has_buildx(snapshot),
        buildx_version=version,
        runtimes=_runtimes(snapshot, answers),
    )


def notes(snapshot: Snapshot) -> list[str]:
    """Return notes about engines that could not be queried."""
    answers = _recorded(snapshot.files)
    problems = [
        f"It is unknown whether an engine listens at {_shown(path)}: {answer.error}."
        for path, answer in answers.items()
        if answer.error == HIDDEN
    ]
    if not answers and snapshot.files.get(_ANSWERS, "{}") != "{}":
        problems.append(f"{_ANSWERS} is damaged: container engines are not known.")
    return problems


def _read_full(reader: Reader) -> None:
    if not reader.live:
        reader.file(_FULL)
        return
    with suppress(ToolError, OSError):
        done = process.run(_BUILDX_VERSION.split(), timeout=10)
        if done.returncode == 0:
            reader.files[_FULL] = msgspec.json.encode({_BUILDX_VERSION: done.stdout}).decode()


def _program(reader: Reader, path: str) -> None:
    """Record whether a program exists. On the live machine, the program must also be executable.

    In recorded trees, this is not checked, because they do not preserve execute permissions.
    """
    reader.exists(path)
    if reader.live and path in reader.files and not os.access(reader.root / path, os.X_OK):
        del reader.files[path]
        reader.absent.add(path)


def _recorded(files: Mapping[str, str]) -> dict[str, Answer]:
    return parse(files.get(_ANSWERS))


def _shown(path: str) -> str:
    if path == NAMED:
        return path
    return f"/{clean(path.lstrip('/')) or ''}"


def _engine(path: str, answer: Answer) -> Engine:
    state, detail = _judged(path, answer)
    name: Any = "unknown"
    if state == "usable":
        parts = answer.components or ()
        name = "podman" if any("podman" in part.name.lower() for part in parts) else "docker"
    return Engine(
        name=name,
        socket=_shown(path),
        version=answer.version if _WORD.match(answer.version) else None,
        state=state,
        detail=detail,
    )


def _judged(path: str, answer: Answer) -> tuple[State, str]:
    error = answer.error.lower()
    if "permission denied" in error or "not permitted" in error:
        if path in DOCKERS:
            hint = "join the group docker, which is equivalent to root access"
            return "present", f"This user may not open it: {hint}."
        return "present", "This user may not open it."
    if "connection refused" in error:
        return "present", "Nothing listens on it: the engine is not running."
    if error or not answer.version:
        reason = clean(answer.error) or "its answer names no version"
        return "unknown", f"No usable answer: {reason}."
    return "usable", ""


def _has_buildx(snapshot: Snapshot) -> bool | None:
    known = {**snapshot.unreadable, **dict.fromkeys(snapshot.files, "")}
    plugins = [text for path, text in known.items() if path.endswith(f"/{_BUILDX}")]
    if "" in plugins:
        return True
    # A live machine may have no /opt at all; a recorded tree does not show which home applies.
    if snapshot.live and set(plugins) <= {"not there"}:
        return False
    return None


def _buildx_version(snapshot: Snapshot) -> str | None:
    """Return the version of buildx, or None if it is unknown.

    The version is the second word of a line such as "github.com/docker/buildx v0.30.1 9e66234".
    """
    try:
        full = decoding.from_json(snapshot.files.get(_FULL, "{}"), dict[str, Any])
    except (ValueError, RecursionError):
        return None
    for word in str(full.get(_BUILDX_VERSION, ""))[:400].split():
        if match := _VERSION.match(word):
            return match[1]
    return None


def _runtimes(snapshot: Snapshot, answers: Mapping[str, Answer]) -> tuple[str, ...]:
    names = set()
    for name in _RUNTIMES:
        if any(snapshot.has(f"{folder}/{name}") for folder in _PROGRAM_FOLDERS):
            names.add(name)
    for answer in answers.values():
        runtimes = answer.info and answer.info.runtimes
        for name, runtime in list((runtimes or {}).items())[:_MOST]:
            if _WORD.match(name) and _GPU_RUNTIME.search(f"{name} {runtime.path}"):
                names.add(name)
    return tuple(sorted(names))
