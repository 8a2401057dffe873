"""Terminal tables, at most 80 columns wide: one verification's verdict, several reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from envbuilder.core.text import amount, duration, memory, percent, printable, rate, times
from envbuilder.verify.report.measurements import Measurements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.verify.report.comparison import Row
    from envbuilder.verify.report.model import Report, Scaling, Speed

_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "unproven": ("!", "yellow"),
    "warning": ("!", "yellow"),
    "skipped": ("-", "dim"),
}


def print_verdict(report: Report, console: Any) -> None:
    """Print a report's environment, checks, epochs, measurements and verdict."""
    from rich.table import Table
    from rich.text import Text

    def grid(lines: Iterator[tuple[str, str]]) -> Any:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in lines:
            table.add_row(name, Text(printable(value)))
        return table

    console.print(grid(_facts(report)))
    console.print()
    checks = Table.grid(padding=(0, 2))
    for check in report.checks:
        mark, style = _MARKS[check.status]
        name, detail = printable(check.name), printable(check.detail)
        checks.add_row(Text(mark, style=style), Text(name), Text(detail))
    console.print(checks)
    if report.epochs:
        console.print()
        console.print(_epochs(report, Table))
    if report.compile:
        console.print()
        console.print(_compilers(report, Table))
    if report.scaling and report.scaling.devices:
        console.print()
        console.print(_devices(report.scaling, Table))
    measurements = list(_measurements(report))
    if measurements:
        console.print()
        console.print(grid(iter(measurements)))
    console.print()
    passed = report.status == "passed"
    verdict = "VERIFIED" if passed else "NOT VERIFIED"
    origin = as_found(report)
    verdict += " as found" if origin and passed else ""
    style = "bold green" if passed else "bold red"
    console.print(Text(f"{verdict}: {_headline(report)}", style=style))
    if origin:
        console.print(Text(f"  {origin}"))
    for reason in report.reasons:
        console.print(Text(f"  {printable(reason)}"))


def as_found(report: Report) -> str:
    """Return what selected the code of an "as found" report, if known; empty for others."""
    if report.origins is None and report.status == "passed":
        return "as found: nothing says where its code came from"
    if report.origins is None or not report.origins.as_found:
        return ""
    pairs = sorted(report.origins.variables.items())
    named = ", ".join(printable(f"{name}={value}", 300) for name, value in pairs)
    return f"as found: the environment's variables decided what ran: {named or 'none was set'}"


