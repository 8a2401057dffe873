"""Tables for people: the verdict of a verification, at most 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.report import Measured, Speed

_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "warning": ("!", "yellow"),
    "skipped": ("-", "dim"),
}


def print_verdict(report: dict[str, Any], measured: Measured, console: Any) -> None:
    """Print a report's environment, checks, epochs and verdict."""
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, value in _facts(report, measured):
        facts.add_row(name, Text(value))
    console.print(facts)
    console.print()
    checks = Table.grid(padding=(0, 2))
    for check in measured.checks:
        mark, style = _MARKS[check.status]
        checks.add_row(Text(mark, style=style), check.name, Text(check.detail))
    console.print(checks)
    if measured.training and measured.training.epochs:
        console.print()
        console.print(_epochs(measured, Table))
    if measured.compile:
        console.print()
        console.print(_compilers(measured, Table))
    console.print()
    passed = measured.status == "passed"
    verdict = "VERIFIED" if passed else "NOT VERIFIED"
    console.print(
        Text(
            f"{verdict}: {_headline(report, measured)}",
            style="bold green" if passed else "bold red",
        )
    )
    for reason in measured.reasons:
        console.print(Text(f"  {reason}"))


def _facts(report: dict[str, Any], measured: Measured) -> Iterator[tuple[str, str]]:
    artifact = report.get("artifact") or {}
    yield "profile", f"{report.get('profile') or '-'} ({report.get('backend')})"
    yield "environment", str(artifact.get("ref", "-"))
    torch = measured.torch
    runtime = f", runtime {torch['runtime']}" if torch.get("runtime") else ""
    yield "torch", f"{torch.get('version', '?')}{runtime}, Python {torch.get('python', '?')}"
    device = measured.device
    memory = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
    driver = f", driver {device.driver}" if device.driver else ""
    yield "device", f"{device.requested} requested, {device.used or 'none'} used"
    if device.name:
        yield "", f"{device.name}{memory}{driver}"
    data = measured.dataset
    small = " (a subset: no verdict on full accuracy)" if data.get("subset") else ""
    yield "data", f"{data.get('name')}: {data.get('train')} + {data.get('test')} digits{small}"
    if measured.training and measured.training.cold_start_seconds is not None:
        yield "cold start", f"{measured.training.cold_start_seconds:.1f} s"


def _epochs(measured: Measured, table: Any) -> Any:
    epochs = table(box=None, pad_edge=False, header_style="bold")
    for name in ("epoch", "seconds", "data", "compute", "samples/s", "loss", "accuracy"):
        epochs.add_column(name, justify="right")
    assert measured.training is not None
    for i, epoch in enumerate(measured.training.epochs, 1):
        epochs.add_row(
            str(i),
            f"{epoch.seconds:.2f}",
            f"{epoch.data_seconds:.2f}",
            f"{epoch.compute_seconds:.2f}",
            f"{epoch.samples_per_second:,.0f}",
            "-" if epoch.loss is None else f"{epoch.loss:.4f}",
            "-" if epoch.accuracy is None else f"{100 * epoch.accuracy:.2f} %",
        )
    return epochs


def _compilers(measured: Measured, table: Any) -> Any:
    compilers = table(box=None, pad_edge=False, header_style="bold")
    compilers.add_column("compiled with")
    compilers.add_column("gradients")
    for name in ("inference", "training"):
        compilers.add_column(name, justify="right")
    for entry in measured.compile:
        gradients = entry.gradients
        verdict = "not checked" if gradients is None else "right" if gradients.passed else "WRONG"
        compilers.add_row(entry.backend, verdict, _speed(entry.inference), _speed(entry.training))
    return compilers


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "not measured"
    if not speed.counts:
        return "does not count"
    other = speed.speedup_over_inductor
    over = f", {other:.2f}× inductor" if other and other != 1 else ""
    return f"{speed.speedup_over_eager:.2f}× eager{over}"


def _headline(report: dict[str, Any], measured: Measured) -> str:
    device = measured.device
    if measured.status == "passed":
        assert measured.training is not None
        last = measured.training.epochs[-1]
        return (
            f"{device.requested} did the work; epoch {last.seconds:.1f} s,"
            f" accuracy {100 * (last.accuracy or 0):.2f} %"
        )
    return f"profile {report.get('profile') or '-'} on {device.requested}"
