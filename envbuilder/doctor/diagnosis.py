"""Diagnose a host: list the problems that block, degrade or slow it, each with its fix.

The code has no side effects: it takes the host, the profiles and the observed surroundings, and
returns problems. The module `accelerators` judges the profiles. This module contains the other
checks, one for each row of `CHECKS`. Some of them concern builds: the lock, interpreter, engine,
disk space and permissions. Others concern speed, and these rely only on known facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import gigabytes
from envbuilder.doctor import accelerators
from envbuilder.doctor.problem import SEVERITIES, Problem, Severity
from envbuilder.host.gpus.nvidia import CDI_FILE
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.lock import require_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from envbuilder.doctor.surroundings import Case
    from envbuilder.host.model import Engine, Host

_COMPILERS = {"g++", "c++", "clang++"}
_FULL = 2 << 30
"""Required free space in bytes if a lock does not state sizes. Most profiles need more."""
_SHM = "/dev/shm"  # noqa: S108 (the mount itself is inspected)
_SMALL_SHM = 64 << 20
"""The size in bytes of the shared memory that Docker provides without --shm-size (docs.docker.com,
docker run)."""


def diagnose(case: Case) -> tuple[Problem, ...]:
    """Return the host's problems, worst first.

    If a profile was requested, return only the problems that affect this profile.
    """
    problems: list[Problem] = []
    for check in CHECKS:
        problems += check(case)
    return tuple(sorted(problems, key=lambda p: SEVERITIES.index(p.severity)))


def _lock(case: Case) -> Iterator[Problem]:
    if case.requested is None:
        return
    name = case.requested.name
    try:
        require_usable(case.requested, case.locks.get(name))
    except InvalidError as error:
        yield Problem(
            severity="blocks",
            code="lock",
            text=error.message,
            fix=f"Run `envbuilder lock --profile {name}`.",
        )


def _python(case: Case) -> Iterator[Problem]:
    around = case.around
    if around.python:
        engine = case.host.containers.has_engine and not around.engine
        severity: Severity = "blocks"
        if engine and any(map(makes_image, around.backends)):
            severity = "limits"
        yield Problem(severity=severity, code="python", text=around.python, fix=around.python_fix)


def _compiler(case: Case) -> Iterator[Problem]:
    requested = case.requested
    compiles = requested and "g++" in requested.system_packages
    if requested and compiles and case.around.looked and not any(map(case.around.has, _COMPILERS)):
        yield Problem(
            severity="limits",
            code="compiler",
            text=f"{requested.name} compiles at run time, but there is no compiler",
            fix="Install one (Debian, Ubuntu: `sudo apt install g++`; Fedora: `sudo dnf install"
            " gcc-c++`), or use --backend docker.",
        )


def _folders(case: Case) -> Iterator[Problem]:
    for folder in case.around.closed:
        yield Problem(
            severity="blocks",
            code="folder",
            text=f"{folder} cannot be written to",
            fix="Set ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to folders you can write to.",
        )


def _shared_store(case: Case) -> Iterator[Problem]:
    if case.around.shared_store:
        yield Problem(
            severity="limits",
            code="shared-store",
            text=case.around.shared_store,
            fix=(
                "Report this to the store's administrator (docs/guides/shared-store.md explains"
                " the permissions). Until then, set ENVBUILDER_SHARED_STORE= (empty) to build"
                " without the store."
            ),
        )


def _altered(case: Case) -> Iterator[Problem]:
    for text in case.around.altered:
        yield Problem(
            severity="limits",
            code="altered",
            text=text,
            fix=(
                "Run `envbuilder build` in its project, or remove the environment with"
                " `envbuilder clean`."
            ),
        )


def _disks(case: Case) -> Iterator[Problem]:
    for room in case.around.rooms:
        needed = room.needed or _FULL
        if room.free < needed:
            yield Problem(
                severity="blocks",
                code="disk",
                text=f"{room.folder}: {gigabytes(room.free)} free, {gigabytes(needed)} needed",
                fix=(
                    "Free some space (`envbuilder clean`), or set ENVBUILDER_CACHE_DIR and"
                    " ENVBUILDER_DATA_DIR to folders on a larger disk."
                ),
            )


def _engines(case: Case) -> Iterator[Problem]:
    host = case.host
    # One usable engine is enough: access to root's podman is not needed as well.
    if not host.containers.has_engine:
        for engine in host.containers.engines:
            yield Problem(
                severity="limits",
                code="engine",
                text=f"{engine.socket}: {engine.detail.rstrip('.')}",
                fix=f"{_engine_fix(engine, host)} `--backend venv` needs no engine.",
            )
    if case.around.engine:
        yield Problem(
            severity="limits", code="engine", text=case.around.engine, fix=case.around.engine_fix
        )


def _engine_fix(engine: Engine, host: Host) -> str:
    podman = "podman" in engine.socket
    if engine.state == "unknown":
        return f"To see why, run `{'podman' if podman else 'docker'} version`."
    if podman:
        return "Run `systemctl --user start podman.socket` to start your own podman."
    if "may not open" in engine.detail:
        return "Run `sudo usermod -aG docker $USER` and log in again. This amounts to root access."
    if host.os == "macos" or host.wsl:
        return "Start Docker Desktop, or your other container engine."
    return "Run `sudo systemctl start docker`."


def _gpus_in_containers(case: Case) -> Iterator[Problem]:
    host = case.host
    usable = {e.name for e in host.containers.engines if e.state == "usable"}
    if not case.around.looked or host.wsl:
        return  # Docker Desktop has its own GPU support
    if not any(g.vendor == "nvidia" and g.state == "usable" for g in host.gpus):
        return
    if any(device.startswith("nvidia") for device in case.around.devices):
        return
    if "docker" in usable and not host.containers.runtimes:
        yield Problem(
            severity="limits",
            code="gpu-runtime",
            text="containers cannot reach the NVIDIA GPU: no GPU runtime and no CDI device",
            # docs.nvidia.com/datacenter/cloud-native/container-toolkit, installation guide
            fix="Install nvidia-container-toolkit (from NVIDIA's repository), then run"
            " `sudo nvidia-ctk runtime configure --runtime=docker` and"
            " `sudo systemctl restart docker`.",
        )
    if "podman" in usable:
        fix = f"Run `sudo nvidia-ctk cdi generate --output={CDI_FILE}`."
        if not case.around.has("nvidia-ctk"):
            fix = f"Install nvidia-container-toolkit (NVIDIA's repository). {fix}"
        yield Problem(
            severity="limits",
            code="cdi",
            text="podman finds NVIDIA GPUs through CDI, but there is no CDI specification",
            fix=fix,
        )


def _quota(case: Case) -> Iterator[Problem]:
    cpu = case.host.cpu
    if cpu.quota is None or cpu.affinity is None or cpu.quota >= cpu.affinity:
        return
    most = max(1, int(cpu.quota))
    # The first number of a list is that of the outermost level; libgomp ignores non-numbers.
    threads = case.around.variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and 0 < int(threads) <= most:
        return
    yield Problem(
        severity="slows",
        code="quota",
        text=(
            f"the CPU quota allows {cpu.quota:g} of {cpu.affinity} CPUs, but frameworks ignore it"
            " and start a thread per core"
        ),
        fix=(
            f"Run `export OMP_NUM_THREADS={cpu.threads or most}` (envbuilder sets it for its own"
            " commands), or start the container with --cpuset-cpus instead of --cpus."
        ),
    )


def _shared_memory(case: Case) -> Iterator[Problem]:
    size = case.host.memory.shm_bytes
    if size is None or size > _SMALL_SHM:
        return
    text = f"{_SHM} has {size / 2**20:g} MiB, too little for the batches of DataLoader workers"
    fix = "Start the container with --shm-size 1g or --ipc=host (envbuilder does this)."
    if not case.host.container:
        fix = f"Run `sudo mount -o remount,size=1g {_SHM}`, or keep num_workers=0."
    yield Problem(severity="slows", code="shared-memory", text=text, fix=fix)


def _shadowing(case: Case) -> Iterator[Problem]:
    for text in case.around.shadowing:
        yield Problem(
            severity="limits",
            code="shadowing",
            text=text,
            fix=(
                "Unset the variable or remove the folder from it, in your shell's start-up file"
                " or the loaded module that sets it."
            ),
        )


CHECKS: list[Callable[[Case], Iterable[Problem]]] = [
    accelerators.problems,
    _lock,
    _python,
    _compiler,
    _folders,
    _shared_store,
    _altered,
    _disks,
    _engines,
    _gpus_in_containers,
    _quota,
    _shared_memory,
    _shadowing,
]
"""All checks. To add a check, write a function in this module and add it to this list. If the check
needs to know more about this machine than programs and variables, add a field to `Around` and let
`surroundings.look` fill that field."""
