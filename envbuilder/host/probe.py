"""Read this machine, or a recorded tree, into a `Host`.

Everything is read once, into a snapshot. Each topic (such as the CPU or the memory) has a module
whose `read` function knows which files to read, and this module calls these functions. `decide`
uses only the snapshot, so a recorded tree gives the same result on any machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from envbuilder.core import process, types
from envbuilder.core.errors import ToolError
from envbuilder.host import accelerators, cpu, engines, memory, model
from envbuilder.host.gpus import apple, pci
from envbuilder.host.gpus.accelerator import Place
from envbuilder.host.model import Cpu, Gpu, Host, Memory, Obstacle, is_wsl1
from envbuilder.host.snapshot import (
    Reader,
    Snapshot,
    System,
    clean,
    integer,
    lines,
    version,
)

_SYSTEMS: dict[str, System] = {"linux": "linux", "darwin": "macos"}


def fetch(root: Path, *, full: bool = False) -> Snapshot:
    """Read this machine (if `root` is "/") or a recorded tree into a snapshot.

    With `full`, also run commands to obtain facts that no file contains. Otherwise, no process is
    started on Linux.
    """
    reader = Reader(root)
    system = _system(reader)
    if system == "linux":
        read_system(reader)
        cpu.read(reader)
        memory.read(reader)
        gpus = accelerators.of_gpus()
        pci.read(reader, {row.pci for row in gpus if row.pci and row.processing})
        for row in gpus:
            row.read(reader)
    elif system == "macos":
        _read_mac(reader)
    if system != "other":
        engines.read(reader, full=full)
    return reader.snapshot(system)


def _system(reader: Reader) -> System:
    if reader.live:
        return _SYSTEMS.get(sys.platform, "other")
    if (reader.root / "sysctl.txt").is_file():
        return "macos"
    if any((reader.root / name).is_dir() for name in ("proc", "sys", "dev")):
        return "linux"
    return "other"


def host(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, *, full: bool = False
) -> Host:
    """Return the host described by a recorded tree, or this machine if `root` is "/".

    A recorded tree contains `proc/`, `sys/`, `dev/`, `nvml.json` and `sysctl.txt`. No process is
    started on Linux, unless `full` requests facts that only commands report. `environ` defaults to
    this process's environment, or to an empty one for a recorded tree.
    """
    taken = fetch(root, full=full)
    if environ is None:
        environ = os.environ if taken.live else {}
    return decide(taken, environ)


# Another host than this machine


def target(path: Path | None, *, full: bool = False) -> Host:
    """Return the host described in the file `path`, or this machine if `path` is None.

    The file contains the output of `detect --json`. This makes it possible to build environments on
    machines without the target hardware. The host's notes then mention the file. With `full`, also
    run commands to obtain facts about this machine that no file contains. Raise `InvalidError` if
    the file is invalid.
    """
    if path is None:
        return host(full=full)
    selected = model.read(path)
    note = f"this is the host of {path}, not this machine"
    return replace(selected, notes=(note, *selected.notes))


# What the host is, from a snapshot


# Cgroups of containers, not those of the engines' own services ("/system.slice/docker.service").
_CONTAINER = re.compile(
    r"docker[-/][0-9a-f]{12}|buildkit|kubepods|cri-containerd|crio-|libpod-[0-9a-f]|nerdctl-|/lxc[/.](?!monitor)"
)
_MANAGERS = ("run/systemd/container", "run/host/container-manager")
_SIGNS = (".dockerenv", "run/.containerenv", ".singularity.d", "var/run/secrets/kubernetes.io")
# What managers set the variable `container` to; users may have a variable of that name, too.
_NAMES = frozenset({"docker", "podman", "oci", "lxc", "lxc-libvirt", "systemd-nspawn", "rkt"})
_LIBCS = frozenset({"glibc", "musl"})
_MUSL = ("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1")
_GLIBC = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
_DRIVERS_OF_WINDOWS = 1 << 14
"""Maximum number of Windows driver packages to read under WSL. Windows has about a thousand, and
AMD's are at the end of the list."""


