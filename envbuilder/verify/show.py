"""Show a verification report in words, either on the terminal or as one HTML page.

Only a report that passes `model.check` can be shown. Before `verify` shows anything, it replaces an
invalid report from the payload with a failed report, so there is a page even for a run that did not
finish. The module is long because the terminal and the page show the same facts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import printable
from envbuilder.core.text import (
    amount,
    duration,
    memory,
    percent,
    rate,
    readable_stamp,
    times,
)
from envbuilder.payload.frameworks import title
from envbuilder.payload.report import BLIND_TEST, STEP
from envbuilder.verify import view
from envbuilder.verify.advice import advise
from envbuilder.verify.report import comparison, model
from envbuilder.verify.report.measurements import Measurements
from envbuilder.verify.tune_settings import LEAST_GAIN
from envbuilder.verify.view import Fact, Section, Tone, Word, loss_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.verify.report.model import Baseline, Epoch, Report, Scaling, Speed

MOST_DEVICES = 64
MOST_RATES = 12
"""Maximum number of matmul rates that are shown, since an environment may report any number."""
_TONES: dict[str, Tone] = {
    "passed": "good",
    "failed": "bad",
    "unproven": "caution",
    "warning": "caution",
    "skipped": "left",
}


def status(word: str) -> Word:
    """Return the status of a report or check as a colored word."""
    return Word(word, _TONES[word])


def sections(report: Report) -> list[Section]:
    """Return the sections of a report, except for its key figures and its verdict."""
    measurements = report.measurements or Measurements()
    losses = report.training.losses if report.training else ()
    return [
        Section(title="In short", facts=list(answers(report))),
        Section(title="What did the work", facts=facts(report)),
        Section(
            title="Checks",
            header=("check", "status", "detail"),
            words=range(3),
            rows=[(c.name or "(no name)", status(c.status), c.detail) for c in report.checks],
        ),
        _epochs(report),
        loss_section(losses),
        Section(title="Computing rate", facts=list(rates(measurements))),
        Section(title="Bandwidth", facts=list(bandwidths(measurements))),
        Section(title="Memory", facts=list(memories(report))),
        Section(title="Also measured", facts=list(measured(measurements))),
        _compiled(report),
        devices(report.scaling),
    ]


_QUESTIONS = {
    "Did it train?": ("device used", BLIND_TEST),
    "Were the numbers right?": ("precision", "arithmetic", STEP),
}
"""The questions that a reader asks first, each with the names of the checks that answer it. Only
PyTorch has the check `arithmetic`."""


def answers(report: Report) -> Iterator[Fact]:
    """Yield the answers to `_QUESTIONS`, followed by a fact about the training speed."""
    statuses = {check.name: check.status for check in report.checks}
    # If the payload itself fails, its answers are not scored, and its steps are not repeated.
    unjudged = report.status == "failed" and not report.steps
    for question, names in _QUESTIONS.items():
        found = {statuses.get(name, "absent") for name in names}
        answer = "yes"
        if "failed" in found:
            answer = "no"
        elif unjudged or statuses.get(names[-1]) not in {"passed", "warning"}:
            answer = "not shown"
        yield Fact(question, answer)
    first, warm = report.epoch_seconds
    if first is None:
        return
    share = report.measurements.matmul_share if report.measurements else None
    reached = f"{percent(share, 0)} of the rate of its matrix products" if share else ""
    yield Fact("How fast was it?", f"{duration(warm or first)} an epoch", reached, _doubt(report))


def _doubt(report: Report) -> str:
    """Return a remark to show next to a speed if it was not judged, otherwise an empty string."""
    if report.speed_counts:
        return ""
    return "speed not judged"


def figures(report: Report) -> Iterator[Fact]:
    """Yield a report's key figures: epoch time, speed-up, accuracy, throughput and cold start."""
    training = report.training
    doubt = _doubt(report)
    first, warm = report.epoch_seconds
    count = len(report.epochs) - 1
    if first is not None:
        which = "the first one"
        if count:
            which = "warm"
        if count > 1:
            which = f"warm, median of {count}"
        yield Fact("An epoch", duration(warm or first), which, doubt)
    if report.speedup:
        yield Fact("Against the CPU", times(report.speedup), "epoch 1 of each", doubt)
    if training and report.epochs:
        last = report.epochs[-1]
        if last.accuracy is not None:
            note = ""
            if training.min_accuracy:
                note = f"{percent(training.min_accuracy)} needed"
            yield Fact("Accuracy", percent(last.accuracy), note)
        if last.samples_per_second > 0:
            yield Fact("Training", amount(last.samples_per_second), "images a second", doubt)
    if training and training.cold_start_seconds:
        seconds = duration(training.cold_start_seconds)
        yield Fact("Cold start", seconds, "process to first step", doubt)


