"""Terminal tables, at most 80 columns wide: one verification's verdict, several reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.core.text import amount, memory, percent, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envbuilder.verify.report.comparison import Row
    from envbuilder.verify.report.model import Measured, Scaling, Speed

_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "warning": ("!", "yellow"),
    "skipped": ("-", "dim"),
}


def print_verdict(report: dict[str, Any], measured: Measured, console: Any) -> None:
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

    console.print(grid(_facts(report, measured)))
    console.print()
    checks = Table.grid(padding=(0, 2))
    for check in measured.checks:
        mark, style = _MARKS[check.status]
        name, detail = printable(check.name), printable(check.detail)
        checks.add_row(Text(mark, style=style), Text(name), Text(detail))
    console.print(checks)
    if measured.training and measured.training.epochs:
        console.print()
        console.print(_epochs(measured, Table))
    if measured.compile:
        console.print()
        console.print(_compilers(measured, Table))
    if measured.scaling and measured.scaling.devices:
        console.print()
        console.print(_devices(measured.scaling, Table))
    measurements = list(_measurements(report, measured))
    if measurements:
        console.print()
        console.print(grid(iter(measurements)))
    console.print()
    passed = measured.status == "passed"
    verdict = "VERIFIED" if passed else "NOT VERIFIED"
    found = as_found(report)
    verdict += " as found" if found and passed else ""
    console.print(
        Text(
            f"{verdict}: {_headline(report, measured)}",
            style="bold green" if passed else "bold red",
        )
    )
    if found:
        console.print(Text(f"  {found}"))
    for reason in measured.reasons:
        console.print(Text(f"  {printable(reason)}"))


def as_found(report: Mapping[str, Any]) -> str:
    """Return which variables selected the code of an "as found" report; empty for others."""
    origins = report.get("origins")
    if not isinstance(origins, dict) or not origins.get("as_found"):
        return ""
    variables = origins.get("variables")
    pairs = sorted(variables.items()) if isinstance(variables, dict) else []
    named = ", ".join(printable(f"{name}={value}", 300) for name, value in pairs)
    return f"as found: the environment's variables decided what ran: {named or 'none was set'}"


def print_comparison(rows: Sequence[Row], console: Any) -> None:
    """Print several reports as one table."""
    from rich.table import Table
    from rich.text import Text

    from envbuilder.verify.report import comparison

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("machine,\nreport", overflow="fold", min_width=12)
    table.add_column("profile,\ntorch", overflow="fold", min_width=10)
    for name in ("CPU\nepoch", "accel.\nepoch", "warm\nepoch", "speed-\nup", "accu-\nracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("\nverdict", no_wrap=True)
    for row in rows:
        machine, memory, profile, backend, torch, *numbers, verdict, file, date = comparison.cells(
            row
        )
        style = _MARKS[row.status][1]
        named = [machine, *([memory] if row.memory_bytes else [])]
        table.add_row(
            Text("\n".join(named)).append(f"\n{file}\n{date}", style="dim"),
            Text(f"{profile}, {backend}\n{torch}"),
            *map(Text, numbers),
            Text(verdict, style=style),
        )
    console.print(table)
    if comparison.marked(rows):
        console.print(Text(f"* {comparison.FOOTNOTE}"))


def _facts(report: dict[str, Any], measured: Measured) -> Iterator[tuple[str, str]]:
    artifact = report.get("artifact") or {}
    yield "profile", f"{report.get('profile') or '-'} ({report.get('backend')})"
    yield "environment", str(artifact.get("ref", "-"))
    torch = measured.torch
    runtime = f", runtime {torch['runtime']}" if torch.get("runtime") else ""
    yield "torch", f"{torch.get('version', '?')}{runtime}, Python {torch.get('python', '?')}"
    device = measured.device
    size = f", {memory(device.memory_bytes)}" if device.memory_bytes else ""
    driver = f", driver {device.driver}" if device.driver else ""
    yield "device", f"{device.requested} requested, {device.used or 'none'} used"
    if device.name:
        yield "", f"{device.name}{size}{driver}"
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
            percent(epoch.accuracy),
        )
    return epochs


def _compilers(measured: Measured, table: Any) -> Any:
    from rich.markup import escape as markup_free

    compilers = table(box=None, pad_edge=False, header_style="bold")
    compilers.add_column("compiled with")
    compilers.add_column("gradients")
    for name in ("inference", "training"):
        compilers.add_column(name, justify="right")
    for entry in measured.compile:
        gradients = entry.gradients
        verdict = "not checked" if gradients is None else "right" if gradients.passed else "WRONG"
        backend = markup_free(printable(entry.backend))
        compilers.add_row(backend, verdict, _speed(entry.inference), _speed(entry.training))
    return compilers


def _devices(scaling: Scaling, table: Any) -> Any:
    from rich.text import Text

    devices = table(box=None, pad_edge=False, header_style="bold")
    devices.add_column("device", overflow="fold")
    for name in ("samples/s alone", "share"):
        devices.add_column(name, justify="right")
    whole = sum(device.samples_per_second or 0 for device in scaling.devices)
    for device in scaling.devices:
        label = Text(printable(f"{device.index} {device.name or ''}"))
        rate = device.samples_per_second
        alone = (amount(rate), f"{100 * rate / whole:.0f} %") if rate else ("failed", "-")
        devices.add_row(label, *alone)
    return devices


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "not measured"
    if not speed.counts:
        return "does not count"
    other = speed.speedup_over_inductor
    over = f", {other:.2f}× inductor" if other and other != 1 else ""
    return f"{speed.speedup_over_eager:.2f}× eager{over}"


def _measurements(report: dict[str, Any], measured: Measured) -> Iterator[tuple[str, str]]:
    """Yield the measurements other than epochs; reports of earlier versions have none."""
    known = report.get("measurements")
    known = known if isinstance(known, dict) else {}
    scaling = measured.scaling
    if scaling and scaling.samples_per_second and scaling.efficiency:
        speed = _say(scaling.samples_per_second, " digits/s")
        of_sum = f"{100 * scaling.efficiency:.0f} % of the sum of each alone"
        yield "all together", f"{speed} on {scaling.ranks} ranks ({scaling.backend}), {of_sum}"
    if measured.speedup and measured.baseline:
        seconds = _say(measured.baseline.get("seconds"), " s")
        yield "the same on the CPU", f"{seconds} an epoch: {amount(measured.speedup)}× faster"
    rates = [m for m in _list(known.get("matmul")) if isinstance(m, dict)]
    yield from _line(
        "matmul", (_rate(m.get("flops_per_second"), "FLOP/s", str(m.get("dtype"))) for m in rates)
    )
    share = _number(known.get("matmul_share"))
    work = _rate(known.get("epoch_flops"), "FLOP")
    if share is not None and work:
        yield "an epoch", f"{work}, {100 * share:.0f} % of the float32 matmul rate"
    paths = known.get("bandwidth")
    ways = paths.items() if isinstance(paths, dict) else ()
    yield from _line("bandwidth", (_rate(v, "B/s", str(k).replace("_", " ")) for k, v in ways))
    launch = _number(known.get("launch_seconds"))
    if launch is not None:
        yield "launch latency", f"{amount(1e6 * launch)} µs"
    inference = known.get("inference")
    if isinstance(inference, dict) and _number(inference.get("samples_per_second")) is not None:
        rate = _say(inference["samples_per_second"], " digits/s")
        yield "inference", f"{rate} in batches of {inference.get('batch')}"
    peak = memory(known.get("peak_memory_bytes"))
    if peak != "-":
        yield "peak memory", _rate(known["peak_memory_bytes"], "B")


def _line(name: str, parts: Iterator[str]) -> Iterator[tuple[str, str]]:
    text = ", ".join(filter(None, parts))
    if text:
        yield name, text


def _rate(value: object, unit: str, of: str = "") -> str:
    """Return a large number with its prefix, as in "float32 220 GFLOP/s"; empty if it is none."""
    number = _number(value)
    if number is None:
        return ""
    size, prefix = next(((f, p) for f, p in _PREFIXES if number >= f), (1.0, ""))
    return f"{of} {amount(number / size)} {prefix}{unit}".strip()


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _say(value: object, unit: str) -> str:
    number = _number(value)
    return "-" if number is None else f"{amount(number)}{unit}"


def _number(value: object) -> float | None:
    """Return an untrusted value as a float if it is a plain non-negative number, else None."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value < 1e300 else None  # type: ignore[operator,arg-type]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _headline(report: dict[str, Any], measured: Measured) -> str:
    device = measured.device
    if measured.status == "passed":
        assert measured.training is not None
        last = measured.training.epochs[-1]
        return (
            f"{device.requested} did the work; epoch {last.seconds:.1f} s,"
            f" accuracy {100 * (last.accuracy or 0):.2f} %"
        )
    return printable(f"profile {report.get('profile') or '-'} on {device.requested}")
