"""Compute the contents of the page's sections: labels, values and sentences from a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.verify.page.bars import warm_seconds
from envbuilder.verify.page.values import (
    SPACE,
    amount,
    bytes_of_memory,
    count,
    items,
    mapping,
    number,
    percent,
    rate,
    seconds,
    significant,
    text,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STATUSES = ("passed", "failed", "warning", "skipped")


class Fact(Struct, frozen=True, kw_only=True):
    """One fact: label, value, and a note next to it; `wrong` highlights it."""

    label: str
    value: str
    note: str = ""
    wrong: bool = False


def _epochs_of(report: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
    return [mapping(epoch) for epoch in items(mapping(report.get("training")).get("epochs"))]


def figures(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the key figures."""
    passes = _epochs_of(report)
    warm = warm_seconds(report)
    first = amount(passes[0].get("seconds")) if passes else None
    if warm:
        note = f"warm, median of {warm[1]}" if warm[1] > 1 else "warm"
        yield Fact(label="An epoch", value=seconds(warm[0]), note=note)
    elif first:
        yield Fact(label="An epoch", value=seconds(first), note="the first one")
    ratio = amount(report.get("speedup"))
    if ratio:
        yield Fact(label="Against the CPU", value=times(ratio), note="epoch 1 of each")
    accuracy = amount(passes[-1].get("accuracy")) if passes else None
    if accuracy is not None:
        needed = amount(mapping(report.get("training")).get("min_accuracy"))
        note = f"{percent(needed)} needed" if needed is not None else ""
        yield Fact(label="Accuracy", value=percent(accuracy), note=note)
    images = amount(passes[-1].get("samples_per_second")) if passes else None
    if images:
        yield Fact(label="Training", value=significant(images), note="images a second")
    cold = amount(mapping(report.get("training")).get("cold_start_seconds"))
    if cold:
        yield Fact(label="Cold start", value=seconds(cold), note="process to first step")


