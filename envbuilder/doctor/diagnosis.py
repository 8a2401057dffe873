"""Diagnose a host: what blocks, degrades or slows it, worst first, each problem with its fix.

Pure: the host, the profiles and the observed surroundings go in, problems come out. `accelerators`
judges the profiles; here are the problems of builds (lock, interpreter, engine, disk space,
permissions) and of speed, for which only known facts count, never unknown values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError, counted
from envbuilder.core.text import gigabytes
from envbuilder.doctor import accelerators, surroundings
from envbuilder.doctor.problem import SEVERITIES, Problem, Severity
from envbuilder.host.gpus.nvidia import CDI_FILE
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.lock import Lock, require_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Engine, Host, Memory
    from envbuilder.profiles.profile import Profile
_COMPILERS = {"g++", "c++", "clang++"}
_FULL = 2 << 30
"""Free space, in bytes, required if a lock's sizes are unknown: most profiles need more."""
_SHM = "/dev/shm"  # noqa: S108 (the mount itself is inspected)
_SMALL_SHM = 64 << 20
"""Docker's default size without --shm-size, in bytes (docs.docker.com, docker run)."""
_CORES_PER_GPU = 2
"""One core feeds a GPU's queue, one its data loader: with fewer, the GPU waits."""
_FEW_LANES = 4
"""Too few lanes for any card with its own memory, whatever maximum it reports.

NVML's maximum is that of card and slot together (nvmlDeviceGetMaxPcieLinkWidth), so a wide card in
a narrow slot already runs at its reported maximum.
"""
_BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_UNBOUND = ("", "false", "none", "disabled")


def diagnose(
    host: Host,
    candidates: Sequence[Profile],
    locks: Mapping[str, Lock | None],
    around: Around,
    requested: Profile | None = None,
    advice: Callable[[Profile, Host], str] = lambda profile, host: "",
) -> tuple[Problem, ...]:
    """Return all problems of this host, or only those that affect the requested profile.

    `advice` looks up which release would work better than a profile's.
    """
    lock = locks.get(requested.name) if requested else None
    problems = [
        *accelerators.problems(host, candidates, locks, around, requested, advice),
        *_lock(requested, lock),
        *_native(host, around, requested),
        *_shared_store(around),
        *_disks(around),
        *_engines(host, around),
        *_gpus_in_containers(host, around),
        *surroundings.problems(around.silent),
        *_channels(host.memory),
        *_quota(host, around),
        *_links(host),
        *_cores(host),
        *_shared_memory(host),
        *_binding(around),
    ]
    return tuple(sorted(problems, key=lambda p: SEVERITIES.index(p.severity)))


def _lock(requested: Profile | None, lock: Lock | None) -> Iterator[Problem]:
    if requested is None:
        return
    try:
        require_usable(requested, lock)
    except InvalidError as error:
        fix = f"Run `envbuilder lock --profile {requested.name}`."
        yield Problem(severity="blocks", code="lock", text=error.message, fix=fix)


