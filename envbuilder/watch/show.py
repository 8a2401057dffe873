"""Show a watched training: as text after the command's own output, and as a page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from envbuilder.core import console, text
from envbuilder.core.text import (
    amount,
    counted,
    duration,
    first,
    memory,
    percent,
    printable,
)
from envbuilder.verify import figures, page as pages
from envbuilder.verify.figures import Fact
from envbuilder.verify.report import comparison
from envbuilder.watch import judge, model
from envbuilder.watch.training import totals

ADVICE = "This is advice and no proof: it is what a hook saw in the script, which could lie."
MOST_SHOWN = 6


def verdict(watched: model.Watched) -> str:
    """Return one line: where the work was, and whether that is where it should be."""
    where = judge.device(watched)
    trained = judge.training(watched)
    if watched.on_device is None:
        seen = "no training was seen" if not trained else "where the work was is not known"
        return f"NOT SEEN: {seen}"
    rate = judge.speed(watched)
    speed = f", {amount(rate[0])} {rate[1]}/s" if rate else ""
    if not watched.on_device:
        return f"NOT ON {watched.requested.upper()}: the work was on {where}{speed}"
    return f"ON {watched.requested.upper()}: {where} did the work{speed}"


def facts(watched: model.Watched) -> list[Fact]:
    """Return what was measured, of all processes together."""
    trained = judge.training(watched)
    if not trained:
        return []
    longest = max(trained, key=lambda p: p.training_seconds)
    losses = [loss for _, loss in longest.losses if loss is not None]
    rate = judge.speed(watched)
    loader = longest.loader
    seconds = longest.training_seconds or math.inf
    shown = [
        Fact("Framework", judge.framework(watched)),
        Fact("Processes", counted(len(trained), "process")) if len(trained) > 1 else None,
        Fact("Work", _shares(trained, "work", "flops"), "of matrix work"),
        Fact("Parameters", _shares(trained, "parameters")),
        Fact("Gradients", _shares(trained, "gradients")),
        Fact("Activations", _shares(trained, "activations")),
        Fact("Batches", _shares(trained, "batches"), "as loaded"),
        Fact("Copies", _copies(trained)),
        Fact("Steps", f"{longest.steps:,}", duration(longest.training_seconds))
        if longest.steps
        else None,
        Fact("Rate", f"{amount(rate[0])} {rate[1]}/s") if rate else None,
        Fact(
            "Waiting for data", percent(loader.waited / seconds), counted(loader.workers, "worker")
        )
        if loader
        else None,
        Fact("Loss", f"{amount(losses[0])} → {amount(losses[-1])}") if losses else None,
        Fact("Not used", first(judge.unused_kernels(watched), 4), "operators of the extension"),
        Fact("Expensive operators", _expensive(trained), "by the host's time"),
        *(
            Fact(f"Memory of {printable(d.device, 40)}", memory(d.peak), "peak")
            for d in longest.devices
            if d.peak
        ),
        Fact("Memory of the process", memory(longest.peak_rss), "peak"),
        *(
            Fact(
                f"GPU {gpu.index}",
                f"{percent(gpu.utilization)} used",
                f"{gpu.watts:.0f} W" if gpu.watts is not None else "",
            )
            for gpu in watched.machine.gpus
            if gpu.utilization is not None
        ),
        Fact(
            "Observed",
            counted(longest.windows, "sampled step"),
            f"which took {percent(min(longest.overhead_seconds / seconds, 1.0))} of the time",
        ),
    ]
    return [fact for fact in shown if fact and fact.value]


def _shares(trained: Sequence[model.Observed], table: str, field: str = "bytes") -> str:
    """Return the devices and dtypes of a table's rows with their shares, the largest first."""
    rows = itertools.chain.from_iterable(getattr(process, table) for process in trained)
    sizes = totals(((row.device, row.dtype), getattr(row, field)) for row in rows)
    total = sum(size for _, size in sizes)
    return ", ".join(
        f"{printable(device, 40)} {printable(dtype, 40)} {percent(size / total, 0)}"
        for (device, dtype), size in sizes[:MOST_SHOWN]
    )


def _copies(trained: Sequence[model.Observed]) -> str:
    every = itertools.chain.from_iterable(process.copies for process in trained)
    copies = sorted(every, key=lambda copy: -copy.bytes)
    return ", ".join(
        f"{printable(c.source, 40)} → {printable(c.target, 40)} {memory(c.bytes)}"
        + (f" at {printable(c.where, 100)}" if c.where else "")
        for c in copies[:3]
    )


