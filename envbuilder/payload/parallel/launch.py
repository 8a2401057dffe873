"""Start ranks, alone or with torchrun, and end every one of them, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from .. import PACKAGE, start
from ..machine import device, facts
from ..report import CheckError
from . import ranks, shares
from .agreement import Ended

if TYPE_CHECKING:
    import argparse

PATIENCE = 3.0
"""Seconds that a process gets to end by itself before it is killed."""

RENDEZVOUS = {
    "nnodes": "1",
    "local_addr": "127.0.0.1",
    "rdzv_id": "verify",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "127.0.0.1:0",
}
"""How torchrun joins ranks. Port 0 picks a free port; two verifications at once would collide on a
fixed one. All traffic stays on the loopback interface, since a container may have no other."""

NETWORK = dict.fromkeys(
    ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo0" if sys.platform == "darwin" else "lo"
)
"""What gloo and NCCL (RCCL, too) read the interface's name from."""

QUICK_STEPS = 15
CPU_STEPS = 60
DEVICE_STEPS = 500
"""Timed steps: a second or more, so that the start of a block does not count."""


def run(options: argparse.Namespace, indices: Sequence[int], index: Optional[int] = None) -> Ended:
    """Run the rank of one device alone or, if ``index`` is None, all ranks with torchrun.

    Return how the ranks ended, after all of them have.
    """
    with TemporaryDirectory(prefix="envbuilder-") as folder:
        return _run_in(Path(folder), options, indices, index)


def _run_in(
    folder: Path, options: argparse.Namespace, indices: Sequence[int], index: Optional[int]
) -> Ended:
    world = 1 if index is not None else len(indices)
    command = [
        *_program(),
        "--promise",
        options.start.text(),
        "parallel-rank",
        "--device",
        options.device,
        "--data",
        str(options.data),
        "--folder",
        str(folder),
        "--steps",
        str(_steps(options)),
        "--limit",
        str(options.limit),
        "--shares",
        str(len(indices)),
    ]
    if index is not None:
        command += ["--index", str(index)]
    else:
        rendezvous = dict(RENDEZVOUS)
        if (facts.installed("torch") or "").startswith("1."):
            del rendezvous["local_addr"]  # that of torch 1 finds its own address
        command = [
            *start.python("-m", "torch.distributed.run"),
            *(f"--{name}={value}" for name, value in rendezvous.items()),
            f"--nproc_per_node={world}",
            "--max_restarts=0",
            "--no_python",
            *command,
        ]
    sharing = len(indices) if options.device == "cpu" else world
    environment = shares.environment_for(
        options.device, indices if index is None else [index], sharing, os.environ, NETWORK
    )
    log = folder / "output"
    numbers = range(world)
    with ranks.hold(folder), log.open("wb") as stream:
        code: Optional[int]
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            preexec_fn=ranks.end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        try:
            code = child.wait(options.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _stop(child, folder, numbers)
    output = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(output)
    return Ended(
        code,
        output,
        [_read(folder / f"rank-{n}.result.json") for n in numbers],
        [_read(folder / f"rank-{n}.state.json") for n in numbers],
        _contents([folder / f"rank-{n}.gradients" for n in numbers]),
        _contents([folder / f"rank-{n}.weights" for n in numbers]),
        options.limit,
    )


def _steps(options: argparse.Namespace) -> int:
    if options.steps is not None:
        return int(options.steps)
    usual = CPU_STEPS if options.device == "cpu" else DEVICE_STEPS
    return QUICK_STEPS if options.quick and options.device == "cpu" else usual


def _program() -> List[str]:
    """Return the command that started this payload, which is a file or a module of a checkout."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return start.python("-m", PACKAGE)
    return start.python(str(started.absolute()))


def _stop(child: subprocess.Popen[bytes], folder: Path, numbers: Sequence[int]) -> None:
    """End torchrun and every remaining rank.

    torchrun itself would wait half a minute for the ranks to end.
    """
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    for number in numbers:
        process = _read(folder / f"rank-{number}.state.json").get("pid")
        if isinstance(process, int) and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    if child.poll() is None:
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()  # the kernel then ends its ranks (``ranks.end_with_parent``)
    child.wait()


def _contents(paths: Sequence[Path]) -> List[bytes]:
    """Return the files' contents. Equal contents are kept in memory only once.

    The content of a missing file is empty.
    """
    held: Dict[bytes, bytes] = {}
    contents = (path.read_bytes() if path.is_file() else b"" for path in paths)
    return [held.setdefault(content, content) for content in contents]


def _read(path: Path) -> Dict[str, Any]:
    """Return the object in a JSON file, or {} if the file is missing or contains anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def count(accelerator: str, limit: float) -> int:
    """Return how many devices torch sees on this machine, as counted by a separate process.

    Raise CheckError if the process fails or takes longer than ``limit`` seconds.
    """
    device.require_nodes(accelerator)
    command = [*_program(), "count", "--device", accelerator]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise CheckError(f"torch did not count the devices within {limit:g} s") from None
    try:
        return int(done.stdout)
    except ValueError as error:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise CheckError(f"the devices cannot be counted: {last[0]}") from error
