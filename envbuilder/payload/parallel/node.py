"""One node's part of a training on several: each device alone, then all ranks of all nodes.

Every node runs this once. The nodes meet in a folder that all of them see (``meeting``), which also
takes the ranks' results, so that what is compared never passed through the network under test. Node
0 judges them as those of one machine (``parallel``).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from ..report import FAILED, PASSED, CheckError
from . import launch, meeting, network, shares
from .agreement import Ended, check_ended
from .parallel import Scaling, run_alone, run_together

if TYPE_CHECKING:
    from ..events import Events

PATIENCE = 90.0
"""Seconds for which node 0 waits for the others' last files after its own ranks have ended.

NFS clients may take a minute to see a new file (``acdirmax``).
"""

TAIL = 8192
"""Characters of torchrun's last output that a node passes on: its summary of failed ranks."""

_ALIKE = {"devices": "number of devices", "torch": "version of torch", "payload": "envbuilder"}


def measure(options: argparse.Namespace, out: Events) -> Dict[str, Any]:
    """Do this node's part; return the report of all on node 0, of this node's part on others.

    No child outlives the call. It lasts at most the limit, on node 0 a little longer: ``PATIENCE``.
    """
    job = _Job(options, out)
    try:
        report = job.run()
    except BaseException as error:
        job.leave(type(error).__name__)
        raise
    job.leave("; ".join(report["reasons"]) or "ended")
    return report