def _native(host: Host, around: Around, requested: Profile | None) -> Iterator[Problem]:
    if around.python:
        engine = host.containers.has_engine and not around.engine
        severity: Severity = "blocks"
        if engine and any(map(makes_image, around.backends)):
            severity = "limits"
        fix = around.python_fix
        yield Problem(severity=severity, code="python", text=around.python, fix=fix)
    compiles = requested and "g++" in requested.system_packages
    if requested and compiles and around.looked and not _COMPILERS & around.programs:
        yield Problem(
            severity="limits",
            code="compiler",
            text=f"{requested.name} compiles at run time, and there is no compiler",
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
    # One usable engine is enough: access to root's podman is not needed as well.
    if not host.containers.has_engine:
        for engine in host.containers.engines:
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
    if podman:
        return "Run `systemctl --user start podman.socket` for your own."
    if "may not open" in engine.detail:
        return "Run `sudo usermod -aG docker $USER` and log in again. This amounts to root access."
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
        fix = f"Run `sudo nvidia-ctk cdi generate --output={CDI_FILE}`."
        if "nvidia-ctk" not in around.programs:
            fix = f"Install nvidia-container-toolkit (NVIDIA's repository). {fix}"
        yield Problem(
            severity="limits",
            code="cdi",
            text="podman finds NVIDIA GPUs by CDI, and there is no specification",
            fix=fix,
        )


def _slow(code: str, text: str, fix: str) -> Problem:
    return Problem(severity="slows", code=code, text=text, fix=fix)


def _channels(memory: Memory) -> Iterator[Problem]:
    used = memory.channels
    available = memory.channels_available
    if used and available and used < available:
        yield _slow(
            "memory-channels",
            f"{used} of {available} memory channels hold a module: {used / available:.0%} of the"
            " bandwidth",
            "Put a module of the same kind into each channel, as described in the board's manual.",
        )


def _quota(host: Host, around: Around) -> Iterator[Problem]:
    cpu = host.cpu
    if cpu.quota is None or cpu.affinity is None or cpu.quota >= cpu.affinity:
        return
    most = max(1, int(cpu.quota))
    # The first number of a list is that of the outermost level; libgomp ignores non-numbers.
    threads = around.variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and 0 < int(threads) <= most:
        return
    yield _slow(
        "quota",
        f"the CPU quota allows {cpu.quota:g} of {cpu.affinity} CPUs; frameworks do not see it"
        " and start a thread for each core",
        f"Run `export OMP_NUM_THREADS={cpu.threads or most}` (envbuilder does for what it runs),"
        " or start the container with --cpuset-cpus instead of --cpus.",
    )


def _links(host: Host) -> Iterator[Problem]:
    for gpu in host.gpus:
        link = gpu.link
        if gpu.state != "usable" or gpu.memory_kind == "shared" or link is None or not link.width:
            continue
        of = ""
        if link.width < (link.max_width or 0):
            of = f" of ×{link.max_width}"
        if of or link.width <= _FEW_LANES:
            yield _slow(
                "pcie",
                f"{accelerators.named(gpu)}: PCIe ×{link.width}{of}",
                "If it stays so under load: move it to the slot with the most lanes of the"
                " processor, and reseat it. Risers, M.2 drives and firmware settings take lanes,"
                " external boxes have four.",
            )


def _cores(host: Host) -> Iterator[Problem]:
    gpus = [g for g in host.gpus if g.state == "usable" and g.vendor != "apple"]
    limits = [n for n in (host.cpu.affinity, host.cpu.physical, host.cpu.quota) if n]
    if gpus and limits and min(limits) < _CORES_PER_GPU * len(gpus):
        yield _slow(
            "cores",
            f"{counted(min(limits), 'core')} for {counted(len(gpus), 'GPU')}: they wait"
            " for data to be loaded",
            f"Give it {_CORES_PER_GPU} cores per GPU, or keep the data on the GPU.",
        )


def _shared_memory(host: Host) -> Iterator[Problem]:
    size = host.memory.shm_bytes
    if size is None or size > _SMALL_SHM:
        return
    text = f"{_SHM} has {size / 2**20:g} MiB: DataLoader workers pass their batches through it"
    fix = "Start the container with --shm-size 1g or --ipc=host (envbuilder does)."
    if not host.container:
        fix = f"Run `sudo mount -o remount,size=1g {_SHM}`, or keep num_workers=0."
    yield _slow("shared-memory", text, fix)


def _binding(around: Around) -> Iterator[Problem]:
    settings = {name: around.variables.get(name, "").strip().lower() for name in _BINDING}
    names = [name for name, value in settings.items() if value not in _UNBOUND]
    if names:
        # pytorch issues 91989, 99625, 101850: the importing process is bound to its first core.
        yield _slow(
            "binding",
            f"{', '.join(names)} can put all DataLoader workers on one core",
            f"Run `unset {' '.join(names)}`, unless you measured that it helps.",
        )
