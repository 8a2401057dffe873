"""A program that asks, in a container, what it may do there.

It needs the standard library alone, and prints one line of JSON.
"""

from __future__ import annotations

PROBE = r"""
import ctypes, errno, json, os, resource, stat, subprocess, sys

FOLDERS = "/ /etc /opt /opt/env /usr/bin /data /questions /proc/sys/kernel".split()

def text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""

def tried(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def write(folder):
    path = os.path.join(folder, "envbuilder-probe")
    with open(path, "w"):
        pass
    os.unlink(path)

def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)

status = dict(l.split(":", 1) for l in text("/proc/self/status").splitlines() if ":" in l)
mounts = {l.split()[1]: l.split()[3].split(",") for l in text("/proc/self/mounts").splitlines()}
print(json.dumps({
    "capabilities": {k: int(status[k], 16) for k in status if k.startswith("Cap")},
    "no_new_privileges": int(status["NoNewPrivs"]),
    "seccomp": int(status["Seccomp"]),
    "uids": [int(i) for i in status["Uid"].split()],
    "gids": [int(i) for i in status["Gid"].split()],
    "groups": [int(i) for i in status["Groups"].split()],
    "processes": text("/sys/fs/cgroup/pids.max") or text("/sys/fs/cgroup/pids/pids.max"),
    "memory": text("/sys/fs/cgroup/memory.max")
    or text("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "read_only": [m for m in mounts if "ro" in mounts[m]],
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "home": tried(write, os.environ["HOME"]),
    "here": tried(write, "."),
    "temporary": tried(write, "/tmp"),
    "written": [folder for folder in FOLDERS if tried(write, folder) == "done"],
    "mknod": tried(os.mknod, "/tmp/node", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "setuid": tried(os.setuid, 0),
    "chown": tried(os.chown, "/tmp", 99, 99),
    "mount": tried(call, "mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "chroot": tried(os.chroot, "/tmp"),
    "sockets": [s for s in ("/run/docker.sock", "/var/run/docker.sock") if os.path.exists(s)],
    "setuid_programs": [int(subprocess.check_output([p, "-u"])) for p in sys.argv[1:]],
}))
"""