def facts(report: Report) -> list[Fact]:
    """Return facts about the run: its device, framework, precision, data and environment."""
    device = report.device
    host = report.host
    framework = report.framework
    did = "no device was shown to do the work"
    if device.used:
        did = f"{device.used} did the work"
    doubt = ""
    if device.used != device.requested:
        doubt = f"{device.requested} was requested"
    software = _listed(
        _named("runtime", framework.runtime),
        _named("Python", framework.python),
        framework.platform,
    )
    extensions = [_named(name, version) for name, version in framework.extensions.items()]
    rows = (
        Fact(
            "Device",
            device.name or device.used or device.requested,
            _listed(device.capability, did),
            doubt,
        ),
        Fact("Its memory", memory(device.memory_bytes) if device.memory_bytes else ""),
        Fact("Its driver", device.driver or ""),
        Fact(title(framework.name or ""), framework.version or "", software),
        Fact("Extensions", _listed(*extensions)),
        *_work(report),
        Fact("Its speed", report.speed_reason or ""),
        Fact(
            "Host CPU",
            host.cpu.model_name or "",
            _listed(host.cpu.generation, _named("cores:", host.cpu.physical)),
        ),
        Fact(
            "System",
            host.os_version or host.os or "",
            _listed(
                host.machine,
                _named("kernel", host.kernel),
                "in a container" if host.container else "",
            ),
        ),
        Fact("Environment", report.artifact.ref or "", report.artifact.kind or ""),
    )
    return [fact for fact in rows if fact.value]


def _work(report: Report) -> Iterator[Fact]:
    """Yield facts about the training. A fact that is unknown has an empty value."""
    data = report.dataset
    training = report.training
    if precision := report.precision:
        note = _listed(
            _named("matmul precision", precision.matmul),
            "autocast on" if precision.autocast else "",
            "TF32 on" if precision.cuda_tf32 else "",
        )
        yield Fact("Precision", precision.dtype, note)
    images = f"{data.train or 0:,} images to train on, {data.test or 0:,} to test"
    small = ""
    if data.subset:
        small = "a subset, which does not show the full accuracy"
    yield Fact("Data", data.name or "", _listed(images, small))
    if training:
        note = _listed(
            _named("batch", training.batch),
            _named("seed", training.seed),
            training.reordered,
            training.memory_format,
            training.dropout,
            training.extension,
        )
        yield Fact("Training", training.optimizer or "", note)
    if report.threads.framework:
        allocator = (report.threads.allocator or "").rpartition("/")[2]
        yield Fact("Threads", str(report.threads.framework), _named("allocator", allocator))


def _named(name: str, value: str | int | None) -> str:
    if value in (None, ""):
        return ""
    return f"{name} {value}"


def _listed(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))


def _epochs(report: Report) -> Section:
    """Return a table of the epochs, followed by the CPU baseline.

    The table has no rows if nothing was trained.
    """
    name = "Epochs"
    if not report.epochs:
        return Section(title=name)
    rows = [_pass(str(number), epoch) for number, epoch in enumerate(report.epochs, 1)]
    if report.baseline:
        rows.append(_pass("CPU", report.baseline))
    return Section(title=name, header=_EPOCHS, rows=rows, notes=list(_training(report)))


_EPOCHS = ("epoch", "seconds", "data", "compute", "images/s", "loss", "accuracy")


