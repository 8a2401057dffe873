"""Fetch: everything detection reads, taken once. Nothing here parses or decides.

The live root is "/"; any other root is a recorded tree. There a device node is a file, and counts
as accessible where it can be read. A top-level folder that is missing (`sys` in some sandboxes,
or a tree recorded without it) tells nothing; a missing file below one that is there is absent.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Literal

from msgspec import Struct

from envbuilder.payload.threads import parse_cgroups

_LIMIT = 1 << 20
_CPUINFO_LIMIT = 4 << 20
_MOST = 1024  # entries of one folder
PCI = "sys/bus/pci/devices"
NVIDIA_VERSION = "proc/driver/nvidia/version"
LEVEL_ZERO_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
SYSCTL_KEYS = (
    "hw.optional.arm64",
    "sysctl.proc_translated",
    "hw.memsize",
    "hw.logicalcpu",
    "hw.physicalcpu",
    "machdep.cpu.brand_string",
    "kern.osrelease",
    "kern.osproductversion",
    "kern.hv_vmm_present",
)


class Snapshot(Struct, frozen=True, kw_only=True):
    """What was read, by path relative to the root."""

    live: bool
    system: Literal["linux", "macos", "other"]
    machine: str | None = None
    """What uname says, on the live machine."""
    files: dict[str, str] = {}
    folders: dict[str, tuple[str, ...]] = {}
    links: dict[str, str] = {}
    """Symbolic link → last part of its target."""
    nodes: dict[str, bool] = {}
    """Device node → may be opened."""
    absent: frozenset[str] = frozenset()
    unreadable: dict[str, str] = {}
    """Path → why it could not be read."""

    def has(self, path: str) -> bool | None:
        """Whether the path exists; None where that is unknown."""
        if path in self.files or path in self.folders or path in self.links or path in self.nodes:
            return True
        return False if path in self.absent else None


def fetch(root: Path) -> Snapshot:
    """Read the machine (`root` is "/") or a recorded tree."""
    reader = _Reader(root)
    if reader.live:
        system: Literal["linux", "macos", "other"] = "other"
        system = "linux" if sys.platform == "linux" else system
        system = "macos" if sys.platform == "darwin" else system
    else:
        linux = any((root / name).is_dir() for name in ("proc", "sys", "dev"))
        mac = (root / "sysctl.txt").is_file()
        system = "macos" if mac else "linux" if linux else "other"
    if system == "linux":
        _fetch_linux(reader)
    elif system == "macos":
        _fetch_macos(reader)
    return Snapshot(
        live=reader.live,
        system=system,
        machine=os.uname().machine if reader.live else None,
        files=reader.files,
        folders=reader.folders,
        links=reader.links,
        nodes=reader.nodes,
        absent=frozenset(reader.absent),
        unreadable=reader.unreadable,
    )


class _Reader:
    """Reads below one root and remembers what happened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root == Path("/")
        self.files: dict[str, str] = {}
        self.folders: dict[str, tuple[str, ...]] = {}
        self.links: dict[str, str] = {}
        self.nodes: dict[str, bool] = {}
        self.absent: set[str] = set()
        self.unreadable: dict[str, str] = {}

    def file(self, path: str, limit: int = _LIMIT) -> str | None:
        try:
            # Not blocking: a recorded tree may hold a pipe.
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self.unreadable[path] = "not a file"
                    return None
                text = stream.read(limit).decode("utf-8", errors="replace")
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return None
        self.files[path] = text
        return text

    def folder(self, path: str) -> tuple[str, ...]:
        try:
            names = tuple(sorted(p.name for p in (self.root / path).iterdir())[:_MOST])
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return ()
        self.folders[path] = names
        return names

    def link(self, path: str) -> None:
        try:
            self.links[path] = (self.root / path).readlink().name
        except (OSError, ValueError) as error:
            self._failed(path, error)

    def node(self, path: str) -> None:
        full = self.root / path
        try:
            mode = full.stat().st_mode
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return
        if self.live:
            self.nodes[path] = os.access(full, os.R_OK | os.W_OK)
        else:
            # The mode counts even for root, who may read everything.
            self.nodes[path] = bool(mode & 0o444) and os.access(full, os.R_OK)

    def exists(self, path: str) -> None:
        try:
            (self.root / path).stat()
        except (OSError, ValueError) as error:
            self._failed(path, error)
        else:
            self.files[path] = ""

    def _failed(self, path: str, error: OSError | ValueError) -> None:
        top, _, below = path.partition("/")
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        if missing and not (below and not (self.root / top).is_dir()):
            self.absent.add(path)
        else:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.unreadable[path] = "not there" if missing else reason or type(error).__name__


