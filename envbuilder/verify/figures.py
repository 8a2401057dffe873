"""Put a report's figures into words, for its page and the terminal, and print them there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core.text import amount, duration, memory, percent, printable, rate, times
from envbuilder.payload.frameworks import title
from envbuilder.verify.report import comparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envbuilder.verify.report.measurements import Measurements
    from envbuilder.verify.report.model import Compiled, Report, Scaling, Speed

STATUSES = ("passed", "failed", "warning", "skipped")
MOST_DEVICES = 64
MOST_RATES = 12


class Fact(Struct, frozen=True):
    """One fact: label, value, and a note next to it; `wrong` highlights it."""

    label: str
    value: str
    note: str = ""
    wrong: bool = False


def figures(report: Report) -> Iterator[Fact]:
    """Yield the key figures."""
    training = report.training
    last = report.epochs[-1] if report.epochs else None
    doubt = "" if report.speed_counts else "speed not judged"
    first, warm = report.epoch_seconds
    if first is not None:
        count = len(report.epochs) - 1
        which = "warm" if count else "the first one"
        if count > 1:
            which = f"warm, median of {count}"
        yield Fact("An epoch", duration(warm or first), _listed(which, doubt))
    if report.speedup:
        yield Fact("Against the CPU", times(report.speedup), "epoch 1 of each")
    if training and last and last.accuracy is not None:
        needed = training.min_accuracy
        note = f"{percent(needed)} needed" if needed is not None else ""
        yield Fact("Accuracy", percent(last.accuracy), note)
    if last and last.samples_per_second > 0:
        yield Fact("Training", amount(last.samples_per_second), "images a second")
    if training and training.cold_start_seconds:
        cold = duration(training.cold_start_seconds)
        yield Fact("Cold start", cold, "process to first step")


def facts(report: Report) -> list[Fact]:
    """Return the facts about the run: device, framework, precision, data, environment."""
    device = report.device
    host = report.host
    framework = report.framework
    differs = device.used != device.requested
    did = f"{device.used} did the work" if device.used else "nothing was shown to do the work"
    driver = _listed(_named("driver", device.driver), device.capability)
    software = _listed(
        _named("runtime", framework.runtime),
        _named("Python", framework.python),
        framework.platform,
    )
    extensions = _listed(*(_named(name, v) for name, v in framework.extensions.items()))
    cores = _listed(host.cpu.generation, _named("cores:", host.cpu.physical))
    inside = "in a container" if host.container else ""
    judged = "judged" if report.speed_counts else "not judged"
    rows = (
        Fact(
            "Device",
            device.name or device.used or device.requested,
            f"{device.requested} was requested, {'but' if differs else 'and'} {did}",
            differs,
        ),
        Fact("Its memory", memory(device.memory_bytes) if device.memory_bytes else "", driver),
        Fact("Its driver", "" if device.memory_bytes else driver),
        Fact(title(framework.name or ""), framework.version or "", software),
        Fact("Extensions", extensions),
        *_work(report),
        Fact("Speed", judged if report.speed_reason else "", report.speed_reason or ""),
        Fact("Host CPU", host.cpu.model_name or "", cores),
        Fact(
            "System",
            host.os_version or host.os or "",
            _listed(host.machine, _named("kernel", host.kernel), inside),
        ),
        Fact("Environment", report.artifact.ref or "", report.artifact.kind or ""),
    )
    return [fact for fact in rows if fact.value]


def _work(report: Report) -> Iterator[Fact]:
    data = report.dataset
    training = report.training
    threads = report.threads
    if precision := report.precision:
        note = _listed(
            _named("matmul precision", precision.matmul),
            "autocast on" if precision.autocast else "",
            "TF32 on" if precision.cuda_tf32 else "",
        )
        yield Fact("Precision", precision.dtype, note)
    images = ""
    if data.train and data.test:
        images = f"{data.train:,} images to train on, {data.test:,} to test"
    small = "a subset: no verdict on full accuracy" if data.subset else ""
    yield Fact("Data", data.name or "", _listed(images, small))
    if training and training.optimizer:
        note = _listed(
            _named("batch", training.batch),
            _named("seed", training.seed),
            training.reordered,
            training.memory_format,
            training.dropout,
            training.extension,
        )
        yield Fact("Training", training.optimizer, note)
    if threads.framework:
        allocator = (threads.allocator or "").rpartition("/")[2]
        yield Fact("Threads", str(threads.framework), _named("allocator", allocator))


def _named(name: str, value: str | int | None) -> str:
    return "" if value is None or value == "" else f"{name} {value}"


def _listed(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def checks(report: Report) -> dict[str, Any]:
    """Return the rows of the checks, and the number of checks per status."""
    rows = [
        {
            "name": check.name or "(no name)",
            "status": check.status,
            "took": _took(check.seconds),
            "detail": check.detail,
        }
        for check in report.checks
    ]
    counts = Counter[str](check.status for check in report.checks)
    return {"rows": rows, "counts": [(s, counts[s]) for s in STATUSES if counts[s]]}


def _took(seconds: float) -> str:
    """Return a check's duration, which is recorded in whole milliseconds; "" below that."""
    if seconds < 0.0005:
        return ""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)