def _pass(name: str, epoch: Epoch | Baseline) -> tuple[str, ...]:
    return (
        name,
        _or_dash(epoch.seconds, amount),
        _or_dash(epoch.data_seconds, amount),
        _or_dash(epoch.compute_seconds, amount),
        _or_dash(epoch.samples_per_second, "{:,.0f}".format),
        _or_dash(epoch.loss, "{:.4f}".format),
        _or_dash(epoch.accuracy, percent),
    )


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    if value is None:
        return "–"
    return form(value)


def _training(report: Report) -> Iterator[str]:
    """Yield the notes on the CPU baseline that belong below the table of epochs."""
    if report.baseline:
        yield (
            "The CPU trained one epoch from scratch, so compare it with epoch 1, since warm"
            " epochs no longer include start-up."
        )
    elif report.device.requested == "cpu":
        yield "The CPU itself was verified, so there is no other device to compare it with."
    else:
        yield "The same epoch was not run on the CPU, so there is no speed-up to report."


def rates(measurements: Measurements) -> Iterator[Fact]:
    """Yield the rates of matrix products, and the last epoch's share of the float32 rate."""
    share = measurements.matmul_share
    for product in (measurements.matmul or ())[:MOST_RATES]:
        speed = product.flops_per_second
        yield Fact(
            f"{product.dtype} matrix product",
            rate(speed, "FLOP/s"),
            f"{product.size:,} × {product.size:,}",
        )
        if product.dtype == "float32" and share:
            yield Fact(
                "The last epoch's computing",
                rate(share * speed, "FLOP/s"),
                f"{percent(share, 0)} of float32's",
            )


_PATHS = {
    "device": "Inside the device's memory",
    "host_to_device": "Host to device",
    "host_to_device_pinned": "Host to device, pinned",
    "device_to_host": "Device to host",
    "device_to_host_pinned": "Device to host, pinned",
    "device_to_device": "Device to device",
}


def bandwidths(measurements: Measurements) -> Iterator[Fact]:
    """Yield the bandwidths of memory and of copies, as far as they were measured."""
    for key, label in _PATHS.items():
        if value := getattr(measurements.bandwidth, key, None):
            yield Fact(label, rate(value, "B/s"))


def measured(measurements: Measurements) -> Iterator[Fact]:
    """Yield those measurements that consist of a single number."""
    if launch := measurements.launch_seconds:
        yield Fact("Launching an operation", duration(launch))
    if inference := measurements.inference:
        yield Fact(
            "Inference",
            f"{amount(inference.samples_per_second)} images a second",
            f"batch {inference.batch}",
        )
    if flops := measurements.epoch_flops:
        yield Fact("Work in an epoch", rate(flops, "FLOP"))


def memories(report: Report) -> Iterator[Fact]:
    """Yield the highest device memory use during training, and the sizes of the host's memory."""
    size = report.device.memory_bytes
    peak = report.measurements.peak_memory_bytes if report.measurements else None
    if peak:
        of_all = ""
        if size:
            of_all = f"of {memory(size)}, {percent(peak / size, 1)}"
        yield Fact("Highest use while training", memory(peak), of_all)
    sizes = {
        "Host memory": report.host.memory.total_bytes,
        "Limit of the container or group": report.host.memory.limit_bytes,
        "Shared memory (/dev/shm)": report.host.memory.shm_bytes,
    }
    for label, number in sizes.items():
        if number:
            yield Fact(label, memory(number))


def _compiled(report: Report) -> Section:
    """Return a table of the tested compile backends, with their gradients and speed-ups."""
    rows = []
    for entry in report.compile:
        gradients = "not checked"
        if entry.error:
            gradients = "failed"
        if entry.gradients:
            gradients = "wrong"
            if entry.gradients.passed:
                gradients = "right"
        rows.append((entry.backend, gradients, _speed(entry.inference), _speed(entry.training)))
    note = "Speed as a multiple of eager mode, which only counts if the results were right."
    return Section(
        title="torch.compile",
        header=("compiled with", "gradients", "inference", "training"),
        words=(0, 1),
        rows=rows,
        notes=(note,) if rows else (),
    )


def _speed(speed: Speed | None) -> str:
    if speed is None or speed.speedup_over_eager is None:
        return "–"
    if not speed.counts:
        return "does not count"
    noise = ""
    if 1 / LEAST_GAIN < speed.speedup_over_eager < LEAST_GAIN:
        noise = ", within noise"
    return times(speed.speedup_over_eager) + noise