class _Job:
    """The state of this node's part."""

    def __init__(self, options: argparse.Namespace, out: Events) -> None:
        self.options, self.out = options, out
        self.until = time.monotonic() + options.limit
        self.meeting = meeting.Meeting(
            options.folder, options.attempt, options.nodes, options.node_rank
        )
        self.scaling = Scaling(options.device)
        self.joined = False
        self.ended: Dict[str, Any] = {}

    def run(self) -> Dict[str, Any]:
        """Go through the stages until one fails; return the report."""
        check, scaling = self.scaling.checks.run, self.scaling
        self.out.phase("meet the other nodes")
        if not check("nodes", self._meet):
            return scaling.report()
        for index in self.indices:
            self.out.phase(f"device {index} alone")
            run_alone(scaling, index, partial(launch.run, self._limited(), self.indices, index))
        self.out.phase("wait for the other nodes")
        if not check("each alone", self._wait_for_speeds) or scaling.report()["status"] == FAILED:
            return scaling.report()
        self.out.phase(f"{self.world} ranks together")
        if self.meeting.number == 0:
            run_together(scaling, self._all_together)
            self._discard()
        else:
            check("ranks", self._ours)
        return scaling.report()

    def leave(self, reason: str) -> None:
        """Tell the other nodes, if they know of this one, that its part is over, and why."""
        if self.joined:
            with suppress(OSError):
                self.meeting.leave(meeting.ENDED, {"reason": reason, **self.ended})

    def _meet(self) -> Tuple[str, str]:
        """Join the other nodes; require that they are alike, and decide where they meet."""
        options = self.options
        shares.require(options.device, None)
        self.meeting.join()
        self.joined = True
        devices = 1
        if options.device != "cpu":
            count = launch.count(options.device, self._left())
            devices = len(shares.choose(options.device, None, count))
        self.meeting.leave(
            meeting.JOINED,
            {
                "name": options.node_name,
                "machine": meeting.machine(),
                "address": network.resolve(options.master_address),
                "devices": devices,
                "torch": _torch_version(),
                "payload": _digest(Path(sys.argv[0])),
            },
        )
        self.nodes = self.meeting.gather(meeting.JOINED, self.until)
        check_alike(self.nodes)
        self.indices = tuple(range(devices))
        self.world = devices * options.nodes
        if self.world > shares.MOST_RANKS:
            raise CheckError(f"{self.world} ranks: up to {shares.MOST_RANKS} can train together")
        self.address = network.meeting_point(
            [node["address"] for node in self.nodes], [node["machine"] for node in self.nodes]
        )
        self.network = network.variables(self.address, os.environ)
        used = ", ".join(sorted(set(self.network.values())))
        names = ", ".join(str(node["name"]) for node in self.nodes)
        return PASSED, f"{names}: {devices} each; they meet at {self.address} through {used}"

    def _wait_for_speeds(self) -> Tuple[str, str]:
        """Wait until each node has run its devices alone; node 0 takes their results over."""
        self.meeting.leave(meeting.ALONE, {"devices": self.scaling.devices})
        alone = self.meeting.gather(meeting.ALONE, self.until)
        each = [node["devices"] for node in alone]
        if self.meeting.number == 0:
            self.scaling.ranks = self.world
            self.scaling.devices = merged(each, [node["name"] for node in self.nodes])
        return PASSED, f"{sum(map(len, each))} devices of {len(each)} nodes"

    def _together(self) -> Ended:
        """Run this node's ranks, and leave how they ended."""
        options, first = self.options, len(self.indices) * self.meeting.number
        group = launch.Group(
            rendezvous=(
                *("--nnodes", str(options.nodes), "--node-rank", str(options.node_rank)),
                *("--master-addr", self.address, "--master-port", str(options.master_port)),
                *("--local-addr", network.local_address(self.address)),
            ),
            network=self.network,
            first=first,
            given_up=lambda: bool(self.meeting.given_up()),
        )
        ended = launch.run_group(self._limited(), self.indices, self.meeting.folder, group)
        self.ended = {"returncode": ended.returncode, "output": ended.output[-TAIL:]}
        return ended

    def _ours(self) -> Tuple[str, str]:
        """Run this node's ranks, and judge how they ended."""
        ended = self._together()
        gave_up = self.meeting.given_up()
        if ended.returncode is None and gave_up:
            ended.gone = [f"stopped, because {meeting.listed(gave_up)} did not finish"]
        return check_ended(ended)

    def _all_together(self) -> Ended:
        """Run this node's ranks, wait for the other nodes' end, and collect all results."""
        ours = self._together()
        self.meeting.leave(meeting.ENDED, self.ended)
        ends = self.meeting.await_ends(time.monotonic() + PATIENCE)
        ended = launch.collect(
            self.meeting.folder,
            range(self.world),
            exit_code([end.get("returncode") for end in ends]),
            joined_output(ends),
            ours.limit,
        )
        count = len(self.indices)
        ended.nodes = [str(self.nodes[n // count]["name"]) for n in range(self.world)]
        for number, result in enumerate(ended.results):
            if result:
                result["node"] = ended.nodes[number]
                result["machine"] = self.nodes[number // count]["machine"]
        ended.gone = [
            f"node {n} ({self.nodes[n]['name']}) is gone: it did not report its end"
            for n, end in enumerate(ends)
            if not end
        ]
        return ended

    def _discard(self) -> None:
        """Remove the large files of the ranks; the small ones stay and tell what happened."""
        for pattern in ("rank-*.gradients", "rank-*.weights"):
            for path in self.meeting.folder.glob(pattern):
                with suppress(OSError):
                    path.unlink()

    def _left(self) -> float:
        return max(1.0, float(self.until - time.monotonic()))

    def _limited(self) -> argparse.Namespace:
        """Return the options with the time that is left as the limit."""
        return argparse.Namespace(**{**vars(self.options), "limit": int(self._left())})


def check_alike(nodes: Sequence[Dict[str, Any]]) -> None:
    """Raise CheckError if the nodes have one name, or differ in what must be equal on all."""
    if len({node["name"] for node in nodes}) < len(nodes):
        raise CheckError("two nodes have the same name")
    for key, what in _ALIKE.items():
        if len({node[key] for node in nodes}) > 1:
            each = ", ".join(f"{node['name']}: {node[key]}" for node in nodes)
            raise CheckError(f"the nodes differ in their {what}: {each}")


def merged(devices: Sequence[Sequence[Any]], names: Sequence[str]) -> List[Dict[str, Any]]:
    """Return the devices of all nodes, each with its node and with its rank's number as index."""
    pairs = [(names[n], device) for n, each in enumerate(devices) for device in each]
    return [{**device, "index": n, "node": name} for n, (name, device) in enumerate(pairs)]


def exit_code(codes: Sequence[Any]) -> Any:
    """Return the exit code of all nodes' parts: the first failure, else None if any has none."""
    failed = [code for code in codes if code]
    return failed[0] if failed else None if None in codes else 0


def joined_output(ends: Sequence[Dict[str, Any]]) -> str:
    """Return what all torchruns printed, last that of the first which failed by itself."""
    failed = [end for end in ends if end.get("returncode")]
    others = [end for end in ends if end not in failed]
    return "\n".join(str(end.get("output", "")).strip() for end in [*others, *reversed(failed)])


def _torch_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _digest(program: Path) -> str:
    """Return the beginning of the sha256 of the packed payload; of a checkout, a fixed word."""
    if program.suffix != ".pyz":
        return "a checkout"
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]
