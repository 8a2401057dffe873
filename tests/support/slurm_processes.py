"""Finding and killing what a node of a test's Slurm cluster runs.

Nodes share one machine. slurmstepd leaves its slurmd's process tree and overwrites its environment,
but keeps the node's log open; a job's processes carry Slurm's variables wherever they went.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_SECONDS = 20.0


def of_node(cluster: str, node: str, log: Path) -> set[int]:
    """Return the jobs' processes on a node and those that supervise them, without slurmd."""
    marks = {f"SLURM_CLUSTER_NAME={cluster}".encode(), f"SLURMD_NODENAME={node}".encode()}
    roots = {
        pid
        for pid in _pids()
        if (_title(pid).startswith(b"slurmstepd") and log in _open_files(pid))
        or marks <= set(_read(pid, "environ").split(b"\0"))
    }
    return roots | descendants(roots)


def descendants(pids: Iterable[int]) -> set[int]:
    """Return all children of processes, and theirs."""
    children: dict[int, set[int]] = {}
    for pid in _pids():
        # After the command, which is in parentheses: the state and the parent.
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            children.setdefault(int(fields[1]), set()).add(pid)
    reached: set[int] = set()
    pending = list(pids)
    while pending:
        new = children.get(pending.pop(), set()) - reached
        reached |= new
        pending.extend(new)
    return reached


def kill(pids: set[int]) -> None:
    """Kill processes all at once, and wait until they are gone, or are somebody's to wait for.

    They are stopped first: slurmstepd would report the end of a job that is killed before it.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    deadline = time.monotonic() + _SECONDS
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise RuntimeError(f"survived SIGKILL: {sorted(pids)}")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs: one that only waits to be waited for does not."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _title(pid: int) -> bytes:
    return Path(_read(pid, "cmdline").partition(b"\0")[0].decode(errors="replace")).name.encode()


def _open_files(pid: int) -> set[Path]:
    links = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links.add(entry.readlink())
    return links


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended
        return b""