def passes(report: Report) -> list[list[str]]:
    """Return the rows of the table of epochs, the CPU baseline last."""
    baseline = (("CPU", report.baseline),) if report.baseline else ()
    named = ((str(number), epoch) for number, epoch in enumerate(report.epochs, 1))
    return [
        [
            name,
            _or_dash(e.seconds, amount),
            _or_dash(e.data_seconds, amount),
            _or_dash(e.compute_seconds, amount),
            _or_dash(e.samples_per_second, "{:,.0f}".format),
            _or_dash(e.loss, "{:.4f}".format),
            _or_dash(e.accuracy, percent),
        ]
        for name, e in (*named, *baseline)
    ]


def _or_dash(value: float | None, form: Any) -> str:
    return "–" if value is None else str(form(value))


def training(report: Report) -> Iterator[str]:
    """Yield the sentences below the epochs."""
    if report.baseline:
        yield (
            "The CPU trained one epoch from scratch, so epoch 1 is its fair counterpart; warm"
            " epochs no longer include start-up."
        )
    elif report.device.requested == "cpu":
        yield "The CPU itself was verified, so there is nothing to compare it with."
    else:
        yield "The same epoch was not run on the CPU, so there is no speed-up to report."
    same = report.determinism
    if same and same.equal:
        yield (
            f"Two runs with the same seed gave the same weights over {same.steps:,} steps, bit"
            " for bit."
        )
    elif same:
        apart = same.largest_difference
        by = f" by at most {apart:.1e}" if apart is not None else ""
        yield (
            f"Two runs with the same seed differed over {same.steps:,} steps{by}: training is not"
            " reproducible here."
        )


def rates(measurements: Measurements | None) -> Iterator[Fact]:
    """Yield the rates of matrix products, and what the last epoch reached of float32's."""
    products = ((measurements.matmul if measurements else None) or ())[:MOST_RATES]
    for each in products:
        size = f"{each.size:,} × {each.size:,}"
        yield Fact(f"{each.dtype} matrix product", rate(each.flops_per_second, "FLOP/s"), size)
    single = max((m.flops_per_second for m in products if m.dtype == "float32"), default=None)
    share = measurements.matmul_share if measurements else None
    if single and share is not None:
        note = f"{percent(share, 0)} of float32's"
        yield Fact("The last epoch's computing", rate(share * single, "FLOP/s"), note)


_PATHS = {
    "device": "Inside the device's memory",
    "host_to_device": "Host to device",
    "host_to_device_pinned": "Host to device, pinned",
    "device_to_host": "Device to host",
    "device_to_host_pinned": "Device to host, pinned",
    "device_to_device": "Device to device",
}


def bandwidths(measurements: Measurements | None) -> Iterator[Fact]:
    """Yield the bandwidths of memory and copies; those of paths that do not exist are left out."""
    for key, label in _PATHS.items():
        if value := getattr(measurements.bandwidth if measurements else None, key, None):
            yield Fact(label, rate(value, "B/s"))


