"""`verify --devices`: run several devices, each alone and then all together in data parallel.

The payload (`payload.parallel`) does the work and judges it, so that both are the same in a
container, a native environment and an external interpreter. This module starts it, validates its
report and merges that into the verification report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import mnist
from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError, VerifyError, printable
from envbuilder.payload.parallel import shares
from envbuilder.profiles.backends import makes_image
from envbuilder.verify import run, start
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envbuilder.builds.request import Request
    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Expected

CHECK = "several devices"
REQUIRED_ALONE = ("run", "gradients")
REQUIRED_TOGETHER = ("ranks", "own devices", "gradients equal", "gradients", "weights equal")
"""The checks of `payload.parallel` without which a report of each device, or of all together, did
not pass."""


def require(devices: str | None, accelerator: str) -> None:
    """Raise `InvalidError` (2) if `--devices` is malformed or impossible on this accelerator."""
    if devices is None:
        return
    try:
        shares.require(accelerator, shares.parse(devices))
    except shares.ChoiceError as error:
        raise InvalidError(
            f"--devices {printable(devices, 60)}: {error}",
            "Give `all`, or numbers from 0 such as 0,1; on the CPU, a number of processes.",
        ) from error


def selection(devices: str | None, accelerator: str) -> tuple[str, ...]:
    """Return arguments that make the payload's `verify` use the first requested device."""
    numbers = shares.parse(devices) if devices is not None else None
    if numbers and accelerator != "cpu":
        return ("--index", str(numbers[0]))
    return ()


def extend(
    report: dict[str, Any],
    devices: str,
    start: Callable[..., Completed],
    folder: Path,
    progress: Progress,
    log: Path,
    *,
    quick: bool,
) -> dict[str, Any]:
    """Return a payload's report with the result of several devices.

    They run only if the verification passed. `start` runs the payload, given a function for its
    arguments, the data's folder and a callback for its output lines.
    """
    if report["status"] != "passed":
        return model.with_check(
            report, CHECK, "skipped", "not run, because the verification failed"
        )
    accelerator = report["device"]["requested"]
    run_id = run.new_run_id()

    def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments. `paths` maps folders to their paths as the payload sees them."""
        options = ("--device", accelerator, "--devices", devices, "--data", paths["data"])
        return ("parallel", *options, "--run-id", run_id, *(["--quick"] if quick else []))

    requested = _requested_devices(accelerator, devices)
    scaling = measure(
        lambda on_line: start(arguments, {"data": folder}, on_line),
        progress,
        log,
        run_id,
        lambda report: check_report(report, requested).status,
    )
    return add(report, scaling)


def _requested_devices(accelerator: str, devices: str) -> tuple[int, ...] | None:
    """Return the devices that a report must cover; None if the payload enumerates them."""
    numbers = shares.parse(devices)
    if numbers is None and accelerator != "cpu":
        return None
    return shares.choose(accelerator, numbers, count=max(numbers or (0,)) + 1)


def measure(
    start: Callable[[Callable[[str], None]], Completed],
    progress: Progress,
    log: Path,
    run_id: str,
    check: Callable[[Any], str],
) -> dict[str, Any]:
    """Run the payload through `start`; return its report, or a failed one with the reason.

    `check` returns a report's status, or raises `VerifyError` for a report not to be believed.
    """
    try:
        done, report, hint = run.follow(start, run.Events(progress), progress, log, run_id)
        status = check(report)
        data = run.as_stored(report, hint)
        run.require_agreement(done, status, hint)
    except VerifyError as error:
        reason = printable(error.message)
        return {"devices": [], "ranks": 0, "status": "failed", "reasons": [reason]}
    return {key: value for key, value in data.items() if key != "schema"}


def check_report(report: Any, requested: tuple[int, ...] | None) -> model.Scaling:
    """Return a report on several devices as typed data.

    Raises `VerifyError` if it is not valid, or passed without a required check or on devices other
    than `requested`.
    """
    scaling = model.check_scaling(report)
    if scaling.status == "passed":
        _require_checks(scaling, ("devices",))
        devices = tuple(device.index for device in scaling.devices)
        if requested not in (None, devices):
            raise VerifyError(f"the report is about the devices {devices}, not {requested}")
    return scaling


def _require_checks(scaling: model.Scaling, first: tuple[str, ...] = ()) -> None:
    """Raise `VerifyError` if a passing report lacks a check that the payload always makes."""
    together = (*first, *(REQUIRED_TOGETHER if scaling.ranks > 1 else ()))
    absent = model.absent(together, scaling.checks)
    for device in scaling.devices:
        names = model.absent(REQUIRED_ALONE, device.checks)
        absent += [f"device {device.index}: {name}" for name in names]
    if absent:
        raise VerifyError(f"the payload reported passed without these checks: {', '.join(absent)}")


def add(report: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    """Return the report with the result of several devices; it fails if they failed."""
    reasons = list(map(printable, scaling.get("reasons", ())))
    if scaling["status"] != "passed":
        return {
            **model.with_check(report, CHECK, "failed", "; ".join(reasons)),
            "scaling": scaling,
            "status": "failed",
            "reasons": [*report["reasons"], *(f"{CHECK}: {reason}" for reason in reasons)],
        }
    warnings = [f"{CHECK}: {printable(warning)}" for warning in scaling.get("warnings", ())]
    return {
        **model.with_check(report, CHECK, "warning" if warnings else "passed", _sentence(scaling)),
        "scaling": scaling,
        "warnings": [*report.get("warnings", ()), *warnings],
    }


def _sentence(scaling: dict[str, Any]) -> str:
    if scaling["ranks"] == 1:
        device = scaling["devices"][0]
        return f"device {device['index']} alone; nothing to run in parallel"
    return (
        f"{scaling['ranks']} ranks ({scaling.get('backend')}) have equal gradients, the same as one"
        f" process; {100 * scaling['efficiency']:.0f} % of what the devices reach alone"
    )


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


class NodeOutcome(Struct, frozen=True, kw_only=True):
    """How a node's part ended, what it ran in, and on node 0 the report on all nodes."""

    status: Literal["passed", "failed"]
    reasons: tuple[str, ...]
    profile: str
    backend: str
    fingerprint: str | None
    scaling: dict[str, Any] | None