def _expensive(trained: Sequence[model.Observed]) -> str:
    """Return the operators that took most of the host's time in sampled steps."""
    rows = itertools.chain.from_iterable(process.work for process in trained)
    spent = totals((row.operator, row.seconds) for row in rows)
    total = sum(seconds for _, seconds in spent)
    return ", ".join(
        f"{printable(name.removeprefix('aten::'), 60)} {percent(seconds / total, 0)}"
        for name, seconds in spent[:3]
    )


def unseen(watched: model.Watched) -> tuple[str, ...]:
    """Return sentences on what could not be observed, each once."""
    sentences = dict.fromkeys(itertools.chain.from_iterable(p.unseen for p in watched.processes))
    left_out = f"{counted(watched.left_out, 'process')} left out" if watched.left_out else ""
    return tuple(printable(s, 200) for s in (*sentences, left_out) if s)[:MOST_SHOWN]


def show(watched: model.Watched, changes: Sequence[str] = ()) -> None:
    """Print a report on stderr: the command has stdout."""
    from rich.text import Text

    out = console.rich_console(stderr=True)
    out.print()
    table = figures.grid(facts(watched))
    if table.row_count:
        out.print(table)
        out.print()
    style = {True: "bold green", False: "bold red", None: "bold yellow"}[watched.on_device]
    out.print(Text(printable(verdict(watched), 300), style=style))
    for finding in watched.findings[:MOST_SHOWN]:
        out.print(Text(f"  {printable(finding.says, 500)}"))
    if watched.findings:
        out.print(Text(f"Advice: {printable(watched.findings[0].advice, 500)}", style="bold"))
    for sentence in (*(f"not seen: {s}" for s in unseen(watched)), *changes, ADVICE):
        out.print(Text(printable(sentence, 300)))


def page(watched: model.Watched) -> str:
    """Return a report as one page that needs no network and no script."""
    longest = max(judge.training(watched), key=lambda p: p.training_seconds, default=None)
    command = " ".join(printable(word, 200) for word in watched.command)
    where = judge.environment(watched)
    about = (where[:1].upper() + where[1:], watched.backend, watched.host, command)
    return pages.rendered(
        "watch.html.j2",
        title=printable(verdict(watched), 300),
        status={True: "passed", False: "failed", None: "skipped"}[watched.on_device],
        about=" · ".join(printable(part, 300) for part in about if part),
        time=text.readable_stamp(watched.time),
        findings=[
            {"says": printable(each.says, 500), "advice": printable(each.advice, 500)}
            for each in watched.findings
        ],
        facts=facts(watched),
        loss=pages.line(longest.losses) if longest else None,
        unseen=unseen(watched),
        advice=ADVICE,
    )


COLUMNS = ("machine", "profile", "device", "dtype", "rate", "waiting", "loss", "verdict")


def _cells(watched: model.Watched) -> tuple[str, ...]:
    """Return a report's row in a comparison."""
    shown = {fact.label: fact.value for fact in facts(watched)}
    where = {True: "on device", False: "NOT ON DEVICE", None: "not seen"}[watched.on_device]
    kinds = ", ".join(finding.kind for finding in watched.findings)
    environment = judge.environment(watched).removeprefix("profile ")
    cells = (
        watched.host,
        f"{environment}, {watched.backend}",
        judge.device(watched),
        judge.dtype(watched),
        shown.get("Rate", "-"),
        shown.get("Waiting for data", "-"),
        shown.get("Loss", "-"),
        f"{where}: {kinds}" if kinds else where,
    )
    return tuple(printable(cell, 300) for cell in cells)


def _fastest(watches: Sequence[model.Watched]) -> list[model.Watched]:
    return sorted(watches, key=lambda each: -(judge.speed(each) or (0.0, ""))[0])


def print_comparison(watches: Sequence[model.Watched], out: Any) -> None:
    """Print several reports as one table, the fastest first."""
    out.print(figures.table(COLUMNS, map(_cells, _fastest(watches)), left=len(COLUMNS)))


def compared(watches: Sequence[model.Watched], form: str) -> str:
    """Return several reports as `markdown` or `json`, the fastest first."""
    rows = [_cells(each) for each in _fastest(watches)]
    if form == "markdown":
        return comparison.markdown_table(COLUMNS, rows)
    reports = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return console.as_json({"schema": 1, "kind": model.KIND, "reports": reports}) + "\n"
