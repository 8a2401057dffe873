"""A constructed machine in front of this one, for commands that look at the live one.

/sys and /proc/driver are bound over in a mount namespace of the command's own. The engine is
outside of it and passes on nodes of the real /dev: so they are made there, as /dev/null under other
names, and removed at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support import host_trees

_COVERED = """\
if [ -d /sys/fs/cgroup ]; then
    mkdir -p "$1/sys/fs/cgroup"
    mount --rbind /sys/fs/cgroup "$1/sys/fs/cgroup"
fi
mkdir -p "$1/proc/driver"
mount --bind "$1/proc/driver" /proc/driver
mount --rbind "$1/sys" /sys
shift
exec "$@"
"""
NULL = os.makedev(1, 3)
_GPUS = ("kfd", "dri", "nvidiactl")


def unsupported() -> str:
    """Why this machine cannot be covered; empty if it can."""
    if os.getuid() != 0:
        return "only root makes device nodes and mounts"
    tried = ["unshare", "--mount", "mount", "--bind", "/proc/driver", "/proc/driver"]
    if shutil.which("unshare") is None or subprocess.run(tried, check=False).returncode != 0:
        return "nothing can be mounted here"
    if any(Path("/dev", name).exists() for name in _GPUS):
        return "this machine has GPUs of its own"
    return ""


class Machine:
    """A host of `tests/data/hosts`, planted in a folder.

    In /dev it has `nodes` → their groups, and `links` → where they lead.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        nodes: Mapping[str, int],
        links: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._tree = folder / name
        self._nodes = nodes
        self._links = links
        self._tree.mkdir()
        host_trees.plant(self._tree, host_trees.load(name))

    def run(
        self, command: list[str], cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that takes this machine for the constructed one."""
        covered = ["unshare", "--mount", "sh", "-euc", _COVERED, "machine", str(self._tree)]
        with self._in_dev():
            return subprocess.run(
                [*covered, *command],
                cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
                check=False, timeout=300,
            )  # fmt: skip

    @contextlib.contextmanager
    def _in_dev(self) -> Iterator[None]:
        """Have the nodes and links in the real /dev."""
        with contextlib.ExitStack() as stack:
            for name in (*self._nodes, *self._links):
                path = Path("/dev", name)
                if not path.parent.exists():
                    path.parent.mkdir()
                    stack.callback(path.parent.rmdir)
                if name in self._links:
                    path.symlink_to(self._links[name])
                else:
                    os.mknod(path, stat.S_IFCHR | 0o660, NULL)
                stack.callback(path.unlink)
                if name in self._nodes:
                    path.chmod(0o660)
                    os.chown(path, 0, self._nodes[name])
            yield
