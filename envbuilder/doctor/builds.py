"""Find what blocks builds, GPUs aside: lock, interpreter, engine, disk space, permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import gigabytes
from envbuilder.doctor.problem import Problem
from envbuilder.doctor.surroundings import CDI_FILE
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.lock import require_usable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Engine, Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

_COMPILERS = {"g++", "c++", "clang++"}
_FULL = 2 << 30
"""Free space, in bytes, required if a lock's sizes are unknown: most profiles need more."""


def problems(
    host: Host, around: Around, requested: Profile | None, lock: Lock | None
) -> list[Problem]:
    """Return the problems of the build tools, and of the requested profile's lock."""
    engine = any(e.state == "usable" for e in host.containers.engines) and not around.engine
    return [
        *_lock(requested, lock),
        *_native(around, requested, engine=engine),
        *_shared_store(around),
        *_disks(around),
        *_engines(host, around),
        *_gpus_in_containers(host, around),
    ]


def _lock(requested: Profile | None, lock: Lock | None) -> Iterator[Problem]:
    if requested is None:
        return
    try:
        require_usable(requested, lock)
    except InvalidError as error:
        fix = f"Run `envbuilder lock --profile {requested.name}`."
        yield Problem(severity="blocks", code="lock", text=error.message, fix=fix)


def _native(around: Around, requested: Profile | None, *, engine: bool) -> Iterator[Problem]:
    if around.python:
        image = engine and any(map(makes_image, around.backends))
        yield Problem(
            severity="limits" if image else "blocks",
            code="python",
            text=around.python,
            fix=around.python_fix,
        )
    compiles = requested is not None and "g++" in requested.system_packages
    if compiles and around.looked and not _COMPILERS & around.programs:
        yield Problem(
            severity="limits",
            code="compiler",
            text=f"{requested.name if requested else ''} compiles at run time,"
            " and there is no compiler",
            fix="Install one (Debian, Ubuntu: `sudo apt install g++`; Fedora: `sudo dnf install"
            " gcc-c++`), or use --backend docker.",
        )
    for folder in around.closed:
        yield Problem(
            severity="blocks",
            code="folder",
            text=f"{folder} cannot be written to",
            fix="Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders you can write to.",
        )


def _shared_store(around: Around) -> Iterator[Problem]:
    if around.shared_store:
        yield Problem(
            severity="limits",
            code="shared-store",
            text=around.shared_store,
            fix="Report it to whoever maintains it (docs/guides/shared-store.md says how to open"
            " it). Until then, ENVBUILDER_SHARED_STORE= (empty) builds without it.",
        )


def _disks(around: Around) -> Iterator[Problem]:
    for room in around.rooms:
        needed = room.needed or _FULL
        if room.free < needed:
            yield Problem(
                severity="blocks",
                code="disk",
                text=f"{room.folder}: {gigabytes(room.free)} free, {gigabytes(needed)} needed",
                fix="Free some space (`envbuilder clean`), or set ENVBUILDER_CACHE_DIR and"
                " ENVBUILDER_DATA_DIR to a larger disk.",
            )


def _engines(host: Host, around: Around) -> Iterator[Problem]:
    engines = host.containers.engines
    # One usable engine is enough: access to root's podman is not needed as well.
    for engine in engines if not any(e.state == "usable" for e in engines) else ():
        yield Problem(
            severity="limits",
            code="engine",
            text=f"{engine.socket}: {engine.detail.rstrip('.')}",
            fix=f"{_engine_fix(engine, host)} `--backend venv` needs none.",
        )
    if around.engine:
        yield Problem(severity="limits", code="engine", text=around.engine, fix=around.engine_fix)


def _engine_fix(engine: Engine, host: Host) -> str:
    podman = "podman" in engine.socket
    if engine.state == "unknown":
        return f"Check it: `{'podman' if podman else 'docker'} version`."
    closed = "may not open" in engine.detail
    if closed and not podman:
        return "Run `sudo usermod -aG docker $USER` and log in again. This amounts to root access."
    if podman:
        return "Run `systemctl --user start podman.socket` for your own."
    if host.os == "macos" or host.wsl:
        return "Start Docker Desktop, or whatever provides the engine."
    return "Run `sudo systemctl start docker`."


def _gpus_in_containers(host: Host, around: Around) -> Iterator[Problem]:
    usable = {e.name for e in host.containers.engines if e.state == "usable"}
    if host.wsl or not any(g.vendor == "nvidia" and g.state == "usable" for g in host.gpus):
        return  # Docker Desktop has its own GPU support
    devices = any(device.startswith("nvidia") for device in host.containers.cdi)
    if "docker" in usable and not devices and not host.containers.runtimes:
        yield Problem(
            severity="limits",
            code="gpu-runtime",
            text="containers cannot reach the NVIDIA GPU: no GPU runtime and no CDI device",
            # docs.nvidia.com/datacenter/cloud-native/container-toolkit, installation guide
            fix="Install nvidia-container-toolkit (from NVIDIA's repository), then run"
            " `sudo nvidia-ctk runtime configure --runtime=docker` and"
            " `sudo systemctl restart docker`.",
        )
    if "podman" in usable and not devices:
        makes = "nvidia-ctk" in around.programs
        first = "" if makes else "Install nvidia-container-toolkit (NVIDIA's repository). "
        yield Problem(
            severity="limits",
            code="cdi",
            text="podman finds NVIDIA GPUs by CDI, and there is no specification",
            fix=f"{first}Run `sudo nvidia-ctk cdi generate --output={CDI_FILE}`.",
        )
