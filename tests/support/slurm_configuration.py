"""The configuration of a Slurm cluster whose nodes share this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Below what the kernel gives to outgoing connections.
_PORTS = range(20_000, 32_000)
# Nodes are what the file says, whatever this machine has. KillWait is between SIGTERM and SIGKILL.
# With ReturnToService=2 a late answer of a killed node undoes that it was declared down.
# Time limits are looked at every 30 s, however short: that is fixed in slurmctld.
_SLURM = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=1
SlurmdTimeout={limits.slurmd_timeout}
MessageTimeout=5
MinJobAge={limits.min_job_age}
KillWait=2
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime={limits.max_minutes} State=UP
"""


class Node(NamedTuple):
    """A node of the cluster; `gres` is like `gpu:cuda:1`."""

    name: str
    features: tuple[str, ...] = ()
    gres: str = ""


class Limits(NamedTuple):
    """What the cluster waits for, and how long it remembers."""

    slurmd_timeout: int = 5
    """A node that has not answered for so many seconds is down, some seconds later."""
    min_job_age: int = 300
    """Seconds for which a job is listed after its end; Slurm's default."""
    max_minutes: int = 60
    """The partition's longest job."""


def render(cluster: str, folder: Path, nodes: Sequence[Node], limits: Limits) -> dict[str, str]:
    """Return the files of the cluster's folder by name, with ports that are free now."""
    host = socket.gethostname().partition(".")[0]
    port, *ports = _free_ports(1 + len(nodes))
    pairs = zip(nodes, ports, strict=True)
    return {
        "slurm.conf": _SLURM.format(
            cluster=cluster,
            host=host,
            port=port,
            folder=folder,
            limits=limits,
            nodes="\n".join(_node(node, host, node_port) for node, node_port in pairs),
        ),
        "gres.conf": "".join(_gres(node, folder) for node in nodes if node.gres),
    }


def gpus(folder: Path, node: Node) -> Iterator[Path]:
    """Yield the devices that stand for a node's GPUs."""
    count = int(node.gres.rpartition(":")[2]) if node.gres else 0
    return (folder / f"gpu-{node.name}-{number}" for number in range(count))


def _node(node: Node, host: str, port: int) -> str:
    options = f" Feature={','.join(node.features)}" if node.features else ""
    options += f" Gres={node.gres}" if node.gres else ""
    return (
        f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        f" CPUs=2 RealMemory=4000{options}"
    )


def _gres(node: Node, folder: Path) -> str:
    kind, model, _ = node.gres.split(":")
    files = ",".join(map(str, gpus(folder, node)))
    return f"NodeName={node.name} Name={kind} Type={model} File={files}\n"


def _free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(_PORTS)
        with socket.socket() as tried:
            try:
                tried.bind(("0.0.0.0", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
