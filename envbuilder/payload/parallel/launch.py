"""Start ranks, alone or with torchrun, and end every one of them whatever happens."""

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
from ..machine import importing
from ..report import CheckError
from . import ranks, shares
from .agreement import Ended

if TYPE_CHECKING:
    import argparse

PATIENCE = 3.0
"""Seconds that a process gets to end by itself before it is killed."""

QUICK_STEPS, CPU_STEPS, DEVICE_STEPS = 15, 60, 500
"""Timed steps: a second or more, so that the start of a block does not count."""


def run(options: argparse.Namespace, indices: Sequence[int], index: Optional[int]) -> Ended:
    """Start one device's rank alone, or all by torchrun (``index`` None), and wait for the end."""
    with TemporaryDirectory(prefix="envbuilder-") as folder:
        return _run_in(Path(folder), options, indices, index)


def _run_in(
    folder: Path, options: argparse.Namespace, indices: Sequence[int], index: Optional[int]
) -> Ended:
    world = 1 if index is not None else len(indices)
    arguments = [
        "--promise",
        options.start.text(),
        "parallel-rank",
        "--device",
        options.device,
        "--data",
        str(options.data),
    ]
    arguments += ["--folder", str(folder), "--steps", str(_steps(options))]
    arguments += ["--limit", str(options.limit), "--shares", str(len(indices))]
    command = [*_program(), *arguments]
    if index is not None:
        command += ["--index", str(index)]
    else:
        # Port 0 picks a free port; two verifications at once would collide on a fixed one.
        command = [
            *(*start.python("-m", "torch.distributed.run"), "--nnodes", "1"),
            *("--nproc-per-node", str(world), "--max-restarts", "0", "--local-addr", "127.0.0.1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "verify"),
            *("--no-python", *command),
        ]
    sharing = len(indices) if options.device == "cpu" else world
    environment = shares.environment_for(
        options.device, indices if index is None else [index], sharing, os.environ, sys.platform
    )
    log = folder / "output"
    with ranks.hold(folder), log.open("wb") as stream:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            preexec_fn=ranks.end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        try:
            code: Optional[int] = child.wait(options.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _stop(child, folder, world)
    output = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(output)
    return Ended(
        code,
        output,
        [_json(folder / f"rank-{n}.result.json") for n in range(world)],
        [_json(folder / f"rank-{n}.state.json") for n in range(world)],
        [_content(folder / f"rank-{n}.gradients") for n in range(world)],
        [_content(folder / f"rank-{n}.weights") for n in range(world)],
        options.limit,
    )


def _steps(options: argparse.Namespace) -> int:
    if options.steps is not None:
        return int(options.steps)
    usual = CPU_STEPS if options.device == "cpu" else DEVICE_STEPS
    return QUICK_STEPS if options.quick and options.device == "cpu" else usual


def _program() -> List[str]:
    """Return the command that started this payload: a file, or a module of a checkout."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return start.python("-m", PACKAGE)
    return start.python(str(started.absolute()))


def _stop(child: subprocess.Popen[bytes], folder: Path, world: int) -> None:
    """End torchrun and every remaining rank. torchrun alone would give them half a minute."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
    for number in range(world):
        process = _json(folder / f"rank-{number}.state.json").get("pid")
        if isinstance(process, int) and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    if child.poll() is None:
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()  # the kernel then ends its ranks (``ranks.end_with_parent``)
    child.wait()


def _json(path: Path) -> Dict[str, Any]:
    try:
        value = json.loads(_content(path) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def count(accelerator: str, limit: float) -> int:
    """Return how many devices torch sees here, as counted by a separate process."""
    importing.require_nodes(accelerator)
    command = [*_program(), "probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise CheckError(f"torch did not count the devices within {limit:g} s") from None
    try:
        facts = json.loads(done.stdout)
        return int(facts["count"][accelerator])
    except (ValueError, KeyError, TypeError) as error:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise CheckError(f"the devices cannot be counted: {last[0]}") from error
