"""Parse what Slurm's programs print. Pure.

All of it is by formats that name the fields, which Slurm has had since version 17; `--json` differs
from release to release. Names come from administrators, reasons from anybody: both are bounded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from envbuilder.core import decoding
from envbuilder.core.errors import ToolError
from envbuilder.core.text import printable
from envbuilder.fleet.model import LONGEST_REASON, JobId, Node, Resource, natural
from envbuilder.fleet.scheduler import JobState, Phase
from envbuilder.fleet.slurm.script import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envbuilder.fleet.model import Outcome

NODE_FORMAT = "%N|%T|%f|%G|%E"
"""sinfo: name, state, features, generic resources, reason (which may hold anything)."""
JOB_FORMAT = "%i|%T|%o|%r"
"""squeue: id, state, path of the script (which holds no |), reason."""
MOST_NODES = 20_000
"""Slurm itself is known to run with 15,000 or so."""

_MARKS = "*~#!%$@^-+"
"""Slurm's marks behind a node's state; * means that the node does not respond."""
_USABLE = frozenset(
    (
        *("idle", "mixed", "allocated", "completing", "planned", "reserved"),
        *("powered_down", "powering_down", "powering_up", "power_up"),
    )
)
_SILENT = "the job ended and reported nothing; is its folder shared?"
_BY_SCHEDULER = "ended by the scheduler"
JOB_STATES: dict[str, tuple[Phase, Outcome, str]] = {
    # Of a job that is not there in the end, the outcome is not used.
    "PENDING": ("waiting", "broken", ""),
    "REQUEUED": ("waiting", "broken", ""),
    "REQUEUE_FED": ("waiting", "broken", ""),
    "REQUEUE_HOLD": ("waiting", "broken", ""),
    "RESV_DEL_HOLD": ("waiting", "broken", ""),
    "SPECIAL_EXIT": ("waiting", "broken", ""),
    # It has its nodes, which may have to boot; its script has not begun.
    "CONFIGURING": ("waiting", "broken", ""),
    "POWER_UP_NODE": ("waiting", "broken", ""),
    "RUNNING": ("running", "broken", ""),
    "EXPEDITING": ("running", "broken", ""),
    "RESIZING": ("running", "broken", ""),
    "SIGNALING": ("running", "broken", ""),
    "STOPPED": ("running", "broken", ""),
    "SUSPENDED": ("running", "broken", ""),
    "UPDATE_DB": ("running", "broken", ""),
    "STAGE_OUT": ("ending", "broken", ""),
    # Also for KillWait (30 s by default) after scancel, before it is CANCELLED.
    "COMPLETING": ("ending", "broken", ""),
    "COMPLETED": ("ended", "lost", _SILENT),
    "FAILED": ("ended", "broken", ""),
    "LAUNCH_FAILED": ("ended", "broken", ""),
    "RECONFIG_FAIL": ("ended", "broken", ""),
    "BOOT_FAIL": ("ended", "killed", "the node did not boot"),
    "CANCELLED": ("ended", "killed", "cancelled, by somebody else"),
    "NODE_FAIL": ("ended", "killed", "the node failed"),
    "OUT_OF_MEMORY": ("ended", "killed", "out of memory"),
    "PREEMPTED": ("ended", "killed", "preempted by another job"),
    "REVOKED": ("ended", "killed", "revoked"),
    "DEADLINE": ("ended", "timed-out", _BY_SCHEDULER),
    "TIMEOUT": ("ended", "timed-out", _BY_SCHEDULER),
}
"""Slurm's words for the states and flags of a job ("Job state codes" of its page `squeue`) → phase,
the outcome without a result, and what the word says of the job's end."""
_UNKNOWN_STATE: tuple[Phase, Outcome, str] = ("running", "broken", "")
"""Of a newer Slurm: it is followed and, when its time is over, cancelled, like one that runs."""
_RESOURCE = re.compile(
    r"([A-Za-z0-9_.-]{1,100})(?::([A-Za-z0-9_.-]{1,100}))??(?::([0-9]{1,9})[KMGTP]?)?"
)