def devices(scaling: Scaling | None) -> Section:
    """Return a table of the devices, with notes on the joint training or on its failure."""
    name = "Several devices"
    if scaling is None:
        return Section(title=name)
    total = sum(device.samples_per_second or 0 for device in scaling.devices)
    rows = []
    for device in scaling.devices[:MOST_DEVICES]:
        label = f"{device.index}: {device.name}" if device.name else f"{device.index}"
        speed = device.samples_per_second
        if speed:
            rows.append((label, amount(speed), percent(speed / total, 0)))
        else:
            rows.append((label, "–", "–"))
    wrong: tuple[str, ...] = ()
    if scaling.status == "failed":
        wrong = scaling.reasons or ("They did not pass.",)
    return Section(
        title=name,
        header=("device", "images/s alone", "share"),
        rows=rows,
        notes=list(_together(scaling)),
        wrong=wrong,
    )


def _together(scaling: Scaling) -> Iterator[str]:
    if scaling.ranks and scaling.samples_per_second:
        through = ""
        if scaling.backend:
            through = f" through {scaling.backend}"
        speed = f"{amount(scaling.samples_per_second)} images a second"
        share = ""
        if scaling.efficiency:
            share = f", {percent(scaling.efficiency, 0)} of the sum of each alone"
        yield f"All {scaling.ranks} together{through}: {speed}{share}."
    if scaling.gradients_equal:
        yield (
            "Gradients were equal on all ranks, and equal to those of one process over the joined"
            " batch. Each rank adds 64 images to a step."
        )


# On a terminal, at most 80 columns wide


def print_verdict(report: Report, console: Any) -> None:
    """Print a report's facts, checks, epochs, figures and verdict."""
    from rich.padding import Padding
    from rich.text import Text

    profile = Fact("Profile", report.profile or "-", report.backend or "")
    key_figures = Section(title="Key figures", facts=list(figures(report)))
    view.show([Section(title="Profile", facts=[profile]), *sections(report), key_figures], console)
    origin = as_found(report)
    verdict = "NOT VERIFIED"
    style = "bold red"
    if report.status == "passed":
        verdict = "VERIFIED"
        if origin:
            verdict = "VERIFIED as found"
        style = "bold green"
    console.print(Text(f"{verdict}: {headline(report)}", style=style))
    for reason in (origin, *report.reasons):
        if reason:
            console.print(Padding.indent(Text(printable(reason)), 2))


def as_found(report: Report) -> str:
    """Return a note that lists the caller's variables that determined what code ran.

    If the report of a passed verification does not say where its code came from, the note says so.
    The note is empty if the payload was isolated from the caller's variables, or if the
    verification did not pass and its report does not contain them.
    """
    if report.origins is None and report.status == "passed":
        return "as found: the report does not state where its code came from"
    if report.origins is None or not report.origins.as_found:
        return ""
    pairs = sorted(report.origins.variables.items())
    named = ", ".join(printable(f"{name}={value}", 300) for name, value in pairs)
    return f"as found: the environment's variables decided what ran: {named or 'none was set'}"


def print_comparison(rows: Sequence[comparison.Row], console: Any) -> None:
    """Print several reports, each as one line that describes it and one line of key figures."""
    from rich.text import Text

    names, *lines = comparison.filled(rows)
    console.print(Text(f"{_numbers(names, names)}  verdict", style="bold"))
    for row, line in zip(rows, lines, strict=True):
        known = dict(zip(names, line, strict=True))
        console.print(Text(", ".join(known.get(name, "-") for name in _ABOUT)))
        console.print(Text(f"{_numbers(names, line)} "), view.styled(status(row.status)))
    for note in comparison.footnotes(rows):
        console.print(Text(note))


def _numbers(names: Sequence[str], line: Sequence[str]) -> str:
    columns = zip(names, line, strict=True)
    return "".join(f"{cell:>11}" for name, cell in columns if name in _COMPARED)


_COMPARED = {"GPU epoch", "CPU epoch", "warm", "speed-up", "accuracy", "start-up"}
"""Columns that are shown as figures. Together with the verdict, they fit into 80 characters."""
_ABOUT = ("machine", "profile", "backend", "framework", "report", "date")


