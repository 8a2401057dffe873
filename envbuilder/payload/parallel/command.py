"""The commands ``parallel``, ``parallel-node`` and ``parallel-rank``: options, and the start."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Optional, Tuple

from ..machine.accelerators import ACCELERATORS
from . import meeting, shares

LIMIT = 600
"""Seconds for each device alone, and for all together; most of it is room for slow starts."""


def add_parallel(commands: Any) -> None:
    """Add the commands to the command line."""
    parallel = commands.add_parser(
        "parallel", help="train on each device alone, then on all together", allow_abbrev=False
    )
    parallel.add_argument("--devices", type=_devices, help="all (the default), or 0,1,…")
    node = commands.add_parser(
        "parallel-node", help="one node's part of a parallel on several", allow_abbrev=False
    )
    node.add_argument("--nodes", required=True, type=positive, help="how many take part")
    node.add_argument("--node-rank", required=True, type=index, help="number of this one, from 0")
    node.add_argument("--node-name", required=True, type=meeting.name, help="its name in messages")
    node.add_argument("--master-address", required=True, help="where the others reach node 0")
    node.add_argument("--master-port", required=True, type=positive, help="a free port there")
    node.add_argument("--folder", required=True, type=Path, help="a folder that all nodes see")
    node.add_argument("--attempt", required=True, type=meeting.name, help="the same on all nodes")
    for command in (parallel, node):
        command.add_argument("--run-id", default="", help="returned with the report")
        command.add_argument("--quick", action="store_true", help="fewer steps on the CPU")
    rank = commands.add_parser("parallel-rank", help="one process of parallel", allow_abbrev=False)
    rank.add_argument("--folder", required=True, type=Path, help="where it writes its results")
    rank.add_argument("--alive", required=True, type=Path, help="where its starter holds a lock")
    rank.add_argument("--shares", required=True, type=positive, help="parts of the CPU's cores")
    rank.add_argument("--index", type=index, help="the part to take; by default the rank's number")
    rank.add_argument("--seed", type=int, default=1)
    for command in (parallel, node, rank):
        command.add_argument("--device", required=True, choices=ACCELERATORS)
        command.add_argument("--data", required=True, type=Path)
        command.add_argument("--steps", type=positive, help="timed steps on each rank")
        command.add_argument(
            "--limit", type=positive, default=LIMIT, help="seconds per part; of a node: in all"
        )


def run(options: argparse.Namespace) -> int:
    """Run one of them and return the exit code."""
    from . import ranks

    if options.command == "parallel-rank":
        return ranks.main(options)
    from .. import events
    from . import node, parallel

    out = events.Events(events.take_stdout(), options.run_id)
    if options.command == "parallel-node":
        # A starter that was killed cannot end it, and the other nodes would wait for it in vain.
        ranks.end_with_parent()
        report = node.measure(options, out)
    else:
        report = parallel.measure(options, out)
    out.report(report)
    return 0 if report["status"] == "passed" else 5


def index(text: str) -> int:
    """Parse a device's number, from 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def positive(text: str) -> int:
    """Parse an integer from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _devices(text: str) -> Optional[Tuple[int, ...]]:
    try:
        return shares.parse(text)
    except shares.ChoiceError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