def nodes(text: str) -> tuple[Node, ...]:
    """Return the nodes in sinfo's output, each once, in natural order.

    Raises `ToolError` for lines that do not have the form that was asked for.
    """
    by_name: dict[str, Node] = {}
    for line in filter(None, text.splitlines()):
        node = _node(line)
        by_name.setdefault(node.name, node)
        if len(by_name) > MOST_NODES:
            raise ToolError(
                f"sinfo lists more than {MOST_NODES:,} nodes",
                "Name some of them: --nodes 'a*', or --partition NAME",
            )
    return tuple(by_name[name] for name in sorted(by_name, key=natural))


def _node(line: str) -> Node:
    fields = line.split("|", 4)
    if len(fields) < 5:
        raise _unexpected("sinfo", line)
    name, stated, features, resources, reason = fields
    state = stated.rstrip(_MARKS).lower()
    silent = "*" in stated[len(state) :]
    data = {
        "name": name,
        "state": printable(state, 40) + (", not responding" if silent else ""),
        "usable": state in _USABLE and not silent,
        "features": tuple(printable(f, 200) for f in _split(features)),
        "resources": tuple(_resources(resources)),
        "reason": printable("" if reason.strip() == "none" else reason.strip(), LONGEST_REASON),
    }
    try:
        return decoding.convert(data, Node)
    except msgspec.ValidationError as error:
        raise _unexpected("sinfo", line) from error


def _split(text: str) -> list[str]:
    return [] if text == "(null)" else [part for part in text.split(",") if part]


def _resources(text: str) -> Iterator[Resource]:
    """Yield the generic resources in a text such as `gpu:h100:8(S:0-1),nvme:2`."""
    for part in _split(re.sub(r"\([^)]*\)", "", text)):
        match = _RESOURCE.fullmatch(part)
        if match:
            yield Resource(name=match[1], type=match[2] or "", count=int(match[3] or 1))


def jobs(text: str) -> dict[str, JobState]:
    """Return the jobs in squeue's output by id."""
    states = {}
    for line in filter(None, text.splitlines()):
        fields = line.split("|", 3)
        if len(fields) < 4:
            raise _unexpected("squeue", line)
        job, word, script, reason = fields
        phase, outcome, meaning = JOB_STATES.get(word, _UNKNOWN_STATE)
        states[job] = JobState(
            job=printable(job, 100),
            phase=phase,
            word=printable(word, 40),
            outcome=outcome,
            meaning=meaning,
            reason="" if reason == "None" else printable(reason, LONGEST_REASON),
            subject=printable(script.rpartition("/")[2].removesuffix(SUFFIX), 253),
        )
    return states


def submitted(text: str) -> str:
    """Return the job's id in the output of `sbatch --parsable`: `ID` or `ID;CLUSTER`."""
    job = text.strip().partition(";")[0]
    try:
        return decoding.convert(job, JobId)
    except msgspec.ValidationError as error:
        raise _unexpected("sbatch", text) from error


def exit_code(text: str) -> str:
    """Return the exit code in the output of `scontrol show job`; empty if it has none."""
    match = re.search(r"\bExitCode=([0-9]+):([0-9]+)", text)
    if match is None:
        return ""
    return f"signal {match[2]}" if match[2] != "0" else match[1]


def given_gpus(environ: Mapping[str, str]) -> int | None:
    """Return how many GPUs a job has on its node, from the variables that Slurm sets in the job.

    None if they say nothing. `SLURM_GPUS_ON_NODE` is a number (since 20.11), `SLURM_JOB_GPUS` a
    list such as `0,2-3`.
    """
    number = environ.get("SLURM_GPUS_ON_NODE", "")
    if re.fullmatch(r"[0-9]{1,6}", number):
        return int(number)
    listed = environ.get("SLURM_JOB_GPUS", "")
    if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", listed):
        return None
    ranges = [part.split("-") for part in listed.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def _unexpected(program: str, line: str) -> ToolError:
    return ToolError(
        f"{program} printed what envbuilder cannot read: {printable(line, 100)!r}",
        "Report it with the output of: sinfo --version",
    )
