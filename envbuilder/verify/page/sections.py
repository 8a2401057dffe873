"""Compute the contents of the page's sections: labels, values and sentences from a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core.text import amount, duration, memory, percent, rate, times
from envbuilder.payload.frameworks import title
from envbuilder.verify.page.charts import warm_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.verify.report.measurements import Measurements
    from envbuilder.verify.report.model import Report, Scaling, Speed

STATUSES = ("passed", "failed", "warning", "skipped")


class Fact(Struct, frozen=True, kw_only=True):
    """One fact: label, value, and a note next to it; `wrong` highlights it."""

    label: str
    value: str
    note: str = ""
    wrong: bool = False


def figures(report: Report) -> Iterator[Fact]:
    """Yield the key figures."""
    passes, training = report.epochs, report.training
    doubt = "" if report.speed_counts else "speed not judged"
    if warm := warm_seconds(report):
        note = _listed(f"warm, median of {warm[1]}" if warm[1] > 1 else "warm", doubt)
        yield Fact(label="An epoch", value=duration(warm[0]), note=note)
    elif passes and passes[0].seconds > 0:
        note = _listed("the first one", doubt)
        yield Fact(label="An epoch", value=duration(passes[0].seconds), note=note)
    if report.speedup:
        yield Fact(label="Against the CPU", value=times(report.speedup), note="epoch 1 of each")
    if training is None:
        return
    if passes and passes[-1].accuracy is not None:
        needed = training.min_accuracy
        note = f"{percent(needed)} needed" if needed is not None else ""
        yield Fact(label="Accuracy", value=percent(passes[-1].accuracy), note=note)
    if passes and passes[-1].samples_per_second > 0:
        speed = amount(passes[-1].samples_per_second)
        yield Fact(label="Training", value=speed, note="images a second")
    if training.cold_start_seconds:
        cold = duration(training.cold_start_seconds)
        yield Fact(label="Cold start", value=cold, note="process to first step")


def facts(report: Report) -> Iterator[Fact]:
    """Yield the facts about the run: device, framework, precision, data, environment."""
    device, host, framework = report.device, report.host, report.framework
    differs = device.used != device.requested
    did = f"{device.used} did the work" if device.used else "nothing was shown to do the work"
    yield Fact(
        label="Device",
        value=device.name or device.used or device.requested,
        note=f"{device.requested} was requested, {'but' if differs else 'and'} {did}",
        wrong=differs,
    )
    details = _listed(_named("driver", device.driver), device.capability)
    if device.memory_bytes:
        yield Fact(label="Its memory", value=memory(device.memory_bytes), note=details)
    elif details:
        yield Fact(label="Its driver", value=details)
    if framework.version:
        runtime, python = _named("runtime", framework.runtime), _named("Python", framework.python)
        note = _listed(runtime, python, framework.platform)
        yield Fact(label=title(framework.name or ""), value=framework.version, note=note)
    if extensions := _listed(*(_named(name, v) for name, v in framework.extensions.items())):
        yield Fact(label="Extensions", value=extensions)
    yield from _work(report)
    if report.speed_reason:
        value = "judged" if report.speed_counts else "not judged"
        yield Fact(label="Speed", value=value, note=report.speed_reason)
    if name := host.cpu.model_name:
        note = _listed(host.cpu.generation, _named("cores:", host.cpu.physical))
        yield Fact(label="Host CPU", value=name, note=note)
    if system := host.os_version or host.os:
        inside = "in a container" if host.container else ""
        note = _listed(host.machine, _named("kernel", host.kernel), inside)
        yield Fact(label="System", value=system, note=note)
    if report.artifact.ref:
        yield Fact(label="Environment", value=report.artifact.ref, note=report.artifact.kind or "")


def _work(report: Report) -> Iterator[Fact]:
    precision, data = report.precision, report.dataset
    if precision is not None:
        note = _listed(
            _named("matmul precision", precision.matmul),
            "autocast on" if precision.autocast else "",
            "TF32 on" if precision.cuda_tf32 else "",
        )
        yield Fact(label="Precision", value=precision.dtype, note=note)
    if data.name:
        both = data.train and data.test
        note = f"{data.train:,} images to train on, {data.test:,} to test" if both else ""
        yield Fact(label="Data", value=data.name, note=note)
    training, threads = report.training, report.threads
    if training and training.optimizer:
        note = _listed(
            _named("batch", training.batch),
            _named("seed", training.seed),
            training.reordered,
            training.memory_format,
            training.dropout,
            training.extension,
        )
        yield Fact(label="Training", value=training.optimizer, note=note)
    if threads.framework:
        allocator, count = (threads.allocator or "").rpartition("/")[2], str(threads.framework)
        yield Fact(label="Threads", value=count, note=_named("allocator", allocator))


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
    counts = [(status, sum(c.status == status for c in report.checks)) for status in STATUSES]
    return {"rows": rows, "counts": [(status, n) for status, n in counts if n]}


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
            *(_or_dash(s, amount) for s in (e.seconds, e.data_seconds, e.compute_seconds)),
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
    if same is None:
        return
    if same.equal:
        yield (
            f"Two runs with the same seed gave the same weights over {same.steps:,} steps, bit"
            " for bit."
        )
        return
    apart = same.largest_difference
    by = f" by at most {apart:.1e}" if apart is not None else ""
    yield (
        f"Two runs with the same seed differed over {same.steps:,} steps{by}: training is not"
        " reproducible here."
    )


def measured(measurements: Measurements | None) -> Iterator[Fact]:
    """Yield the measurements that are single numbers."""
    if measurements is None:
        return
    if launch := measurements.launch_seconds:
        yield Fact(label="Launching an operation", value=duration(launch))
    if captured := measurements.captured:
        yield Fact(
            label="An epoch of captured steps",
            value=duration(captured.seconds),
            note=f"the first {duration(captured.first_seconds)}, with the capture"
            if captured.counts
            else "its losses differ from eager's: it does not count",
            wrong=not captured.counts,
        )
    if inference := measurements.inference:
        speed = f"{amount(inference.samples_per_second)} images a second"
        yield Fact(label="Inference", value=speed, note=f"batch {inference.batch}")
    if flops := measurements.epoch_flops:
        yield Fact(label="Work in an epoch", value=rate(flops, "FLOP"))
    if logging := measurements.logging:
        every, end = logging.every_step_seconds, logging.at_end_seconds
        yield Fact(
            label="Reading the loss at every step",
            value=f"{times(every / end)} the time",
            note=f"{duration(every)} instead of {duration(end)} for {logging.steps:,} steps",
        )


def memories(report: Report) -> Iterator[Fact]:
    """Yield the sizes of the memories involved."""
    device, host = report.device, report.host
    for label, size in (
        ("Device memory", device.memory_bytes if device.requested != "cpu" else None),
        ("Host memory", host.memory.total_bytes or host.memory_bytes),
        ("Limit of the container or group", host.memory.limit_bytes),
        ("Shared memory (/dev/shm)", host.memory.shm_bytes),
    ):
        if size:
            yield Fact(label=label, value=memory(size))


def compiled(report: Report) -> list[dict[str, str]]:
    """Return a row per tried compile backend: correctness of its gradients, and speed-up."""
    return [
        {
            "backend": entry.backend,
            "gradients": ("right" if entry.gradients.passed else "wrong")
            if entry.gradients
            else ("failed" if entry.error else "not checked"),
            "inference": _speed(entry.inference),
            "training": _speed(entry.training),
        }
        for entry in report.compile
    ]


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "–"
    return times(speed.speedup_over_eager) if speed.counts else "does not count"


MOST_DEVICES = 64


class Devices(Struct, frozen=True, kw_only=True):
    """Rows of (device, images per second alone, share of the sum); sentences on the joint run."""

    rows: tuple[tuple[str, str, str], ...]
    sentences: tuple[str, ...]
    wrong: tuple[str, ...]


def devices(scaling: Scaling | None) -> Devices | None:
    """Return the section on several devices; None if none were requested."""
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
    return Devices(
        rows=tuple(rows),
        sentences=tuple(_sentences(scaling)),
        wrong=(scaling.reasons or ("They did not pass.",)) if failed else (),
    )


def _sentences(scaling: Scaling) -> Iterator[str]:
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
