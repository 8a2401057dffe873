"""Decide which nodes train together, and judge their results. Pure."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import counted, printable
from envbuilder.fleet.model import LONGEST_REASON, PROVEN, Entry, Group, Outcome, Promise
from envbuilder.payload.parallel.shares import MOST_RANKS
from envbuilder.verify import parallel
from envbuilder.verify.report import model

LEAST_NODES = 2


class Members(Struct, frozen=True, kw_only=True):
    """Nodes that are to train together: equal ones, as far as is known."""

    nodes: tuple[str, ...] = ()
    profile: str
    device: str = ""
    gpus: int = 0
    """How many GPUs of each of them train; 0 if it trains on its CPU, or that is not known."""

    @property
    def name(self) -> str:
        """Return a name that other nodes have not: their result is none of these."""
        digest = hashlib.sha256(",".join(self.nodes).encode()).hexdigest()[:8]
        return f"ddp-{self.profile or 'any'}-{digest}"


def alike(nodes: Iterable[tuple[str, Members, object]]) -> tuple[Members, ...]:
    """Return which nodes train together: those of a kind, two at least.

    A node comes with its kind, members without nodes, and with anything else that must be equal. No
    group has more ranks than can train together, if its nodes have few enough each; larger ones are
    divided equally. All are in the order of the nodes.
    """
    kinds: dict[tuple[Members, object], list[str]] = {}
    for node, kind, other in nodes:
        kinds.setdefault((kind, other), []).append(node)
    members: list[Members] = []
    for (kind, _), equals in kinds.items():
        members += [replace(kind, nodes=part) for part in _parts(equals, kind.gpus)]
    return tuple(members)


def proven(entries: Sequence[Entry], promises: Sequence[Promise]) -> tuple[Members, ...]:
    """Return the groups of proven nodes: equal in profile, environment, device and GPUs."""
    gpus = {promise.node: promise.gpus_to_prove for promise in promises}
    nodes = []
    for entry in entries:
        if entry.outcome in {*PROVEN, "slow"}:
            kind = Members(profile=entry.profile, gpus=gpus[entry.node], device=entry.device)
            nodes.append((entry.node, kind, (entry.backend, entry.framework)))
    return alike(nodes)


def _parts(nodes: Sequence[str], gpus: int) -> Iterator[tuple[str, ...]]:
    """Yield equal parts of the nodes, none with more ranks than can train together."""
    most = MOST_RANKS // max(1, gpus)
    count = math.ceil(len(nodes) / max(most, LEAST_NODES))
    for number in range(count):
        part = nodes[len(nodes) * number // count : len(nodes) * (number + 1) // count]
        if len(part) >= LEAST_NODES:
            yield tuple(part)


def unexamined(members: Members, outcome: Outcome, detail: str, job: str | None = None) -> Group:
    """Return a group that sent no result, with its outcome."""
    return Group(
        name=members.name,
        nodes=members.nodes,
        outcome=outcome,
        profile=members.profile,
        device=members.device,
        detail=printable(detail, LONGEST_REASON),
        job=job,
    )


def examined(members: Members, run: str, job: str, content: bytes) -> Group:
    """Judge a group by the bytes that its first node sent, which may be anything."""
    try:
        result = decoding.convert(decoding.strict_json(content), parallel.Result)
        _require_identity(result, members, parallel.attempt(run, job))
        if result.status == "failed":
            reason = "no reason is given"
            if result.reasons:
                reason = result.reasons[0]
            return unexamined(members, "failed", reason, job)
        scaling = _require_proof(result, members)
    except (ValueError, VerifyError) as error:
        message = error.message if isinstance(error, VerifyError) else str(error)
        return unexamined(members, "mixed-up", f"the result of the group: {message}", job)
    ranks = Counter(device.node for device in scaling.devices)
    if members.gpus and (short := [n for n in members.nodes if ranks[n] != members.gpus]):
        detail = f"of {counted(members.gpus, 'GPU')} each, on {short[0]} {ranks[short[0]]} trained"
        return unexamined(members, "wrong", detail, job)
    return replace(
        unexamined(members, "verified", f"{scaling.ranks} ranks in step", job),
        ranks=scaling.ranks,
        images_per_second=scaling.samples_per_second,
        efficiency=scaling.efficiency,
    )


def _require_identity(result: parallel.Result, members: Members, attempt: str) -> None:
    """Raise `VerifyError` for a result of another job, or of other nodes."""
    for key, value, expected in (
        ("attempt", result.attempt, attempt),
        ("profile", result.profile, members.profile or result.profile),
        ("number of nodes", result.nodes, len(members.nodes)),
    ):
        if value != expected:
            raise VerifyError(f"its {key} is {value}, expected {expected}")


def _require_proof(result: parallel.Result, members: Members) -> model.Scaling:
    """Return the report of a result that passed; raise `VerifyError` if it proves nothing."""
    scaling = model.check_scaling(result.scaling)
    if scaling.status != "passed":
        raise VerifyError(f"it passed, and its report says {scaling.status}")
    nodes = {device.node or "" for device in scaling.devices}
    if nodes != set(members.nodes):
        raise VerifyError(f"its devices are those of {', '.join(sorted(nodes))}")
    return scaling
