"""One rank of a data-parallel training: a process with one device, or with its share of the CPU.

A rank trains the real network in DistributedDataParallel, with 64 images per step and rank, and
writes its results to files in a folder. The results are not sent as messages, so that the compared
data does not pass through the collectives under test. Without torchrun's variables, the rank runs
alone and uses neither DistributedDataParallel nor collectives.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from .. import origins
from ..machine import clock, device, hardware
from ..machine.accelerators import ACCELERATORS, device_of
from ..numerics import arithmetic, numerics
from ..training import dataset, eager, model
from . import shares

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ..interface import Tensors

BLOCKS = 5
"""Timed blocks of steps; their median counts, since other processes may disturb some of them."""

WARM_UP = 3
BATCHES = 32
"""Batches of each rank that stay on the device and are used in turn."""

PR_SET_PDEATHSIG = 1
ALIVE = "alive"
"""Name of the file that the payload keeps locked."""


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent exits for any reason (Linux only).

    torchrun starts each rank in a session of its own, so a signal to torchrun's process group does
    not reach the ranks.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def hold(folder: Path) -> Any:
    """Lock a file in the folder, and return the open file.

    The lock lasts until this process ends or the file is closed.
    """
    stream = (folder / ALIVE).open("wb")
    fcntl.flock(stream, fcntl.LOCK_EX)
    return stream


def _end_with_payload(folder: Path) -> None:
    """End this process as soon as the process that holds the lock in this folder is gone.

    The kernel's signal alone is not enough, because a parent may die before the signal is
    requested.
    """
    try:
        with (folder / ALIVE).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
    except OSError:
        # Without the file or its folder, the payload has already cleaned up.
        pass
    os._exit(1)


@dataclass(frozen=True)
class Rank:
    """The number of this rank, the number of ranks in total, and the folder for the results."""

    number: int
    world: int
    folder: Path

    def phase(self, name: str) -> None:
        """Record the phase that this rank begins, and its process id.

        The process id is used to end the rank.
        """
        self.leave("state.json", json.dumps({"pid": os.getpid(), "phase": name}).encode())

    def leave(self, name: str, content: bytes) -> None:
        """Write one of this rank's files atomically."""
        path = self.folder / f"rank-{self.number}.{name}"
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(path)


def main(options: argparse.Namespace) -> int:
    """Run as a rank and return the exit code. The results are written to the rank's files."""
    end_with_parent()
    threading.Thread(target=_end_with_payload, args=(options.folder,), daemon=True).start()
    rank = Rank(
        int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), options.folder
    )
    rank.phase("start")
    try:
        result = _work(rank, options)
    except Exception as error:
        failure = {"error": f"{type(error).__name__}: {error}", "time": time.time()}
        rank.leave("result.json", json.dumps(failure).encode())
        raise
    # Before teardown: a crash there says nothing about the work.
    rank.leave("result.json", json.dumps(result).encode())
    if rank.world > 1:
        import torch

        # In this order, and after all ranks have arrived: ranks that left while another one still
        # held its network have occasionally aborted.
        torch.distributed.barrier()
        gc.collect()
        torch.distributed.destroy_process_group()
        rank.phase("end")
    return 0


def _work(rank: Rank, options: argparse.Namespace) -> Dict[str, Any]:
    accelerator = options.device
    where = ""
    if accelerator == "cpu":
        share = int(os.environ.get("LOCAL_RANK", "0")) if options.index is None else options.index
        cpus = shares.split(shares.fetch_cores(), options.shares)[share]
        where = f"CPUs {','.join(map(str, cpus))}" if shares.pin(cpus) else ""
    rank.phase(device.PHASE)
    device.require_nodes(accelerator)
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if accelerator != "cpu":
        device.require_build(torch, accelerator)
        ACCELERATORS[accelerator].module(torch).set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device.require_usable(torch, accelerator)
    tensors = eager.tensors(torch, dataset.load(options.data).train, accelerator)
    if rank.world > 1:
        rank.phase("meet the other ranks")
        # Longer than the limit after which the launcher reports the phase of each rank.
        torch.distributed.init_process_group(
            ACCELERATORS[accelerator].collective, timeout=timedelta(seconds=2 * options.limit)
        )
    rank.phase("compare gradients")
    worst, error = _prove(torch, rank, accelerator, tensors)
    seconds, steps, loss = _train(torch, rank, options, tensors)
    origins.require(options.start)
    return {
        "pid": os.getpid(),
        "name": hardware.cpu_name()
        if accelerator == "cpu"
        else _properties(torch, accelerator).name,
        "device": where if accelerator == "cpu" else _identity(torch, accelerator),
        "threads": torch.get_num_threads(),
        "gradient": worst,
        "gradient_error": error if math.isfinite(error) else None,
        "gradient_tolerance": numerics.GRADIENT_TOLERANCE["float32"],
        "block_steps": steps,
        "block_seconds": seconds,
        "loss": loss if math.isfinite(loss) else None,
    }


