"""Run a package's build backend, sealed off from the machine. Nothing of envbuilder is imported.

A copy of this file runs in the scratch folder, in two steps. `seal` enters namespaces of its own: a
file system that holds the system's programs and libraries, read-only, and the scratch folder; no
network, not even loopback; no other processes; a user without rights. In there, it starts `hook`,
which calls the backend as PEP 517 has it. Where the kernel has no such namespaces for this user,
`seal` ends with `UNSEALED`, and has run nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

UNSEALED = 97
"""Exit status of `seal` where the kernel does not allow it."""
FOLDER = "/build"
"""The scratch folder, as the build sees it."""
_USER = 1000
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr", "nix", "gnu")
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "passwd",
    "group",
    "localtime",
    "os-release",
    "nsswitch.conf",
    "hosts",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "mounts": 0x00020000,
}
_READ_ONLY = 1
_NO_SUID = 2
_NO_DEVICES = 4
_NO_PROGRAMS = 8
_REMOUNT = 32
_BIND = 4096
_RECURSIVE = 16384
_PRIVATE = 1 << 18
_MOUNT_SETATTR = 442
_HERE = -100
_AT_RECURSIVE = 0x8000
_DETACH = 2
_DEATH_SIGNAL = 1
_NO_NEW_RIGHTS = 38
_MOST_BYTES = 16 << 30
"""Maximum bytes of a file that a package's build writes."""


def seal(scratch: str, visible: list[str], argv: list[str]) -> None:
    """Run `argv` in namespaces, and end with its status; `visible`: more folders that it sees."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        uid = os.geteuid()
        gid = os.getegid()
        _require(libc.unshare(sum(_NAMESPACES.values())))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{_USER} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{_USER} {gid} 1")
        reading, writing = os.pipe()
        child = os.fork()  # the first process of a namespace: all others end with it
        if not child:
            os.close(reading)
            _inside(libc, scratch, visible, argv, writing)
        os.close(writing)
        entered = os.read(reading, 1)
        status = os.waitpid(child, 0)[1]
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"no namespaces: {error}\n")
        sys.exit(UNSEALED)
    if not entered:
        sys.exit(UNSEALED)
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _inside(
    libc: ctypes.CDLL, scratch: str, visible: list[str], argv: list[str], writing: int
) -> None:
    """Enter the file system of the build, say so, and become `argv`."""
    try:
        libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _enter(_Mounts(libc, f"{scratch}/root"), scratch, visible)
        libc.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
    except BaseException as error:
        sys.stderr.write(f"no namespaces: {error}\n")
        sys.stderr.flush()
        os._exit(UNSEALED)
    try:
        os.write(writing, b"1")
        os.execv(argv[0], argv)  # noqa: S606 (no shell is meant)
    finally:
        os._exit(1)


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Mounts:
    """What is mounted below a new root."""

    def __init__(self, libc: ctypes.CDLL, root: str) -> None:
        self.libc = libc
        self.root = root

    def mount(
        self, source: str | None, target: str, kind: str = "", flags: int = 0, options: str = ""
    ) -> None:
        """Mount, as the system call does."""
        texts = [text.encode() if text else None for text in (source, target, kind, options)]
        _require(self.libc.mount(texts[0], texts[1], texts[2], flags, texts[3]))

    def bind(self, path: str) -> None:
        """Show a file or a folder at its own path, read-only."""
        target = Path(self.root + path)
        if Path(path).is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        self.mount(path, str(target), flags=_BIND | _RECURSIVE)
        attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SUID, 0, 0, 0)
        encoded = str(target).encode()
        size = ctypes.sizeof(attributes)
        if self.libc.syscall(
            _MOUNT_SETATTR, _HERE, encoded, _AT_RECURSIVE, ctypes.byref(attributes), size
        ):
            # Before Linux 5.12: only this mount, whose other restrictions must stay.
            kept = _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
            flags = os.statvfs(target).f_flag & kept
            self.mount(None, str(target), flags=flags | _REMOUNT | _BIND | _READ_ONLY)


def _enter(mounts: _Mounts, scratch: str, visible: list[str]) -> None:
    """Make the new file system, and make it the root."""
    root = mounts.root
    mount = mounts.mount
    mount(None, "/", flags=_PRIVATE | _RECURSIVE)
    mount("tmpfs", root, "tmpfs", options="size=4m,mode=755")
    for path in (Path("/", name) for name in _SYSTEM):
        if path.is_symlink():
            Path(root + str(path)).symlink_to(path.readlink())
        elif path.exists():
            mounts.bind(str(path))
    for name in (*(f"/etc/{name}" for name in _ETC), *visible):
        if Path(name).exists() and not Path(root + name).exists():
            mounts.bind(name)
    Path(root, "dev", "shm").mkdir(parents=True)
    for name in _DEVICES:
        Path(root, "dev", name).touch()
        mount(f"/dev/{name}", f"{root}/dev/{name}", flags=_BIND)
    mount("tmpfs", str(Path(root, "dev", "shm")), "tmpfs", options="size=256m")
    Path(root, "dev/fd").symlink_to("/proc/self/fd")
    Path(root, "proc").mkdir()
    with contextlib.suppress(OSError):  # some containers forbid it: then there is none
        mount("proc", f"{root}/proc", "proc")
    Path(root + FOLDER).mkdir()
    mount(scratch, root + FOLDER, flags=_BIND | _RECURSIVE)
    Path(root, "tmp").symlink_to(Path(FOLDER, "tmp"))
    mounts.libc.sethostname(b"build", 5)
    os.chdir(root)
    _require(mounts.libc.pivot_root(b".", b"."))
    _require(mounts.libc.umount2(b".", _DETACH))
    mount(None, "/", flags=_REMOUNT | _BIND | _READ_ONLY)
    os.chdir(FOLDER)


def hook(
    name: str, folder: str, backend: str, paths: list[str], result: str, arguments: list[str]
) -> None:
    """Call a hook of the backend in the source's folder, and write what it returns.

    `paths` are those of an in-tree backend. A hook that it does not have returns nothing.
    """
    os.umask(0o022)
    os.chdir(folder)
    sys.path[0:1] = [str(Path(path).absolute()) for path in paths]
    module, _, attributes = backend.partition(":")
    target = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        target = getattr(target, attribute)
    called = getattr(target, name, None)
    value = called(*arguments) if called else None
    Path(result).write_text(json.dumps(value), encoding="utf-8")


def main() -> None:
    """Do a step: `seal SPECIFICATION` or `hook SPECIFICATION`, in JSON."""
    seals = sys.argv[1] == "seal"
    specification = json.loads(sys.argv[2])
    try:
        (seal if seals else hook)(**specification)
    except SystemExit as error:
        if isinstance(error.code, int) and (error.code or seals):
            raise
        sys.stderr.write(f"{error.code or 'it exits without a result'}\n")
        sys.exit(1)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
