"""One node's part of a training on several: each device alone, then all ranks of all nodes.

Every node runs this once, and sees the folder that all of them share. Each attempt has a folder of
its own there, so that no file of an earlier one is taken for a result. In it, every node makes a
folder with one file, written anew at each stage by one rename, and every rank leaves its results:
what is compared never passed through the network under test. Node 0 judges them as those of one
machine (``parallel``).

torchrun joins the ranks at node 0's address, with fixed numbers. Its store listens on all
interfaces of node 0 (torch 2.13); c10d's rendezvous would use the same store, and number the nodes
in the order in which they come.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import hashlib
import ipaddress
import json
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..machine import facts, threads
from ..report import FAILED, PASSED, CheckError
from . import launch, ranks, shares
from .agreement import Ended, check_ended
from .parallel import Scaling, run_alone, run_together

if TYPE_CHECKING:
    from ..events import Events

INTERVAL = 0.5
"""Seconds between two looks at the folder."""

PATIENCE = 90.0
"""Seconds for which node 0 waits for the others' last files after its own ranks have ended.

NFS clients may take a minute to see a new file (``acdirmax``).
"""

TAIL = 8192
"""Characters of torchrun's last output that a node passes on: its summary of failed ranks."""

SIOCGIFCONF = 0x8912
RECORD_SIZE = 40
"""Linux's request for the IPv4 addresses of all interfaces, and its ``struct ifreq``."""

_ALIKE = {"count": "number of devices", "torch": "version of torch", "payload": "envbuilder"}
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def measure(options: argparse.Namespace, out: Events) -> Dict[str, Any]:
    """Do this node's part; return the report of all on node 0, of this node's part on others.

    No child outlives the call. It lasts at most the limit, on node 0 a little longer: ``PATIENCE``.
    """
    part = _Part(options, out)
    try:
        report = part.run()
    except BaseException as error:
        part.end(type(error).__name__)
        raise
    part.end("; ".join(report["reasons"]) or "ended")
    return report


class Folder:
    """The folder of an attempt of ``nodes`` nodes, as seen by node ``number``.

    A node's file says what it is and what its devices did alone, and ``ended``: how its part did.
    """

    def __init__(self, shared: Path, attempt: str, nodes: int, number: int) -> None:
        self.path = shared / f"attempt-{attempt}"
        self.nodes = nodes
        self.number = number
        self.written: Dict[str, Any] = {}
        """What this node's file contains."""

    def join(self) -> None:
        """Make this node's folder; raise CheckError if this attempt already has such a node."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._file(self.number).parent.mkdir()
        except FileExistsError:
            raise CheckError(
                f"node {self.number} has taken part in {self.path.name} before: each attempt needs"
                " a name of its own, and each of its nodes a number"
            ) from None

    def leave(self, **content: Any) -> None:
        """Add to this node's file."""
        self.written.update(content)
        ranks.write(self._file(self.number), json.dumps(self.written).encode())

    def look(self) -> List[Dict[str, Any]]:
        """Return the content of each node's file, empty if it is missing."""
        # NFS remembers for a while that a file was missing; to list its folder helps.
        with suppress(OSError):
            os.listdir(self.path)  # noqa: PTH208
        return [launch.read(self._file(number)) for number in range(self.nodes)]

    def gather(self, until: float) -> List[Dict[str, Any]]:
        """Wait for the files of all nodes until a time of the monotonic clock.

        Raises CheckError if a node does not come in time, or has ended before.
        """
        while True:
            nodes = self.look()
            missing = [number for number, node in enumerate(nodes) if "devices" not in node]
            if not missing:
                return nodes
            over = [number for number in missing if nodes[number].get("ended")]
            if over:
                reasons = [f"node {n}: {nodes[n]['ended'].get('reason')}" for n in over]
                raise CheckError("; ".join(reasons))
            if time.monotonic() >= until:
                raise CheckError(f"{listed(missing)} did not arrive within the limit")
            time.sleep(INTERVAL)

    def await_ends(self, until: float) -> List[Dict[str, Any]]:
        """Wait until every node has ended, or until a time; return how, empty if unknown."""
        while True:
            ends = [node.get("ended", {}) for node in self.look()]
            if all(ends) or time.monotonic() >= until:
                return ends
            time.sleep(INTERVAL)

    def given_up(self) -> List[int]:
        """Return the other nodes that have ended otherwise than with all of their work done."""
        failed = []
        for number, node in enumerate(self.look()):
            end = node.get("ended")
            if end and end.get("returncode") != 0 and number != self.number:
                failed.append(number)
        return failed

    def _file(self, number: int) -> Path:
        return self.path / f"node-{number}" / "node.json"