def _properties(torch: Any, accelerator: str) -> Any:
    module = ACCELERATORS[accelerator].module(torch)
    return module.get_device_properties(module.current_device())


def _identity(torch: Any, accelerator: str) -> str:
    """Return this device's UUID or, if it has none, its index among the visible devices."""
    uuid = getattr(_properties(torch, accelerator), "uuid", None)
    if uuid is not None:
        return f"UUID {uuid}"
    place = ACCELERATORS[accelerator].module(torch).current_device()
    return f"{os.environ.get(ACCELERATORS[accelerator].visible, '')} #{place}"


def _wrapped(torch: Any, rank: Rank, accelerator: str, net: Any) -> Any:
    """Return the network, wrapped in DistributedDataParallel if there are other ranks."""
    if rank.world == 1:
        return net
    module = ACCELERATORS[accelerator].module
    place = None if accelerator == "cpu" else [module(torch).current_device()]
    return torch.nn.parallel.DistributedDataParallel(net, device_ids=place)


def _prove(torch: Any, rank: Rank, accelerator: str, tensors: Tensors) -> Tuple[str, float]:
    """Run one backward pass over this rank's part of a joined batch, and write the gradients.

    The gradients are written to a file. Rank 0 also compares them with those that one process
    computes over the joined batch, eagerly, in float64, on the CPU. It returns the parameter that
    differs most and its relative error. The other ranks return an error of 0, because their
    gradients are compared with those of rank 0. There is no dropout, because it differs between
    ranks.
    """
    form = model.fastest(accelerator)
    net = numerics.network(torch, form).to(device_of(accelerator))
    joined = eager.batches(tensors, rank.world)
    images, labels = joined[rank.number]
    call = _wrapped(torch, rank, accelerator, net)
    ours = numerics.backward(torch, net, call, model.arrange(torch, images, form), labels)
    rank.leave("gradients", eager.floats(torch, list(ours.gradients.values())))
    if rank.number > 0:
        return "", 0.0
    single = numerics.network(torch, model.PUBLISHED).double()
    together = torch.cat([images for images, _ in joined]).cpu().double()
    exact = numerics.backward(
        torch, single, single, together, torch.cat([labels for _, labels in joined]).cpu()
    )
    errors = {
        name: arithmetic.relative_error(ours.gradients[name], exact.gradients[name])
        for name in exact.gradients
    }
    return max(errors.items(), key=lambda pair: pair[1])


def _train(
    torch: Any, rank: Rank, options: argparse.Namespace, tensors: Tensors
) -> Tuple[List[float], int, float]:
    """Train as ``verify`` does. Return the seconds of each block, its steps, and the last loss.

    A block is a sequence of steps that are timed together. All blocks have the same number of
    steps.
    """
    accelerator = options.device
    form = model.fastest(options.device)
    job = eager.prepare(torch, accelerator, form, options.seed)
    job.model = _wrapped(torch, rank, accelerator, job.model)
    job.model.train()
    # Dropout must differ between ranks; the initial weights are equal.
    torch.manual_seed(options.seed + rank.number)
    mine = eager.batches(tensors, BATCHES * rank.world)[rank.number :: rank.world]
    mine = [(model.arrange(torch, images, form), labels) for images, labels in mine]
    batches = itertools.cycle(mine)

    def steps(count: int) -> Any:
        for _ in range(count):
            loss = eager.step(job, *next(batches))
        return loss

    rank.phase("warm up")
    steps(WARM_UP)
    each = max(1, options.steps // BLOCKS)
    seconds = []
    for number in range(BLOCKS):
        rank.phase(f"train: block {number + 1} of {BLOCKS}")
        if rank.world > 1:
            torch.distributed.barrier()
        spent, loss = clock.timed(job.wait, partial(steps, each))
        seconds.append(spent)
    rank.phase("leave")
    rank.leave("weights", eager.floats(torch, list(job.model.parameters())))
    return seconds, each, float(loss)