class Result(NodeOutcome, frozen=True, kw_only=True):
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


def join(
    place: Place,
    request: Request,
    executable: Path | None,
    settings: Settings,
    progress: Progress,
) -> NodeOutcome:
    """Do this node's part, in an environment built if missing or in the interpreter `executable`.

    All nodes train on the subset that is shipped, so that none needs a download and none has other
    images. Raises `InvalidError` for a profile or a backend that cannot train across nodes.
    """
    if request.backend is not None:
        if makes_image(request.backend):
            raise InvalidError(
                f"{WHAT} is not possible with the {request.backend} backend: its containers have"
                " a network of their own, which no other node reaches",
                "Use --backend venv.",
            )
    elif executable is None:
        # Not the default of this machine, which may be docker.
        request = replace(request, backend="venv")
    subject = start.prepare(request, executable, settings, progress)
    require_possible(subject.facts["profile"], subject.expects)
    subject, _ = subject.built()
    data = mnist.subset().folder
    run_id = run.new_run_id()

    def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments. `paths` maps folders to their paths as the payload sees them."""
        return (
            "parallel-node",
            "--device",
            subject.expects.device,
            "--data",
            paths["data"],
            "--nodes",
            str(place.nodes),
            "--node-rank",
            str(place.number),
            "--node-name",
            place.name,
            "--folder",
            paths["shared"],
            "--attempt",
            place.attempt,
            "--master-address",
            place.address,
            "--master-port",
            str(place.port),
            "--limit",
            str(place.limit_seconds),
            "--run-id",
            run_id,
        )

    report = measure(
        lambda on_line: subject.run(arguments, {"data": data, "shared": place.folder}, on_line),
        progress,
        settings.logs_dir / f"{place.attempt}-{place.name}-payload.log",
        run_id,
        lambda report: _status(report, place),
    )
    return NodeOutcome(
        status=report["status"],
        reasons=tuple(report["reasons"]),
        profile=subject.facts["profile"],
        backend=subject.facts["backend"],
        fingerprint=subject.facts["fingerprint"],
        scaling=report if place.number == 0 else None,
    )


def require_possible(profile: str, expected: Expected) -> None:
    """Raise `InvalidError` for a profile that cannot train across nodes."""
    start.require_torch(WHAT, profile, expected)
    require("all", expected.device)


def most_nodes(gpus: int) -> int:
    """Return how many nodes with so many GPUs each can train together; with none, on their CPUs."""
    return shares.MOST_RANKS // max(1, gpus)


def _status(report: Any, place: Place) -> str:
    """Return a payload's status; raise `VerifyError` if its report is not to be believed."""
    if place.number == 0:
        checked = model.check_scaling(report)
        covered = len({device.node for device in checked.devices})
        if checked.status == "passed":
            _require_checks(checked)
            if covered != place.nodes:
                raise VerifyError(f"the report is about {covered} nodes, not {place.nodes}")
        return checked.status
    try:
        return decoding.convert(report, _Part).status
    except msgspec.ValidationError as error:
        raise VerifyError(f"the report on this node's part is malformed: {error}") from error