class _Part:
    """The state of this node's part."""

    def __init__(self, options: argparse.Namespace, out: Events) -> None:
        self.options = options
        self.out = out
        self.until = time.monotonic() + options.limit
        self.folder = Folder(options.folder, options.attempt, options.nodes, options.node_rank)
        self.scaling = Scaling(options.device)
        self.joined = False
        self.ended: Dict[str, Any] = {}

    def run(self) -> Dict[str, Any]:
        """Go through the stages until one fails; return the report."""
        check = self.scaling.checks.run
        scaling = self.scaling
        self.out.phase("count devices")
        if not check("devices", self._join):
            return scaling.report()
        for index in self.indices:
            self.out.phase(f"device {index} alone")
            run_alone(scaling, index, partial(launch.run, self._limited(), self.indices, index))
        self.out.phase("meet the other nodes")
        if not check("nodes", self._meet) or scaling.report()["status"] == FAILED:
            return scaling.report()
        self.out.phase(f"{self.world} ranks together")
        if self.folder.number == 0:
            run_together(scaling, self._all_together)
            # The small files of the ranks stay and tell what happened.
            with suppress(OSError):
                for path in self.folder.path.iterdir():
                    if path.suffix in {".gradients", ".weights"}:
                        path.unlink()
        else:
            check("ranks", self._ours)
        return scaling.report()

    def end(self, reason: str) -> None:
        """Tell the other nodes, if they know of this one, that its part is over, and why."""
        if self.joined:
            with suppress(OSError):
                self.folder.leave(ended={"reason": reason, **self.ended})

    def _join(self) -> Tuple[str, str]:
        """Take part in the attempt, and count this node's devices."""
        device = self.options.device
        shares.require(device, None)
        self.folder.join()
        self.joined = True
        # On the CPU, a node has one rank with all of its cores.
        self.indices: Tuple[int, ...] = (0,)
        if device != "cpu":
            count = launch.count(device, self._limited().limit)
            self.indices = shares.choose(device, None, count)
        return PASSED, f"{len(self.indices)} on this node"

    def _meet(self) -> Tuple[str, str]:
        """Wait for the other nodes; require that they are alike, and decide where they meet."""
        options = self.options
        count = len(self.indices)
        self.folder.leave(
            name=options.node_name,
            machine=machine(),
            address=resolve(options.master_address),
            count=count,
            torch=facts.installed("torch"),
            payload=_digest(Path(sys.argv[0])),
            devices=self.scaling.devices,
        )
        self.nodes = self.folder.gather(self.until)
        check_alike(self.nodes)
        self.world = count * options.nodes
        if self.world > shares.MOST_RANKS:
            raise CheckError(f"{self.world} ranks: up to {shares.MOST_RANKS} can train together")
        self.address = meeting_point(self.nodes)
        self.local = local_address(self.address)
        self.network = variables(self.local, os.environ)
        if self.folder.number == 0:
            self.scaling.ranks = self.world
            self.scaling.devices = merged(self.nodes)
        used = ", ".join(sorted(set(self.network.values())))
        names = ", ".join(str(node["name"]) for node in self.nodes)
        return PASSED, f"{names}: {count} each; they meet at {self.address} through {used}"

    def _together(self) -> Ended:
        """Run this node's ranks, and keep how they ended."""
        folder = self.folder
        group = launch.Group(
            rendezvous={
                "nnodes": str(folder.nodes),
                "node_rank": str(folder.number),
                "master_addr": self.address,
                "master_port": str(self.options.master_port),
                "local_addr": self.local,
            },
            network=self.network,
            first=len(self.indices) * folder.number,
            folder=folder.path,
            given_up=lambda: bool(folder.given_up()),
        )
        ended = launch.run(self._limited(), self.indices, group=group)
        self.ended = {"returncode": ended.returncode, "output": ended.output[-TAIL:]}
        return ended

    def _ours(self) -> Tuple[str, str]:
        """Run this node's ranks, and judge how they ended."""
        ended = self._together()
        gave_up = self.folder.given_up()
        if ended.returncode is None and gave_up:
            ended.gone = [f"stopped, because {listed(gave_up)} did not finish"]
        return check_ended(ended)

    def _all_together(self) -> Ended:
        """Run this node's ranks, wait for the other nodes' end, and collect all results."""
        limit = self._together().limit
        self.folder.leave(ended=self.ended)
        ends = self.folder.await_ends(time.monotonic() + PATIENCE)
        code = exit_code([end.get("returncode") for end in ends])
        everyone = range(self.world)
        ended = launch.collect(self.folder.path, everyone, code, joined_output(ends), limit)
        each = [self.nodes[rank // len(self.indices)] for rank in everyone]
        ended.nodes = [str(node["name"]) for node in each]
        for result, node in zip(ended.results, each):  # noqa: B905 - Python 3.8
            if result:
                result.update(node=node["name"], machine=node["machine"])
        ended.gone = [
            f"node {n} ({self.nodes[n]['name']}) is gone: it did not report its end"
            for n, end in enumerate(ends)
            if not end
        ]
        return ended

    def _limited(self) -> argparse.Namespace:
        """Return the options with the time that is left as the limit."""
        left = max(1, int(self.until - time.monotonic()))
        return argparse.Namespace(**{**vars(self.options), "limit": left})


def listed(numbers: Sequence[int]) -> str:
    """Return nodes by their numbers: ``node 1``, ``nodes 1, 2``."""
    plural = "s" if len(numbers) > 1 else ""
    return f"node{plural} {', '.join(map(str, numbers))}"


def machine(boot: Path = _BOOT) -> str:
    """Return what tells this machine from others: host names may be equal, or differ in one."""
    return threads.read_text(boot).strip() or socket.gethostname()


def check_alike(nodes: Sequence[Dict[str, Any]]) -> None:
    """Raise CheckError if the nodes have one name, or differ in what must be equal on all."""
    if len({node["name"] for node in nodes}) < len(nodes):
        raise CheckError("two nodes have the same name")
    for key, what in _ALIKE.items():
        if len({node[key] for node in nodes}) > 1:
            each = ", ".join(f"{node['name']}: {node[key]}" for node in nodes)
            raise CheckError(f"the nodes differ in their {what}: {each}")


def merged(nodes: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Return the devices of all nodes, each with its node and with its rank's number as index."""
    devices: List[Dict[str, Any]] = []
    for node in nodes:
        for device in node["devices"]:
            devices.append({**device, "index": len(devices), "node": node["name"]})
    return devices


def exit_code(codes: Sequence[Any]) -> Any:
    """Return the exit code of all nodes' parts: the first failure, else None if any has none."""
    failed = [code for code in codes if code]
    if failed:
        return failed[0]
    return None if None in codes else 0


def joined_output(ends: Sequence[Dict[str, Any]]) -> str:
    """Return what all torchruns printed, last that of the first which failed by itself."""
    failed = [end for end in ends if end.get("returncode")]
    others = [end for end in ends if end not in failed]
    return "\n".join(str(end.get("output", "")).strip() for end in [*others, *reversed(failed)])


def _digest(program: Path) -> str:
    """Return the beginning of the sha256 of the packed payload; of a checkout, a fixed word."""
    if program.suffix != ".pyz":
        return "a checkout"
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]


# ---- where they meet, and through which interface


def resolve(host: str) -> str:
    """Return the first address of a host; raise OSError if it has none."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def meeting_point(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return where to meet: the first address of node 0, as nodes resolved it, that is no loopback.

    Debian gives a host's own name a loopback address (127.0.1.1), so node 0 may resolve its name to
    an address that is useless to the others; then theirs is taken.
    """
    addresses = [node["address"] for node in nodes]
    outward = [a for a in addresses if not ipaddress.ip_address(a).is_loopback]
    if not outward and len({node["machine"] for node in nodes}) > 1:
        raise CheckError(
            f"node 0's address is {addresses[0]} on every node, a loopback address: use a name or"
            " an address of node 0 that the others can reach"
        )
    return str([*outward, *addresses][0])


def local_address(address: str) -> str:
    """Return the address of this node from which packets to another one are sent; send none.

    Raises OSError if there is no route.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # connecting UDP only asks the kernel for the route
        return str(probe.getsockname()[0])


def variables(local: str, outside: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that bind ranks to the interface with a local address.

    gloo and NCCL would take the first interface that looks usable: gloo that of the host's own
    name, which is often loopback. A node's rank then waits for the others in vain. Variables that
    the user set stay as they are.
    """
    stated = {key: outside[key] for key in launch.INTERFACE_VARIABLES if outside.get(key)}
    used = next((interface for held, interface in interfaces() if held == local), "")
    if not used and len(stated) < len(launch.INTERFACE_VARIABLES):
        raise CheckError(
            f"no network interface has the address {local}, from which node 0 is reached: set"
            f" {' and '.join(launch.INTERFACE_VARIABLES)}"
        )
    return {**dict.fromkeys(launch.INTERFACE_VARIABLES, used), **stated}


def interfaces(ipv6: Path = Path("/proc/net/if_inet6")) -> Iterator[Tuple[str, str]]:
    """Yield each address of this machine with the name of its interface (Linux only)."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        buffer = array.array("B", bytes(RECORD_SIZE << 10))
        address, length = buffer.buffer_info()
        answer = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iL", length, address))
        for first in range(0, struct.unpack("iL", answer)[0], RECORD_SIZE):
            record = buffer[first : first + RECORD_SIZE].tobytes()
            yield socket.inet_ntoa(record[20:24]), record[:16].partition(b"\0")[0].decode()
    for line in threads.read_text(ipv6).splitlines():
        packed, *_, interface = line.split()
        yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed)), interface
