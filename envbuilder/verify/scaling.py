"""`verify --devices`: run several devices, each alone and then all together in data parallel.

The payload (`payload.parallel`) does the work and judges it, so that both are the same in a
container, a native environment and an external interpreter. This module starts it, validates its
report and merges that into the verification report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.text import printable
from envbuilder.payload.parallel import shares
from envbuilder.verify import run
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed

CHECK = "several devices"


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
    return ("--index", str(numbers[0])) if numbers and accelerator != "cpu" else ()


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
        return _with_check(report, "skipped", "not run, because the verification failed")
    accelerator, run_id = report["device"]["requested"], run.new_run_id()

    def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
        """Return the arguments. `paths` maps folders to their paths as the payload sees them."""
        options = (
            "parallel",
            "--device",
            accelerator,
            "--devices",
            devices,
            "--data",
            paths["data"],
        )
        return (*options, "--run-id", run_id, *(["--quick"] if quick else []))

    requested = _requested_devices(accelerator, devices)

    def check(report: Any) -> str:
        checked = model.check_scaling(report)
        _require_devices(checked, requested)
        return checked.status

    scaling = measure(
        lambda on_line: start(arguments, {"data": folder}, on_line), progress, log, run_id, check
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


def _require_devices(scaling: model.Scaling, requested: tuple[int, ...] | None) -> None:
    """Raise `VerifyError` if a passing report covers devices other than the requested ones."""
    devices = tuple(device.index for device in scaling.devices)
    if scaling.status == "passed" and requested not in (None, devices):
        raise VerifyError(f"the report is about the devices {devices}, not {requested}")


def add(report: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    """Return the report with the result of several devices; it fails if they failed."""
    reasons = [printable(reason) for reason in scaling.get("reasons", ())]
    if scaling["status"] != "passed":
        failed = _with_check(report, "failed", "; ".join(reasons))
        return {
            **failed,
            "scaling": scaling,
            "status": "failed",
            "reasons": [*report["reasons"], *(f"{CHECK}: {reason}" for reason in reasons)],
        }
    warnings = [f"{CHECK}: {printable(warning)}" for warning in scaling.get("warnings", ())]
    extended = _with_check(report, "warning" if warnings else "passed", _sentence(scaling))
    return {
        **extended,
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


def _with_check(report: dict[str, Any], status: str, detail: str) -> dict[str, Any]:
    check = {"name": CHECK, "status": status, "seconds": 0.0, "detail": detail}
    return {**report, "checks": [*report["checks"], check]}