def headline(report: Report) -> str:
    """Return a one-line summary of a report.

    If the verification passed, the line gives the device that did the work, the duration of the
    last epoch, and the accuracy. Otherwise, it gives the profile and the requested device.
    """
    if report.status != "passed":
        return printable(f"profile {report.profile or '-'} on {report.device.requested}")
    last = report.epochs[-1]
    return _listed(
        f"{report.device.requested} did the work; epoch {last.seconds:.1f} s",
        _doubt(report),
        f"accuracy {percent(last.accuracy)}",
    )


# As a page


def render(data: Mapping[str, Any]) -> str:
    """Return the HTML page of a whole report; raise `VerifyError` if the report is not valid."""
    report = model.check(data)
    profile = report.profile or "-"
    device = report.device.name or report.device.requested
    rest = {key: value for key, value in data.items() if key != "traceback"}
    folded = [("The whole report", json.dumps(rest, indent=1, ensure_ascii=False))]
    if report.traceback:
        folded.append(("Traceback", report.traceback))
    heading = "NOT VERIFIED"
    sentence = _failed(report)
    reasons: Sequence[str] = report.reasons
    if report.status == "passed":
        heading = "VERIFIED"
        sentence = _passed(report)
    elif not reasons:
        reasons = [f"{c.name}: {c.detail}" for c in report.checks if c.status == "failed"]
        reasons = reasons or ["the report gives no reason"]
    return view.render(
        view.Page(
            heading=heading,
            title=f"{heading}: {profile} on {device}",
            verdict="passed" if report.status == "passed" else "failed",
            tag="quick verification" if report.partial else "",
            sentence=sentence,
            reasons=reasons,
            warnings=[f"Warning: {warning}" for warning in report.warnings],
            subject=(
                f"Profile {profile}",
                report.backend or "",
                readable_stamp(report.time or ""),
            ),
            figures=list(figures(report)),
            sections=sections(report),
            advice=advise(report),
            folded=folded,
            source=f"the report of a verification, by version {report.envbuilder or 'unknown'}",
        )
    )


def render_comparison(rows: Sequence[comparison.Row]) -> str:
    """Return an HTML page that compares reports, listed in the order of `rows`.

    All text in it is escaped.
    """
    names, *lines = comparison.filled(rows)
    table = Section(
        title="Reports",
        header=names,
        words=[n for n, name in enumerate(names) if name not in comparison.NUMBERS],
        rows=[(machine, status(verdict), *more) for machine, verdict, *more in lines],
        notes=comparison.footnotes(rows),
    )
    return view.render(
        view.Page(
            heading=f"{len(rows)} reports side by side",
            sentence="An epoch is a training pass over MNIST: the first one, and warm, the median"
            " of the later ones.",
            sections=[table],
            source="reports of verifications",
        )
    )


def _passed(report: model.Report) -> str:
    """Return a sentence that says what a passed verification has shown."""
    device = report.device
    subject = f"The accelerator {device.requested}"
    if device.name:
        subject = f"{device.name} ({device.requested})"
    right = ""
    if not model.absent((STEP,), report.checks):
        right = ", its numbers agree with a float64 reference,"
    learned = "MNIST"
    if report.partial:
        learned = "a small subset of its data, which says little about full accuracy and speed"
    done = f"{subject} did the work{right} and the network learned {learned}."
    origin = as_found(report)
    if origin:
        return f"{done} Taken {origin}."
    return done


def _failed(report: model.Report) -> str:
    """Return a sentence that says what a failed verification could not show."""
    requested = report.device.requested
    used = report.device.used
    if not used:
        return f"This does not show that {requested} works: nothing was trained on it."
    if used != requested:
        return f"The work did not run on {requested}, but on {used}."
    if report.status == "unproven":
        return (
            f"The work ran on {requested}, but is not proven: no step of the training was"
            " repeated outside."
        )
    if {check.name for check in report.checks if check.status == "failed"} == {"against"}:
        return f"The work ran on {requested} as requested, but slower or less accurate than before."
    return (
        f"The work ran on {requested}, but a check failed: do not rely on this environment on"
        " this machine."
    )