def print_comparison(rows: Sequence[Row], console: Any) -> None:
    """Print several reports as one table."""
    from rich.table import Table
    from rich.text import Text

    from envbuilder.verify.report import comparison

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("machine,\nreport", overflow="fold", min_width=12)
    table.add_column("profile,\nframework", overflow="fold", min_width=10)
    for name in (
        "accel.,\nCPU epoch",
        "warm,\nimages/s",
        "speed-up,\naccuracy",
        "memory,\nstart-up",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    for row in rows:
        machine, memory, profile, backend, framework, *rest = comparison.cells(row)
        cpu, accelerator, warm, speedup, speed, accuracy, peak, start, verdict, file, date = rest
        pairs = ((accelerator, cpu), (warm, speed), (speedup, accuracy), (peak, start))
        style = _MARKS[row.status][1]
        named = [machine, *([memory] if row.memory_bytes else [])]
        table.add_row(
            Text("\n".join(named)).append(f"\n{file}\n{date}", style="dim"),
            Text(f"{profile}, {backend}\n{framework}"),
            *(Text(f"{upper}\n{lower}") for upper, lower in pairs),
            Text(verdict, style=style),
        )
    console.print(table)
    for note in comparison.footnotes(rows):
        console.print(Text(note))


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "profile", f"{report.profile or '-'} ({report.backend or '-'})"
    yield "environment", report.artifact.ref or "-"
    used = report.framework
    runtime = f", runtime {used.runtime}" if used.runtime else ""
    yield used.name or "framework", f"{used.version or '?'}{runtime}, Python {used.python or '?'}"
    device = report.device
    size = f", {memory(device.memory_bytes)}" if device.memory_bytes else ""
    driver = f", driver {device.driver}" if device.driver else ""
    yield "device", f"{device.requested} requested, {device.used or 'none'} used"
    if device.name:
        yield "", f"{device.name}{size}{driver}"
    data = report.dataset
    small = " (a subset: no verdict on full accuracy)" if data.subset else ""
    images = f": {data.train} + {data.test} images" if data.train and data.test else ""
    yield "data", f"{data.name or '-'}{images}{small}"
    if report.speed_reason:
        yield "speed", f"{'judged' if report.speed_counts else 'not judged'}: {report.speed_reason}"
    if report.training and report.training.cold_start_seconds is not None:
        yield "cold start", f"{report.training.cold_start_seconds:.1f} s"


def _epochs(report: Report, table: Any) -> Any:
    epochs = table(box=None, pad_edge=False, header_style="bold")
    for name in ("epoch", "seconds", "data", "compute", "samples/s", "loss", "accuracy"):
        epochs.add_column(name, justify="right")
    for i, epoch in enumerate(report.epochs, 1):
        epochs.add_row(
            str(i),
            f"{epoch.seconds:.2f}",
            f"{epoch.data_seconds:.2f}",
            f"{epoch.compute_seconds:.2f}",
            f"{epoch.samples_per_second:,.0f}",
            "-" if epoch.loss is None else f"{epoch.loss:.4f}",
            percent(epoch.accuracy),
        )
    return epochs


def _compilers(report: Report, table: Any) -> Any:
    from rich.text import Text

    compilers = table(box=None, pad_edge=False, header_style="bold")
    compilers.add_column("compiled with")
    compilers.add_column("gradients")
    for name in ("inference", "training"):
        compilers.add_column(name, justify="right")
    for entry in report.compile:
        gradients = entry.gradients
        verdict = "not checked" if gradients is None else "right" if gradients.passed else "WRONG"
        backend = Text(printable(entry.backend))
        compilers.add_row(backend, verdict, _speed(entry.inference), _speed(entry.training))
    return compilers


def _devices(scaling: Scaling, table: Any) -> Any:
    from rich.text import Text

    devices = table(box=None, pad_edge=False, header_style="bold")
    devices.add_column("device", overflow="fold")
    for name in ("samples/s alone", "share"):
        devices.add_column(name, justify="right")
    total = sum(device.samples_per_second or 0 for device in scaling.devices)
    for device in scaling.devices:
        label = Text(printable(f"{device.index} {device.name or ''}"))
        speed = device.samples_per_second
        figures = (amount(speed), percent(speed / total, 0)) if speed else ("failed", "-")
        devices.add_row(label, *figures)
    return devices


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "not measured"
    if not speed.counts:
        return "does not count"
    other = speed.speedup_over_inductor
    over = f", {other:.2f}× inductor" if other and other != 1 else ""
    return f"{speed.speedup_over_eager:.2f}× eager{over}"


def _measurements(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the measurements other than epochs; reports of earlier versions have none."""
    scaling, measured = report.scaling, report.measurements or Measurements()
    if scaling and scaling.samples_per_second and scaling.efficiency:
        of_sum = f"{percent(scaling.efficiency, 0)} of the sum of each alone"
        together = f"{amount(scaling.samples_per_second)} images/s on {scaling.ranks} ranks"
        yield "all together", f"{together} ({scaling.backend}), {of_sum}"
    seconds = report.baseline_seconds()
    if report.speedup and seconds is not None:
        yield (
            "the same on the CPU",
            f"{amount(seconds)} s an epoch: {times(report.speedup)} faster",
        )
    if measured.matmul:
        rates = (f"{m.dtype} {rate(m.flops_per_second, 'FLOP/s')}" for m in measured.matmul)
        yield "matmul", ", ".join(rates)
    if measured.matmul_share and measured.epoch_flops:
        work, share = rate(measured.epoch_flops, "FLOP"), percent(measured.matmul_share, 0)
        yield "an epoch", f"{work}, {share} of the float32 matmul rate"
    paths = asdict(measured.bandwidth) if measured.bandwidth else {}
    if any(paths.values()):
        named = (f"{k.replace('_', ' ')} {rate(v, 'B/s')}" for k, v in paths.items() if v)
        yield "bandwidth", ", ".join(named)
    if measured.launch_seconds:
        yield "launch latency", duration(measured.launch_seconds)
    if measured.captured:
        epoch, first = measured.captured.seconds, measured.captured.first_seconds
        doubt = "" if measured.captured.counts else "; its losses differ: it does not count"
        yield "captured graph", f"{duration(epoch)} an epoch, the first {duration(first)}{doubt}"
    if measured.inference:
        speed = amount(measured.inference.samples_per_second)
        yield "inference", f"{speed} images/s in batches of {measured.inference.batch}"
    if measured.peak_memory_bytes:
        yield "peak memory", memory(measured.peak_memory_bytes)


def _headline(report: Report) -> str:
    device = report.device
    if report.status == "passed":
        last, doubt = report.epochs[-1], "" if report.speed_counts else " (speed not judged)"
        return (
            f"{device.requested} did the work; epoch {last.seconds:.1f} s{doubt},"
            f" accuracy {100 * (last.accuracy or 0):.2f} %"
        )
    return printable(f"profile {report.profile or '-'} on {device.requested}")
