"""Show a watched training run, as text after the command's own output or as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal

from envbuilder.core import text
from envbuilder.core.errors import counted, printable
from envbuilder.core.text import amount, duration, memory, percent
from envbuilder.verify import view
from envbuilder.verify.view import Fact
from envbuilder.watch import judge, model
from envbuilder.watch.training import WAITING, WAITING_TOTAL, totals

ADVICE = "This is advice, not proof: it is what a hook saw in the script, which could lie."
MOST_SHOWN = 6
"""Maximum number of findings, of shares and of sentences to show."""


def verdict(watched: model.Watched) -> str:
    """Return a line that says which device did the work, and whether this device was requested."""
    where = judge.device(watched)
    if watched.on_device is None:
        if judge.training(watched):
            return "NOT SEEN: it is unknown where the work ran"
        return "NOT SEEN: no training was seen"
    rate = judge.speed(watched)
    speed = ""
    if rate:
        speed = f", {amount(rate[0])} {rate[1]}/s"
    if not watched.on_device:
        return f"NOT ON {watched.requested.upper()}: the work was on {where}{speed}"
    return f"ON {watched.requested.upper()}: {where} did the work{speed}"


def facts(watched: model.Watched) -> list[Fact]:
    """Return the measured values to show, for all processes together.

    Values that were not observed are omitted. Return an empty list if no process trained.
    """
    trained = judge.training(watched)
    return [fact for fact in _facts(watched, trained) if fact.value] if trained else []


def _facts(watched: model.Watched, trained: Sequence[model.Observed]) -> Iterator[Fact]:
    """Yield the measured values to show. A value that was not observed is an empty string."""
    longest = max(trained, key=lambda p: p.training_seconds)
    seconds = longest.training_seconds or math.inf
    yield Fact("Framework", judge.framework(watched))
    if len(trained) > 1:
        yield Fact("Processes", counted(len(trained), "process"))
    yield Fact("Work", _shares(trained, "work", "flops"), "of matrix work")
    yield Fact("Parameters", _shares(trained, "parameters"))
    if longest.steps:
        yield Fact("Steps", f"{longest.steps:,}", duration(longest.training_seconds))
    if rate := judge.speed(watched):
        yield Fact("Rate", f"{amount(rate[0])} {rate[1]}/s")
    if loader := longest.loader:
        share = percent(loader.waited / seconds)
        note = counted(loader.workers, "worker")
        if WAITING * seconds <= loader.waited < WAITING_TOTAL:
            note += ", too short to judge"
        yield Fact("Waiting for data", share, note)
    losses = [loss for _, loss in longest.losses if loss is not None]
    if losses:
        yield Fact("Loss", f"{amount(losses[0])} → {amount(losses[-1])}")
    for device in longest.devices:
        if device.peak:
            yield Fact(f"Memory of {device.device}", memory(device.peak), "peak")
    yield Fact("Memory of the process", memory(longest.peak_rss), "peak")
    for gpu in watched.machine.gpus:
        if gpu.utilization is not None:
            note = ""
            if gpu.watts is not None:
                note = f"{gpu.watts:.0f} W"
            yield Fact(f"GPU {gpu.index}", f"{percent(gpu.utilization)} used", note)
    share = percent(min(longest.overhead_seconds / seconds, 1.0))
    observed = counted(longest.windows, "sampled step")
    yield Fact("Observed", observed, f"which took {share} of the time")


def _shares(trained: Sequence[model.Observed], table: str, field: str = "bytes") -> str:
    """Return the devices and dtypes with the largest shares in `table`, largest first.

    Each share is a percentage of the sum of `field` over all rows.
    """
    rows = chain.from_iterable(getattr(process, table) for process in trained)
    sums = totals((f"{row.device} {row.dtype}", getattr(row, field)) for row in rows)
    total = sum(size for _, size in sums)
    return ", ".join(f"{name} {percent(size / total, 0)}" for name, size in sums[:MOST_SHOWN])


def unseen(watched: model.Watched) -> list[str]:
    """Return sentences that each say what could not be observed. Duplicates are removed."""
    sentences = list(chain.from_iterable(p.unseen for p in watched.processes))
    if watched.left_out:
        sentences.append(f"{counted(watched.left_out, 'process')} not included")
    return list(dict.fromkeys(sentences))[:MOST_SHOWN]


_STATES: dict[bool | None, tuple[Literal["passed", "failed", "skipped"], str]] = {
    True: ("passed", "bold green"),
    False: ("failed", "bold red"),
    None: ("skipped", "bold yellow"),
}
"""The state and the style of the verdict, by whether the work was on the requested device."""


def show(watched: model.Watched, changes: Sequence[str], out: Any) -> None:
    """Show a report on a rich console.

    `changes` are sentences that compare the report with an earlier one.
    """
    from rich.text import Text

    out.print()
    view.show([view.Section(title="What was measured", facts=facts(watched))], out)
    _, style = _STATES[watched.on_device]
    out.print(Text(printable(verdict(watched)), style=style))
    for finding in watched.findings[:MOST_SHOWN]:
        out.print(Text(f"  {printable(finding.says)}"))
    if watched.findings:
        out.print(Text(f"Advice: {printable(watched.findings[0].advice)}", style="bold"))
    not_seen = [f"not seen: {sentence}" for sentence in unseen(watched)]
    for sentence in (*not_seen, *changes, ADVICE):
        out.print(Text(printable(sentence)))


def page(watched: model.Watched) -> str:
    """Return a report as one HTML page that needs no network and runs no script."""
    longest = max(judge.training(watched), key=lambda p: p.training_seconds, default=None)
    command = " ".join(watched.command)
    state, _ = _STATES[watched.on_device]
    return view.render(
        view.Page(
            heading=verdict(watched),
            verdict=state,
            sentence=ADVICE,
            reasons=[f"{finding.says} {finding.advice}" for finding in watched.findings],
            subject=(
                judge.environment(watched),
                watched.backend,
                watched.host,
                command,
                text.readable_stamp(watched.time),
            ),
            sections=[
                view.Section(title="What was measured", facts=facts(watched)),
                view.loss_section(longest.losses if longest else ()),
                view.Section(title="Not seen", notes=unseen(watched)),
            ],
            source="the report of a watched training",
        )
    )