def facts(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the facts about the run: device, torch, precision, data, environment."""
    device, host = mapping(report.get("device")), mapping(report.get("host"))
    asked, used = text(device.get("requested"), 40), text(device.get("used"), 80)
    size = amount(device.get("memory_bytes"))
    if asked or used:
        differs = asked != used
        did = f"{used} did the work" if used else "nothing was shown to do the work"
        but = "but " if differs else "and "
        yield Fact(
            label="Device",
            value=text(device.get("name")) or used or asked,
            note=f"{asked or 'nothing'} was asked for, {but}{did}",
            wrong=differs,
        )
    beside = _listed(_named("driver", device.get("driver")), text(device.get("capability"), 40))
    if size:
        yield Fact(label="Its memory", value=bytes_of_memory(size), note=beside)
    elif beside:
        yield Fact(label="Its driver", value=beside)
    torch = mapping(report.get("torch"))
    if version := text(torch.get("version"), 80):
        python = _named("Python", torch.get("python"))
        note = _listed(_named("runtime", torch.get("runtime")), python, text(torch.get("platform")))
        yield Fact(label="PyTorch", value=version, note=note)
    extensions = mapping(torch.get("extensions"))
    if known := _listed(*(_named(text(k, 40), v) for k, v in extensions.items())):
        yield Fact(label="Extensions", value=known)
    yield from _work(report)
    cpu = mapping(host.get("cpu"))
    if name := text(cpu.get("model_name")):
        cores = _named("cores:", cpu.get("physical"))
        yield Fact(label="Host CPU", value=name, note=_listed(text(cpu.get("generation")), cores))
    if system := text(host.get("os_version")) or text(host.get("os")):
        inside = "in a container" if host.get("container") is True else ""
        note = _listed(text(host.get("machine")), _named("kernel", host.get("kernel")), inside)
        yield Fact(label="System", value=system, note=note)
    artifact = mapping(report.get("artifact"))
    if ref := text(artifact.get("ref")):
        kind = text(artifact.get("kind"), 40)
        yield Fact(label="Environment", value=ref, note=kind)


def _work(report: Mapping[str, Any]) -> Iterator[Fact]:
    precision, data = mapping(report.get("precision")), mapping(report.get("dataset"))
    if dtype := text(precision.get("dtype"), 40):
        low = [
            n for n, key in (("autocast", "autocast"), ("TF32", "cuda_tf32")) if precision.get(key)
        ]
        note = _listed(
            _named("matmul precision", precision.get("matmul")), *(f"{n} on" for n in low)
        )
        yield Fact(label="Precision", value=dtype, note=note)
    if name := text(data.get("name"), 120):
        train, test = count(data.get("train")), count(data.get("test"))
        note = f"{train:,} images to train on, {test:,} to test" if train and test else ""
        yield Fact(label="Data", value=name, note=note)
    training, threads = mapping(report.get("training")), mapping(report.get("threads"))
    if optimizer := text(training.get("optimizer"), 40):
        note = _listed(
            _named("batch", training.get("batch")),
            _named("seed", training.get("seed")),
            text(training.get("reordered")),
            text(training.get("memory_format")),
            text(training.get("dropout")),
            text(training.get("extension")),
        )
        yield Fact(label="Training", value=optimizer, note=note)
    if number_of := text(threads.get("torch"), 40):
        allocator = text(threads.get("allocator")).rpartition("/")[2]
        yield Fact(label="Threads", value=number_of, note=_named("allocator", allocator))


def _named(name: str, value: Any) -> str:
    shown = text(value, 200)
    return f"{name} {shown}" if shown else ""


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def checks(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the checks, and the number of checks per status."""
    rows = []
    for check in map(mapping, items(report.get("checks"))):
        status, took = text(check.get("status"), 20), amount(check.get("seconds"))
        rows.append(
            {
                "name": text(check.get("name"), 80) or "(no name)",
                "status": status if status in STATUSES else "unknown",
                "took": _took(took),
                "detail": text(check.get("detail")),
            }
        )
    counts = [
        (status, sum(r["status"] == status for r in rows)) for status in (*STATUSES, "unknown")
    ]
    return {"rows": rows, "counts": [(status, n) for status, n in counts if n]}


def _took(value: float | None) -> str:
    """Return a check's duration, which is recorded in whole milliseconds; "" below that."""
    if value is None or value < 0.0005:
        return ""
    return f"{1000 * value:.0f}{SPACE}ms" if value < 1 else seconds(value)


def passes(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table of epochs, the CPU baseline last."""
    rows = []
    baseline = mapping(report.get("baseline"))
    named = [(str(n), epoch) for n, epoch in enumerate(_epochs_of(report), 1)]
    for name, epoch in [*named, *([("CPU", baseline)] if baseline else [])]:
        values = [amount(epoch.get(key)) for key in ("seconds", "data_seconds", "compute_seconds")]
        rows.append(
            [
                name,
                *("–" if v is None else significant(v) for v in values),
                _or_dash(amount(epoch.get("samples_per_second")), lambda v: f"{v:,.0f}"),
                _or_dash(number(epoch.get("loss")), lambda v: f"{v:.4f}"),
                _or_dash(amount(epoch.get("accuracy")), percent),
            ]
        )
    return rows


def _or_dash(value: float | None, form: Any) -> str:
    return "–" if value is None else str(form(value))


def training(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences below the epochs."""
    device = text(mapping(report.get("device")).get("requested"), 40)
    if mapping(report.get("baseline")):
        yield (
            "The CPU trained one epoch from scratch, so epoch 1 is its fair counterpart; warm"
            " epochs have start-up behind them."
        )
    elif device == "cpu":
        yield "The CPU itself was verified, so there is nothing to compare it with."
    elif device:
        yield "The same epoch was not run on the CPU, so there is no speed-up to tell."
    same = mapping(report.get("determinism"))
    steps = count(same.get("steps"))
    over = f" over {steps:,} steps" if steps else ""
    if same.get("equal") is True:
        yield f"Two runs with the same seed gave the same weights{over}, bit for bit."
    elif same.get("equal") is False:
        apart = amount(same.get("largest_difference"))
        by = f" by at most {apart:.1e}" if apart is not None else ""
        yield f"Two runs with the same seed differed{over}{by}: training is not reproducible here."


def measured(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the measurements that are single numbers."""
    measured = mapping(report.get("measurements"))
    if launch := amount(measured.get("launch_seconds")):
        yield Fact(label="Launching an operation", value=seconds(launch))
    inference = mapping(measured.get("inference"))
    if images := amount(inference.get("samples_per_second")):
        note = _named("batch", inference.get("batch"))
        yield Fact(label="Inference", value=f"{significant(images)} images a second", note=note)
    if flops := amount(measured.get("epoch_flops")):
        yield Fact(label="Work in an epoch", value=rate(flops, "FLOP"))
    logging = mapping(measured.get("logging"))
    every, end = amount(logging.get("every_step_seconds")), amount(logging.get("at_end_seconds"))
    if every and end:
        steps = count(logging.get("steps"))
        over = f" for {steps:,} steps" if steps else ""
        yield Fact(
            label="Reading the loss at every step",
            value=f"{times(every / end)} the time",
            note=f"{seconds(every)} instead of {seconds(end)}{over}",
        )


def memories(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the sizes of the memories involved."""
    device, host = mapping(report.get("device")), mapping(report.get("host"))
    memory = mapping(host.get("memory"))
    rows: Sequence[tuple[str, Any]] = (
        ("Device memory", device.get("memory_bytes") if device.get("requested") != "cpu" else None),
        ("Host memory", memory.get("total_bytes") or host.get("memory_bytes")),
        ("Limit of the container or group", memory.get("limit_bytes")),
        ("Shared memory (/dev/shm)", memory.get("shm_bytes")),
    )
    for label, value in rows:
        if size := amount(value):
            yield Fact(label=label, value=bytes_of_memory(size))


def compiled(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row per tried compile backend: correctness of its gradients, and speed-up."""
    rows = []
    for entry in map(mapping, items(report.get("compile"), 20)):
        right = mapping(entry.get("gradients")).get("passed")
        verdict = {True: "right", False: "wrong"}.get(right) if isinstance(right, bool) else None
        rows.append(
            {
                "backend": text(entry.get("backend"), 60) or "?",
                "gradients": verdict or ("failed" if text(entry.get("error")) else "not checked"),
                "inference": _speed(entry.get("inference")),
                "training": _speed(entry.get("training")),
            }
        )
    return rows


def _speed(value: Any) -> str:
    speed = mapping(value)
    ratio = amount(speed.get("speedup_over_eager"))
    if ratio is None:
        return "–"
    return times(ratio) if speed.get("counts") is True else "does not count"
