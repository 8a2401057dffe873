"""A real Slurm cluster on this machine: Debian's daemons, several nodes, everything in one folder.

Nothing of the machine's own Slurm or munge is read or written: clients find the cluster through
SLURM_CONF, its credentials come from a munged with a key and a socket of its own, and its ports are
free ones on loopback. So several clusters run side by side. Nothing accounts for jobs, as on many
small clusters: no `sacct`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import slurm_configuration as configuration, slurm_processes as processes

USER = "nobody"
"""Runs the clients and so the jobs: unprivileged, and on every Debian."""
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 60.0
"""How long a daemon or a client may take: the machine may be busy with other tests."""
# For local use: no real device has it, and opening one fails.
_FAKE_GPU_MAJOR = 240
_READY = frozenset({"idle"})
_RESUMABLE = ("drain", "down")


class SlurmCluster:
    """A cluster that runs between `with` and its end, and leaves no process and no folder."""

    def __init__(
        self,
        nodes: Sequence[configuration.Node],
        limits: configuration.Limits = configuration.Limits(),  # noqa: B008  # immutable
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._limits = limits
        # Marks the processes of its jobs.
        self._name = f"eb{secrets.token_hex(4)}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = Path()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which clients find the cluster, and no others."""
        return {
            "PATH": _PATH,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.work),
        }

    @property
    def work(self) -> Path:
        """The user's folder, where clients run."""
        return self.folder / "work"

    def __enter__(self) -> Self:
        # pytest's own folders are closed to other users, and a socket's path must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="envbuilder-slurm-"))
        try:
            self._start()
        except BaseException as error:
            for log in sorted(self.folder.glob("*.log")):
                error.add_note(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def run(
        self,
        argv: Sequence[str],
        *,
        user: bool = True,
        timeout: float = _SECONDS,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client to its end as the user, or as root, who administers the cluster."""
        return subprocess.run(
            argv,
            env={**self.environment, **(environment or {})},
            cwd=cwd or self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            **(identity(USER) if user else {}),
        )

    def state(self, node: str) -> str:
        """How `sinfo` names the state of a node: `idle`, `drained`, `down*` …"""
        return self._administer("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()

    def drain(self, node: str, reason: str = "of the test") -> None:
        """Take a node out of service: what runs there goes on, nothing new starts."""
        self._update(node, "DRAIN", f"Reason={reason}")

    def undrain(self, node: str) -> None:
        """Put a drained node back into service."""
        self._update(node, "RESUME")

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and all that runs on it, as a loss of power does.

        Slurm notices it after about two times `slurmd_timeout`, or by `declare_down`.
        """
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait(_SECONDS)
        while victims := self.processes(node):
            processes.kill(victims)

    def declare_down(self, node: str) -> None:
        """Say that a node is down, as a cluster's own monitoring does: its jobs fail at once."""
        self._update(node, "DOWN", "Reason=of the test")

    def revive_node(self, node: str) -> None:
        """Start a killed node again, and wait until it takes jobs."""
        self._start_node(node)
        self._await_ready(node)

    def processes(self, node: str) -> set[int]:
        """Return the jobs' processes on a node, and those that supervise them."""
        return processes.of_node(self._name, node, self.folder / f"slurmd-{node}.log")

    def clear(self) -> None:
        """Cancel all jobs and put every node back into service: for tests that share a cluster."""
        self._administer("scancel", "--partition=all")
        for node in self.nodes:
            if node not in self._daemons:
                self._start_node(node)
        for node in self.nodes:
            self._await_ready(node)

    def _start(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        self.work.mkdir()
        shutil.chown(self.work, USER)
        for name, text in configuration.render(
            self._name, self.folder, tuple(self.nodes.values()), self._limits
        ).items():
            (self.folder / name).write_text(text)
        for gpu in (gpu for n in self.nodes.values() for gpu in configuration.gpus(self.folder, n)):
            _make_gpu(gpu)
        self._start_munge()
        self._start_daemon("slurmctld", ("slurmctld", "-D"))
        self._await(lambda: self.run(("scontrol", "ping"), user=False).returncode == 0, "slurmctld")
        for node in self.nodes:
            self._start_node(node)
        for node in self.nodes:
            self._await_ready(node)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir()
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        files = ("socket", "key-file", "pid-file", "seed-file")
        options = (f"--{file}={folder}/{file.removesuffix('-file')}" for file in files)
        self._start_daemon("munged", ("munged", "--foreground", *options), **identity("munge"))
        self._await((folder / "socket").is_socket, "munged")

    def _start_node(self, node: str) -> None:
        self._start_daemon(node, ("slurmd", "-D", "-N", node))

    def _start_daemon(self, name: str, argv: tuple[str, ...], **options: Any) -> None:
        with (self.folder / f"{name}.err.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                # It ends with the tests even where these are killed.
                ("setpriv", "--pdeathsig", "KILL", *argv),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is for the tests
                **options,
            )

    def _stop(self) -> None:
        # slurmctld has a child that runs scripts.
        victims = processes.descendants(child.pid for child in self._daemons.values())
        for child in self._daemons.values():
            child.kill()
            child.wait(_SECONDS)
        self._daemons.clear()
        processes.kill(victims)
        for node in self.nodes:
            while victims := self.processes(node):
                processes.kill(victims)
        shutil.rmtree(self.folder)

    def _await_ready(self, node: str) -> None:
        def ready() -> bool:
            state = self.state(node)
            if state.startswith(_RESUMABLE):
                # Refused if it has come back by itself since.
                self.run(("scontrol", "update", f"NodeName={node}", "State=RESUME"), user=False)
            return state in _READY

        self._await(ready, f"{node} to be idle")

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            for name, child in self._daemons.items():
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended with {child.returncode}")
            if time.monotonic() > deadline:
                nodes = self.run(("sinfo", "--Node", "--long"), user=False).stdout
                raise RuntimeError(f"waited {_SECONDS:g} s in vain for {what}:\n{nodes}")
            time.sleep(0.05)

    def _update(self, node: str, state: str, *more: str) -> None:
        self._administer("scontrol", "update", f"NodeName={node}", f"State={state}", *more)

    def _administer(self, *argv: str) -> str:
        done = self.run(argv, user=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout


def identity(user: str) -> dict[str, Any]:
    """Return the options of `subprocess` that make a process a user's."""
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def unsupported() -> str:
    """Return why no cluster can run here; empty if one can."""
    if os.geteuid() != 0:
        return "its daemons need root"
    absent = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            _make_gpu(Path(folder) / "gpu")
        except OSError as error:
            return f"no device can be made for its GPUs: {error}"
    return ""


def _make_gpu(path: Path) -> None:
    """Make a device that nothing drives: Slurm takes only a device for a GPU."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(_FAKE_GPU_MAJOR, 0))