def measured(measurements: Measurements | None) -> Iterator[Fact]:
    """Yield the measurements that are single numbers."""
    if measurements is None:
        return
    if launch := measurements.launch_seconds:
        yield Fact("Launching an operation", duration(launch))
    if captured := measurements.captured:
        note = "its losses differ from eager's: it does not count"
        if captured.counts:
            note = f"the first {duration(captured.first_seconds)}, with the capture"
        seconds = duration(captured.seconds)
        yield Fact("An epoch of captured steps", seconds, note, not captured.counts)
    if inference := measurements.inference:
        speed = f"{amount(inference.samples_per_second)} images a second"
        yield Fact("Inference", speed, f"batch {inference.batch}")
    if flops := measurements.epoch_flops:
        yield Fact("Work in an epoch", rate(flops, "FLOP"))
    if logging := measurements.logging:
        every = logging.every_step_seconds
        end = logging.at_end_seconds
        note = f"{duration(every)} instead of {duration(end)} for {logging.steps:,} steps"
        yield Fact("Reading the loss at every step", f"{times(every / end)} the time", note)


def peak_memory(report: Report) -> list[Fact]:
    """Return what training took of the device's memory; empty if it was not measured."""
    peak = report.measurements.peak_memory_bytes if report.measurements else None
    size = report.device.memory_bytes
    of_all = f"of {memory(size)}, {percent(peak / size, 1)}" if peak and size else ""
    return [Fact("Highest use while training", memory(peak), of_all)] if peak else []


def memories(report: Report) -> list[Fact]:
    """Return what training took of the device's memory, and the sizes of the memories involved."""
    device = report.device
    host = report.host
    sizes = {
        "Device memory": device.memory_bytes if device.requested != "cpu" else None,
        "Host memory": host.memory.total_bytes or host.memory_bytes,
        "Limit of the container or group": host.memory.limit_bytes,
        "Shared memory (/dev/shm)": host.memory.shm_bytes,
    }
    return [*peak_memory(report), *(Fact(k, memory(size)) for k, size in sizes.items() if size)]


def _gradients(entry: Compiled) -> str:
    if entry.gradients:
        return "right" if entry.gradients.passed else "wrong"
    return "failed" if entry.error else "not checked"


def compiled(report: Report) -> list[dict[str, str]]:
    """Return a row per tried compile backend: correctness of its gradients, and speed-up."""
    return [
        {
            "backend": entry.backend,
            "gradients": _gradients(entry),
            "inference": _speed(entry.inference),
            "training": _speed(entry.training),
        }
        for entry in report.compile
    ]


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "–"
    if not speed.counts:
        return "does not count"
    other = speed.speedup_over_inductor
    over = f", {times(other)} inductor" if other and other != 1 else ""
    return f"{times(speed.speedup_over_eager)}{over}"


def devices(scaling: Scaling | None) -> dict[str, Any] | None:
    """Return rows of (device, images per second alone, share of the sum), and sentences.

    None if no devices were requested. `wrong` says why they failed.
    """
    if scaling is None:
        return None
    each = scaling.devices[:MOST_DEVICES]
    total = sum(device.samples_per_second or 0 for device in each)
    rows = []
    for device in each:
        label = f"{device.index}: {device.name}" if device.name else f"{device.index}"
        speed = device.samples_per_second
        figures = (amount(speed), percent(speed / total, 0)) if speed else ("–", "–")
        rows.append((label, *figures))
    failed = scaling.status == "failed"
    return {
        "rows": rows,
        "sentences": list(_together(scaling)),
        "wrong": (scaling.reasons or ("They did not pass.",)) if failed else (),
    }


def _together(scaling: Scaling) -> Iterator[str]:
    if scaling.ranks and scaling.samples_per_second:
        through = f" through {scaling.backend}" if scaling.backend else ""
        speed = f"{amount(scaling.samples_per_second)} images a second"
        efficiency = scaling.efficiency
        share = f", {percent(efficiency, 0)} of the sum of each alone" if efficiency else ""
        yield f"All {scaling.ranks} together{through}: {speed}{share}."
    if scaling.gradients_equal:
        yield (
            "Gradients were equal on all ranks, and those of one process over the joined batch."
            " Each rank adds 64 images to a step."
        )


# On a terminal, at most 80 columns wide

_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "unproven": ("!", "yellow"),
    "warning": ("!", "yellow"),
    "skipped": ("-", "dim"),
}
_EPOCHS = ("epoch", "seconds", "data", "compute", "images/s", "loss", "accuracy")