def read_system(reader: Reader) -> None:
    """Read the kernel, the distribution and the C library, and look for signs of a container."""
    for path in ("proc/version", "proc/sys/kernel/osrelease", "etc/os-release", *_MANAGERS):
        reader.file(path)
    for path in _SIGNS:
        reader.exists(path)
    if reader.live:
        try:
            reader.files["libc.txt"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (AttributeError, ValueError, OSError):  # not glibc
            reader.absent.add("libc.txt")
    else:
        reader.file("libc.txt")
    if not reader.files.get("libc.txt"):
        for path in (*_MUSL, *_GLIBC):
            reader.exists(path)
    reader.folder("dev")
    reader.folder("usr/lib/wsl/drivers", _DRIVERS_OF_WINDOWS)


def decide(snapshot: Snapshot, environ: Mapping[str, str]) -> Host:
    """Return the host that a snapshot describes."""
    if snapshot.system == "macos":
        return _mac(snapshot)
    if snapshot.system == "other":
        subject = "this system" if snapshot.live else "the recorded tree (no proc/, no sysctl.txt)"
        return Host(
            os="other",
            machine=snapshot.machine or "unknown",
            notes=(f"Nothing could be read: {subject} is neither Linux nor macOS.",),
        )
    return _linux(snapshot, environ)


def _linux(snapshot: Snapshot, environ: Mapping[str, str]) -> Host:
    machine = cpu.machine(snapshot)
    processor = cpu.linux(snapshot)
    wsl = any(
        "microsoft" in snapshot.text(path).lower()
        for path in ("proc/version", "proc/sys/kernel/osrelease")
    )
    container = _container(snapshot, environ)
    place = Place(environ=environ, wsl=wsl, container=container)
    gpus: tuple[Gpu, ...] = ()
    if not is_wsl1(_kernel(snapshot)):
        gpus = _gpus(snapshot, place)
        gpus = (*gpus, *_unknown(snapshot, place, gpus))
    hiding = []
    others: dict[str, Any] = {}
    for row in accelerators.of_gpus():
        hiding += [name for name in row.choosing if name in environ]
        others |= row.of_host(snapshot)
    limits = (
        f"{name}={clean(environ[name]) or ''} limits which GPUs frameworks see."
        for name in dict.fromkeys(hiding)
    )
    return Host(
        os="linux",
        os_version=_distribution(snapshot),
        kernel=_kernel(snapshot),
        machine=machine,
        platform=types.container_platform(machine),
        wsl=wsl,
        container=container,
        # The vendor that Rosetta's virtual machine reports to x86_64 programs on Apple silicon.
        rosetta=processor.vendor == "VirtualApple" if processor.vendor else None,
        libc=_libc(snapshot),
        cpu=processor,
        memory=memory.decide(snapshot),
        gpus=gpus,
        containers=engines.decide(snapshot),
        notes=(*_notes(snapshot), *engines.notes(snapshot), *limits),
        **others,
    )


def _container(snapshot: Snapshot, environ: Mapping[str, str]) -> bool:
    """Return whether there is any sign that this process runs in a container.

    The cgroup "/" proves nothing, because a container may have its own cgroup namespace.
    """
    managers = {snapshot.text(path).strip() for path in _MANAGERS}
    return bool(
        any(map(snapshot.has, _SIGNS))
        or managers - {"", "wsl"}  # systemd counts WSL as a container
        or environ.get("container") in _NAMES
        or "KUBERNETES_SERVICE_HOST" in environ
        or _CONTAINER.search(snapshot.text("proc/self/cgroup"))
    )


def _libc(snapshot: Snapshot) -> str | None:
    libc = clean(snapshot.text("libc.txt"))
    if libc is not None:
        name, _, number = libc.partition(" ")
        if name in _LIBCS and (not number or version(number)):
            return libc
        return None
    # Some glibc systems also have musl's loader; then it proves nothing.
    if any(map(snapshot.has, _MUSL)) and not any(map(snapshot.has, _GLIBC)):
        return "musl"
    return None


def _gpus(snapshot: Snapshot, place: Place) -> tuple[Gpu, ...]:
    """Return the GPUs of all vendors."""
    devices = pci.devices(snapshot)
    gpus: list[Gpu] = []
    for row in accelerators.of_gpus():
        gpus += row.decide(snapshot, devices, place)
    return tuple(gpus)


def _unknown(snapshot: Snapshot, place: Place, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return an entry for each possible GPU that could not be read.

    An unreadable PCI device may be such a GPU. So may the GPU of a WSL system that does not show
    which GPU Windows has.
    """
    addresses = {gpu.bus for gpu in gpus}
    vendors = {None, *(row.pci for row in accelerators.of_gpus() if row.pci)}
    missing: list[tuple[str, Obstacle]] = [
        (f"The PCI device at {device.bus} could not be read.", "unread")
        for device in pci.devices(snapshot)
        if device.vendor in vendors and device.bus not in addresses
    ]
    # /sys/bus exists, but has no pci, as on some ARM boards.
    has_none = snapshot.has(pci.PCI) is False and snapshot.has("sys/bus") is True
    if pci.PCI not in snapshot.folders and not has_none:
        missing.append(("PCI devices could not be listed.", "unread"))
    if place.wsl and not gpus and snapshot.has("dev/dxg") is not False:
        missing.append(("WSL does not show which GPU Windows has.", "wsl"))
    return tuple(
        Gpu(vendor="unknown", name="unknown", state="unknown", detail=detail, obstacle=obstacle)
        for detail, obstacle in missing
    )


def _kernel(snapshot: Snapshot) -> str | None:
    release = clean(snapshot.text("proc/sys/kernel/osrelease"))
    match = re.match(r"Linux version (\S+)", snapshot.text("proc/version"))
    return release or (clean(match[1]) if match else None)


def _distribution(snapshot: Snapshot) -> str | None:
    for line in lines(snapshot.text("etc/os-release")):
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return clean(value.strip().strip("\"'"))
    return None


def _notes(snapshot: Snapshot) -> list[str]:
    notes = []
    for path, subject in (
        ("proc/cpuinfo", "the CPU's model and flags"),
        ("proc/self/status", "which CPUs this process may use"),
        ("proc/meminfo", "the memory"),
        (pci.PCI, "PCI devices"),
        ("dev", "device nodes"),
    ):
        if snapshot.has(path) is not True:
            reason = snapshot.unreadable.get(path, "not there")
            notes.append(f"/{path} could not be read ({reason}): {subject} may be unknown.")
    if hidden := cpu.unreadable_limit(snapshot):
        path, reason = hidden
        notes.append(f"/{path} could not be read ({reason}): there may be limits that are unknown.")
    if is_wsl1(_kernel(snapshot)):
        notes.append(
            "This is WSL 1, where no program can use a GPU. In Windows, `wsl --set-version NAME"
            " 2` turns it into WSL 2."
        )
    return notes


# What a Mac is, from `sysctl`'s `key: value` lines; untested on a real one


_SYSCTL = (
    "hw.optional.arm64",
    "sysctl.proc_translated",
    "hw.memsize",
    "hw.logicalcpu",
    "hw.physicalcpu",
    "machdep.cpu.brand_string",
    "kern.osrelease",
    "kern.osproductversion",
    "kern.hv_vmm_present",
    "iogpu.wired_limit_mb",
)


def _read_mac(reader: Reader) -> None:
    """Read the values that sysctl reports. On the live machine, this starts one process."""
    if not reader.live:
        reader.file("sysctl.txt")
        return
    try:
        # -i skips keys that are unknown to this macOS instead of failing.
        done = process.run(["/usr/sbin/sysctl", "-i", *_SYSCTL], timeout=5)
    except (ToolError, OSError) as error:
        reader.unreadable["sysctl.txt"] = str(error)
        return
    reader.files["sysctl.txt"] = done.stdout


def _mac(snapshot: Snapshot) -> Host:
    """Return the host that a macOS snapshot describes."""
    sysctl = snapshot.fields("sysctl.txt")
    notes = []
    if not sysctl:
        reason = snapshot.unreadable.get("sysctl.txt", "empty or damaged")
        notes.append(f"sysctl could not be read ({reason}), so this Mac is unknown.")
    arm = apple.is_apple_silicon(snapshot)
    translated = {"0": False, "1": True}.get(sysctl.get("sysctl.proc_translated", ""))
    machine = "unknown"
    if arm:
        machine = "arm64"
    elif sysctl:
        machine = "x86_64"
        # An Intel Mac has neither key (Apple, "About the Rosetta translation environment").
        translated = translated or False
    physical = integer(sysctl.get("hw.physicalcpu"))
    logical = integer(sysctl.get("hw.logicalcpu"))
    return Host(
        os="macos",
        os_version=clean(sysctl.get("kern.osproductversion")),
        kernel=clean(sysctl.get("kern.osrelease")),
        machine=machine,
        platform="macos/arm64" if arm else None,
        rosetta=translated,
        cpu=Cpu(
            vendor="Apple" if arm else None,
            model_name=clean(sysctl.get("machdep.cpu.brand_string")),
            logical=logical,
            physical=physical,
            threads=physical or logical,
        ),
        memory=Memory(
            total_bytes=integer(sysctl.get("hw.memsize")),
            bandwidth=apple.bandwidth(snapshot),
        ),
        gpus=_gpus(snapshot, Place()),
        containers=engines.decide(snapshot),
        notes=(*notes, *engines.notes(snapshot)),
    )
