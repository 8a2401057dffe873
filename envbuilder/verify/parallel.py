"""Verify several devices (`verify --devices`): train on each one alone, then on all together.

The joint training is data-parallel. The payload (`payload.parallel`) runs the training and checks
the results, so that both work in the same way in a container, a native environment and an external
interpreter. This module starts the payload, validates its report, and merges it into the
verification report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import InvalidError, VerifyError, printable
from envbuilder.payload.parallel import shares
from envbuilder.verify import run
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed

CHECK = "several devices"
REQUIRED_ALONE = ("run", "gradients")
REQUIRED_TOGETHER = ("ranks", "own devices", "gradients equal", "gradients", "weights equal")
"""Checks of `payload.parallel` that a passing report must contain: `REQUIRED_ALONE` for each device
on its own, and `REQUIRED_TOGETHER` for all devices together."""


def require(devices: str | None, accelerator: str) -> None:
    """Raise `InvalidError` if `--devices` is malformed or not possible on this accelerator."""
    if devices is None:
        return
    try:
        shares.require(accelerator, shares.parse(devices))
    except shares.ChoiceError as error:
        raise InvalidError(
            f"--devices {printable(devices, 60)}: {error}",
            "Write `all`, or device numbers from 0, such as 0,1. For the CPU, write the number of"
            " processes.",
        ) from error


def selection(devices: str | None, accelerator: str) -> tuple[str, ...]:
    """Return the arguments that make the payload's `verify` use the first requested device."""
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
    """Train on several devices, and return the report with the result added.

    The training is skipped if the verification failed. `start` runs the payload. It takes three
    arguments: a function that returns the payload's arguments, the folders to share, and a callback
    that receives each line of output.
    """
    if report["status"] != "passed":
        return model.with_check(
            report, CHECK, "skipped", "not run, because the verification failed"
        )
    accelerator = report["device"]["requested"]
    run_id = run.new_run_id()

    def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return the payload's command-line arguments.

        `paths` maps the names of shared folders to their paths as the payload sees them.
        """
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
    """Return the devices that a report must cover, or None if only the payload knows them."""
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
    """Run the payload through `start`, and return its report.

    If the run fails, return a failed report that gives the reason. `check` returns the status of a
    report, and raises `VerifyError` if the report cannot be trusted.
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
    """Return the payload's multi-device report as typed data.

    Raise `VerifyError` if the report is invalid, or if it claims success although a required check
    is missing or the devices differ from those in `requested`.
    """
    scaling = model.check_scaling(report)
    if scaling.status == "passed":
        _require_checks(scaling)
        devices = tuple(device.index for device in scaling.devices)
        if requested not in (None, devices):
            raise VerifyError(
                f"the report covers devices {devices}, but {requested} were requested"
            )
    return scaling


def _require_checks(scaling: model.Scaling) -> None:
    """Raise `VerifyError` if a passing report lacks a check that the payload always runs."""
    together = REQUIRED_TOGETHER if scaling.ranks > 1 else ()
    absent = model.absent(("devices", *together), scaling.checks)
    for device in scaling.devices:
        names = model.absent(REQUIRED_ALONE, device.checks)
        absent += [f"device {device.index}: {name}" for name in names]
    if absent:
        raise VerifyError(
            f"the payload reported success without running these checks: {', '.join(absent)}"
        )


def add(report: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    """Return the verification report with the multi-device result added.

    The returned report is marked as failed if the run on several devices failed.
    """
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
        return f"device {device['index']} alone, with nothing to run in parallel"
    return (
        f"{scaling['ranks']} ranks ({scaling.get('backend')}) have equal gradients, the same as"
        f" one process, at {100 * scaling['efficiency']:.0f} % of the devices' rates alone"
    )
