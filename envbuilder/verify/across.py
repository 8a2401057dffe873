"""One node's part of a training across nodes, in the environment of a profile.

The payload does the work (`payload.parallel.node`): each device alone, then all ranks of all nodes.
Node 0 has the report on all of them; the others report whether they did their part.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.packages import mnist
from envbuilder.payload.parallel import shares
from envbuilder.profiles.backends import makes_image
from envbuilder.verify import run, scaling, start
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.build.request import Request
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected

WHAT = "training across nodes"


class Place(Struct, frozen=True, kw_only=True):
    """A node's place among the nodes of a job.

    `folder` is one that all of them see; `attempt` is equal on all of them and used once;
    `address` and `port` are where node 0 is reached; `limit_seconds` is for the payload.
    """

    nodes: int
    number: int
    name: str
    address: str
    port: int
    folder: Path
    attempt: str
    limit_seconds: int


class Outcome(Struct, frozen=True, kw_only=True):
    """How a node's part ended, what it ran in, and on node 0 the report on all nodes."""

    status: Literal["passed", "failed"]
    reasons: tuple[str, ...]
    profile: str
    backend: str
    fingerprint: str | None
    scaling: dict[str, Any] | None


class Result(Outcome, frozen=True, kw_only=True):
    """What node 0 writes: the outcome, and which nodes' it is."""

    schema: Literal[1] = 1
    attempt: str
    nodes: int


class _Part(Struct, frozen=True, kw_only=True):
    """What node 0 alone reports more of."""

    status: Literal["passed", "failed"]
    reasons: tuple[str, ...]


def attempt(run: str, job: str) -> str:
    """Return the name of the attempt that a job of a fleet's run makes."""
    return f"{run}.{job}"


def require(place: Place) -> None:
    """Raise `InvalidError` if so many nodes cannot train together, or this is none of them."""
    if not 2 <= place.nodes <= shares.MOST_RANKS:
        raise InvalidError(f"{place.nodes} nodes: 2 to {shares.MOST_RANKS} can train together")
    if not 0 <= place.number < place.nodes:
        raise InvalidError(f"node {place.number} of {place.nodes}: they are numbered from 0")


def join(
    place: Place,
    request: Request,
    executable: Path | None,
    settings: Settings,
    progress: Progress,
    *,
    inherit: bool = False,
) -> Outcome:
    """Do this node's part, in an environment built if missing or in the interpreter `executable`.

    All nodes train on the subset that is shipped, so that none needs a download and none has other
    images. Raises `InvalidError` for a profile or a backend that cannot train across nodes.
    """
    if request.backend is not None:
        require_network(request.backend)
    elif executable is None:
        # Not the default of this machine, which may be docker.
        request = msgspec.structs.replace(request, backend="venv")
    expects, facts, start_payload = start.prepare(
        request,
        executable,
        settings,
        progress,
        inherit=inherit,
        require=lambda profile, backend, expected: require_possible(profile, expected),
    )
    data, run_id = mnist.subset().folder, run.new_run_id()

    def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments. `paths` maps folders to their paths as the payload sees them."""
        return (
            *("parallel-node", "--device", expects.device, "--data", paths["data"]),
            *("--nodes", str(place.nodes), "--node-rank", str(place.number)),
            *("--node-name", place.name, "--folder", paths["shared"], "--attempt", place.attempt),
            *("--master-address", place.address, "--master-port", str(place.port)),
            *("--limit", str(place.limit_seconds), "--run-id", run_id),
        )

    report = scaling.measure(
        lambda on_line: start_payload(arguments, {"data": data, "shared": place.folder}, on_line),
        progress,
        settings.logs_dir / f"{place.attempt}-{place.name}-payload.log",
        run_id,
        lambda report: _status(report, place),
    )
    return Outcome(
        status=report["status"],
        reasons=tuple(report["reasons"]),
        profile=facts["profile"],
        backend=facts["backend"],
        fingerprint=facts["fingerprint"],
        scaling=report if place.number == 0 else None,
    )


def require_network(backend: str) -> None:
    """Raise `InvalidError` for a backend whose environments other nodes do not reach."""
    if makes_image(backend):
        raise InvalidError(
            f"{WHAT} is not possible with the {backend} backend: its containers have a network of"
            " their own, which no other node reaches",
            "Use --backend venv.",
        )


def require_possible(profile: str, expected: Expected) -> None:
    """Raise `InvalidError` for a profile that cannot train across nodes."""
    start.require_torch(WHAT, profile, expected)
    scaling.require("all", expected.device)


def _status(report: Any, place: Place) -> str:
    """Return a payload's status; raise `VerifyError` if its report is not to be believed."""
    if place.number == 0:
        checked = model.check_scaling(report)
        covered = len({device.node for device in checked.devices})
        if checked.status == "passed" and covered != place.nodes:
            raise VerifyError(f"the report is about {covered} nodes, not {place.nodes}")
        return checked.status
    try:
        return decoding.convert(report, _Part).status
    except msgspec.ValidationError as error:
        raise VerifyError(f"the report on this node's part is malformed: {error}") from error