def print_verdict(report: Report, console: Any) -> None:
    """Print a report's facts, checks, epochs, figures and verdict."""
    from rich.text import Text

    several = devices(report.scaling) or {"rows": [], "sentences": []}
    compilers = [tuple(row.values()) for row in compiled(report)]
    measurements = report.measurements
    parts = (
        grid([Fact("Profile", report.profile or "-", report.backend or ""), *facts(report)]),
        table((), [(Text(*_MARKS[c.status]), c.name, c.detail) for c in report.checks], columns=3),
        table(_EPOCHS, passes(report) if report.epochs else ()),
        table(("compiled with", "gradients", "inference", "training"), compilers, left=2),
        table(("device", "images/s alone", "share"), several["rows"], left=1),
        grid(
            [
                *figures(report),
                *(Fact("Together", sentence) for sentence in several["sentences"]),
                *rates(measurements),
                *bandwidths(measurements),
                *peak_memory(report),
                *measured(measurements),
            ]
        ),
    )
    for part in parts:
        if part.row_count:
            console.print(part)
            console.print()
    passed = report.status == "passed"
    origin = as_found(report)
    verdict = "VERIFIED" if passed else "NOT VERIFIED"
    verdict += " as found" if origin and passed else ""
    style = "bold green" if passed else "bold red"
    console.print(Text(f"{verdict}: {_headline(report)}", style=style))
    for reason in (*filter(None, [origin]), *report.reasons):
        console.print(Text(f"  {printable(reason)}"))


def grid(shown: Iterable[Fact]) -> Any:
    """Return facts as two columns."""
    from rich.text import Text

    rows = (
        (Text(fact.label, style="bold"), f"{fact.value} ({fact.note})" if fact.note else fact.value)
        for fact in shown
    )
    return table((), rows, columns=2)


def table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], *, columns: int = 0, left: int = 0
) -> Any:
    """Return a table of texts; the columns of a header hold numbers, but for the `left` ones."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown.show_header = bool(header)
    names = header or [""] * columns
    for place, name in enumerate(names, 1):
        number = bool(header) and place > left
        whole = number or (not header and place < len(names))
        shown.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=whole
        )
    for row in rows:
        shown.add_row(*(c if isinstance(c, Text) else Text(printable(c, lines=True)) for c in row))
    return shown


def as_found(report: Report) -> str:
    """Return what selected the code of an "as found" report, if known; empty for others."""
    if report.origins is None and report.status == "passed":
        return "as found: nothing says where its code came from"
    if report.origins is None or not report.origins.as_found:
        return ""
    pairs = sorted(report.origins.variables.items())
    named = ", ".join(printable(f"{name}={value}", 300) for name, value in pairs)
    return f"as found: the environment's variables decided what ran: {named or 'none was set'}"


def print_comparison(rows: Sequence[comparison.Row], console: Any) -> None:
    """Print several reports as one table."""
    from rich.text import Text

    header = (
        "machine,\nreport",
        "profile,\nframework",
        "accel.,\nCPU epoch",
        "warm,\nimages/s",
        "speed-up,\naccuracy",
        "memory,\nstart-up",
        "\nverdict",
    )
    shown = []
    for row in rows:
        machine, size, profile, backend, framework, *rest = comparison.cells(row)
        cpu, accelerator, warm, speedup, speed, accuracy, peak, start, verdict, file, date = rest
        named = "\n".join([machine, *([size] if row.memory_bytes else [])])
        pairs = ((accelerator, cpu), (warm, speed), (speedup, accuracy), (peak, start))
        shown.append(
            (
                Text(named).append(f"\n{file}\n{date}", style="dim"),
                f"{profile}, {backend}\n{framework}",
                *("\n".join(pair) for pair in pairs),
                Text(verdict, style=_MARKS[row.status][1]),
            )
        )
    console.print(table(header, shown, left=2))
    for note in comparison.footnotes(rows):
        console.print(Text(note))


def _headline(report: Report) -> str:
    device = report.device
    if report.status != "passed":
        return printable(f"profile {report.profile or '-'} on {device.requested}")
    last = report.epochs[-1]
    doubt = "" if report.speed_counts else " (speed not judged)"
    return (
        f"{device.requested} did the work; epoch {last.seconds:.1f} s{doubt},"
        f" accuracy {percent(last.accuracy)}"
    )
