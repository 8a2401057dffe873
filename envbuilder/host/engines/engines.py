"""Decide which container engines answer, and what is installed for them to reach GPUs.

`full.json` in a recorded tree has the output of commands: {"docker buildx version": "…"}.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.core import decoding
from envbuilder.host.engines import cdi, sockets
from envbuilder.host.model import Containers, Engine, State
from envbuilder.host.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.host.engines.sockets import Answer, Info
    from envbuilder.host.snapshot import Reader, Snapshot

_ANSWERS = "engines.json"
_FULL = "full.json"
_BUILDX_VERSION = "docker buildx version"
_MOST = 32

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


def read(reader: Reader, *, full: bool) -> None:
    """Read engines, plugins, runtimes and CDI specifications.

    On the live machine, query each socket; with `full`, request more and run buildx. From a
    recorded tree, read only files.
    """
    plugins: tuple[str, ...] = _PLUGIN_FOLDERS
    if reader.live:
        home = os.path.expanduser("~").strip("/")  # noqa: PTH111 (Path.home may raise)
        reader.files[_ANSWERS] = sockets.ask(os.environ, home, full=full)
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
    cdi.read(reader, _spec_folders(_answers(reader.files)))


def decide(snapshot: Snapshot) -> Containers:
    """Return what is available to run containers."""
    answers = _answers(snapshot.files)
    version = _buildx_version(snapshot)
    devices, _ = cdi.decide(snapshot, _spec_folders(answers))
    for info in _infos(answers):
        listed = (device.id for device in info.discovered_devices or ())
        devices |= {device for device in listed if cdi.is_device(device)}
    return Containers(
        engines=tuple(
            _engine(path, answer)
            for path, answer in answers.items()
            if answer.error != sockets.HIDDEN
        ),
        buildx=True if version else _buildx(snapshot),
        buildx_version=version,
        runtimes=_runtimes(snapshot, answers),
        cdi=cdi.chosen(devices),
    )


def notes(snapshot: Snapshot) -> list[str]:
    """Return what could not be read, as notes."""
    answers = _answers(snapshot.files)
    problems = [
        f"Whether an engine listens at {_shown(path)} is not known: {answer.error}."
        for path, answer in answers.items()
        if answer.error == sockets.HIDDEN
    ]
    if not answers and snapshot.files.get(_ANSWERS, "{}") != "{}":
        problems.append(f"{_ANSWERS} is damaged: container engines are not known.")
    return [*problems, *cdi.decide(snapshot, _spec_folders(answers))[1]]


def _read_full(reader: Reader) -> None:
    if not reader.live:
        reader.file(_FULL)
        return
    from envbuilder.core import process
    from envbuilder.core.errors import ToolError

    try:
        done = process.run(_BUILDX_VERSION.split(), timeout=10)
    except (ToolError, OSError):
        return
    if done.returncode == 0:
        recorded = {**_full(reader.files), _BUILDX_VERSION: done.stdout}
        reader.files[_FULL] = msgspec.json.encode(recorded).decode()


def _program(reader: Reader, path: str) -> None:
    """Record whether a program exists and, on the live machine, is executable.

    Recorded trees do not preserve execute permissions.
    """
    reader.exists(path)
    if reader.live and path in reader.files and not os.access(reader.root / path, os.X_OK):
        del reader.files[path]
        reader.absent.add(path)


def _full(files: Mapping[str, str]) -> dict[str, Any]:
    try:
        return decoding.from_json(files.get(_FULL, "{}"), dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


def _answers(files: Mapping[str, str]) -> dict[str, Answer]:
    return sockets.parse(files.get(_ANSWERS))


def _infos(answers: Mapping[str, Answer]) -> list[Info]:
    return [answer.info for answer in answers.values() if answer.info]


def _spec_folders(answers: Mapping[str, Answer]) -> tuple[str, ...]:
    """Return the default folders, and those that an engine is configured to search."""
    configured = [
        path.strip("/")
        for info in _infos(answers)
        for path in (info.spec_folders or ())[:_MOST]
        if path.startswith("/") and ".." not in path
    ]
    return tuple(dict.fromkeys((*cdi.FOLDERS, *configured)))


def _shown(path: str) -> str:
    return path if path == sockets.NAMED else f"/{clean(path.lstrip('/')) or ''}"


def _engine(path: str, answer: Answer) -> Engine:
    state, detail = _judged(path, answer)
    name: Any = "unknown"
    if state == "usable":
        parts = [part.name.lower() for part in answer.components or ()]
        name = "podman" if any("podman" in part for part in parts) else "docker"
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
        if path in sockets.DOCKERS:
            hint = "join the group docker, which is equivalent to root access"
            return "present", f"This user may not open it: {hint}."
        return "present", "This user may not open it."
    if "connection refused" in error:
        return "present", "Nothing listens on it: the engine is not running."
    if error or not answer.version:
        why = clean(answer.error) or "it names no version"
        return "unknown", f"No usable answer: {why}."
    return "usable", ""


def _buildx(snapshot: Snapshot) -> bool | None:
    if _plugins(snapshot.files):
        return True
    # A live machine may have no /opt at all; a recorded tree does not show which home applies.
    closed = [p for p in _plugins(snapshot.unreadable) if snapshot.unreadable[p] != "not there"]
    return False if snapshot.live and not closed else None


def _plugins(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.endswith(f"/{_BUILDX}")]


def _buildx_version(snapshot: Snapshot) -> str | None:
    """Return the version in a line such as "github.com/docker/buildx v0.30.1 9e66234"."""
    words = str(_full(snapshot.files).get(_BUILDX_VERSION, ""))[:400].split()
    return next((match[1] for word in words if (match := _VERSION.match(word))), None)


def _runtimes(snapshot: Snapshot, answers: Mapping[str, Answer]) -> tuple[str, ...]:
    installed = {
        name
        for name in _RUNTIMES
        if any(snapshot.has(f"{folder}/{name}") for folder in _PROGRAM_FOLDERS)
    }
    listed = {
        name
        for info in _infos(answers)
        for name, runtime in list((info.runtimes or {}).items())[:_MOST]
        if _WORD.match(name) and _GPU_RUNTIME.search(f"{name} {runtime.path}")
    }
    return tuple(sorted(installed | listed))