def _fetch_linux(reader: _Reader) -> None:
    for path in (
        "proc/version",
        "proc/meminfo",
        "proc/self/status",
        "proc/sys/kernel/osrelease",
        "proc/sys/kernel/arch",
        "etc/os-release",
        NVIDIA_VERSION,
    ):
        reader.file(path)
    _fetch_cpu(reader)
    _fetch_pci(reader)
    for path in (".dockerenv", "run/.containerenv"):
        reader.exists(path)
    for folder in LEVEL_ZERO_FOLDERS:
        for library in ("libze_loader.so.1", "libze_intel_gpu.so.1"):
            reader.exists(f"{folder}/{library}")
    _fetch_devices(reader)
    if not reader.live:
        reader.file("nvml.json")
    elif NVIDIA_VERSION in reader.files or "dev/dxg" in reader.nodes:
        from envbuilder.detection import nvml

        answer = nvml.ask()
        if answer is not None:
            reader.files["nvml.json"] = answer


def _fetch_devices(reader: _Reader) -> None:
    reader.folder("dev")
    for name in ("nvidiactl", "dxg", "nvmap"):
        reader.node(f"dev/{name}")
    for name in reader.folder("dev/dri"):
        if name.startswith("renderD"):
            reader.node(f"dev/dri/{name}")
    for address in reader.folder("proc/driver/nvidia/gpus"):
        reader.file(f"proc/driver/nvidia/gpus/{address}/information")
    reader.folder("usr/lib/wsl/drivers")
    reader.folder("sys/bus")


def _fetch_cpu(reader: _Reader) -> None:
    cpuinfo = reader.file("proc/cpuinfo", _CPUINFO_LIMIT)
    groups = parse_cgroups(reader.file("proc/self/cgroup") or "0::/")
    for mount, path in groups[:8]:
        parts = [p for p in path.split("/") if p][:32]
        if ".." in parts:
            parts = []
        for base in dict.fromkeys((mount, "cpu")) if mount else ("",):
            for length in range(len(parts), -1, -1):
                folder = "/".join(["sys/fs/cgroup", *filter(None, [base]), *parts[:length]])
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") if mount else ("cpu.max",):
                    reader.file(f"{folder}/{name}")
    if "core id" not in (cpuinfo or ""):  # 64-bit ARM
        for name in reader.folder("sys/devices/system/cpu"):
            if name.startswith("cpu") and name[3:].isdigit():
                reader.file(f"sys/devices/system/cpu/{name}/topology/thread_siblings_list")


def _fetch_pci(reader: _Reader) -> None:
    for address in reader.folder(PCI):
        device = f"{PCI}/{address}"
        kind = (reader.file(f"{device}/class") or "").strip().lower()
        if kind.startswith("0x") and not kind.startswith("0x03"):
            del reader.files[f"{device}/class"]
            continue
        reader.file(f"{device}/vendor")
        reader.file(f"{device}/device")
        reader.link(f"{device}/driver")
        reader.folder(f"{device}/drm")


def _fetch_macos(reader: _Reader) -> None:
    if not reader.live:
        reader.file("sysctl.txt")
        return
    from envbuilder import process
    from envbuilder.errors import ToolError

    try:
        # -i leaves out keys that this macOS does not know instead of failing.
        done = process.run(["/usr/sbin/sysctl", "-i", *SYSCTL_KEYS], timeout=5)
    except (ToolError, OSError) as error:
        reader.unreadable["sysctl.txt"] = str(error)
        return
    reader.files["sysctl.txt"] = done.stdout
