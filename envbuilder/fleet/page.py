"""Render a run of a fleet as one HTML page that needs no network, and works without its script.

The script, which sorts and searches the table, is the only one that the page's policy admits: by
its hash. Filters by outcome need no script.

Epochs are drawn as strips: one for each kind of node, each node a point, outliers by name. A
point's place is its share of the median of its equals, by which it is judged; so all strips have
one scale, however fast their nodes are.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envbuilder.core import resources, text
from envbuilder.fleet import drift as drifts, table
from envbuilder.fleet.judge import LEAST_EQUALS
from envbuilder.fleet.model import (
    LEFT_OUT,
    MARKS,
    MOST_NAMED,
    OUTCOMES,
    PROVEN,
    TONES,
    Entry,
    Group,
    Outcome,
    Summary,
)
from envbuilder.verify.page import position, templates
from envbuilder.verify.report.history import MAX_SLOWDOWN

LOWEST = 0.25
HIGHEST = 3.0
"""Points beyond these shares are drawn at their places."""
MOST_OUTLIERS = 12
"""Outliers that a strip names, and nodes of a kind that has no strip."""
_MARGIN = 2.0
"""Percent of the width on either side, so that no point is cut."""
_USUAL = (0.8, 1.4)
"""The scale covers these shares at least, so that noise does not look like a difference."""
_TICKS = (0.25, 0.5, 0.75, 1.0, MAX_SLOWDOWN, 2.0, 3.0)
_GOLDEN = 0.618


def render(summary: Summary, drift: drifts.Drift | None = None) -> str:
    """Return the page of a run, compared with an earlier one if there is a comparison."""
    script = (resources.folder("templates") / "fleet" / "page.js").read_text(encoding="utf-8")
    # As a Content Security Policy names it.
    digest = hashlib.sha256(script.encode()).digest()
    entries = summary.entries
    # The place of a node among all, which the page's links name.
    numbers = {entry.node: number for number, entry in enumerate(entries)}
    page: str = (
        templates()
        .get_template("fleet.html.j2")
        .render(
            summary=summary,
            sentence=_sentence(summary),
            reasons=_reasons(entries),
            subject=_subject(summary),
            figures=_figures(summary),
            nodes=len(entries) or sum(len(group.nodes) for group in summary.groups),
            marks=MARKS,
            legend=_legend(entries),
            legend_order={outcome: place for place, outcome in enumerate(OUTCOMES)},
            numbers=numbers,
            strips=strips(entries),
            # What needs attention comes first.
            rows=[
                (e, _detail(e)) for tone in TONES for e in entries if MARKS[e.outcome].tone == tone
            ],
            amount=text.amount,
            times=text.times,
            readable=text.readable_stamp,
            drift=drift,
            drift_sentences=drifts.sentences(drift) if drift else (),
            drift_labels=drifts.LABELS,
            regressions=drifts.REGRESSIONS,
            groups=[_group(group) for group in summary.groups],
            together=table.together(summary),
            script=script,
            script_hash=f"sha256-{base64.b64encode(digest).decode()}",
        )
    )
    return page


def _legend(entries: Iterable[Entry]) -> dict[Outcome, int]:
    """Return how many nodes have each outcome, the best first, without those that none has."""
    number = Counter(entry.outcome for entry in entries)
    return {outcome: number[outcome] for outcome in OUTCOMES if number[outcome]}


def _sentence(summary: Summary) -> str:
    """Explain the verdict of a run."""
    left_out = sum(entry.outcome in LEFT_OUT for entry in summary.entries)
    examined = len(summary.entries) - left_out
    proven = sum(entry.outcome in PROVEN for entry in summary.entries)
    sentences = []
    if examined:
        nodes = f"{proven:,} of {text.counted(examined, 'node')}"
        them = "it" if examined == 1 else "them"
        sentences.append(f"{nodes} proved by training what was promised of {them}.")
    elif summary.entries or not summary.groups:
        sentences.append("No node was examined.")
    if left_out:
        sentences.append(
            f"{text.counted(left_out, 'node')} {'was' if left_out == 1 else 'were'} left out."
        )
    if summary.across:
        sentences.append(table.together(summary))
    if not summary.attested:
        sentences.append(table.NOT_ATTESTED)
    return " ".join(sentences)


def _reasons(entries: Sequence[Entry]) -> list[tuple[int, Outcome, str]]:
    """Return the outcomes by which a run did not pass, with number and names of their nodes."""
    reasons = [
        (number, outcome, text.first([e.node for e in entries if e.outcome == outcome], MOST_NAMED))
        for outcome, number in _legend(entries).items()
        if MARKS[outcome].tone in {"bad", "caution"}
    ]
    return sorted(reasons, key=lambda reason: TONES.index(MARKS[reason[1]].tone))


def _subject(summary: Summary) -> str:
    started = text.stamp_time(summary.started)
    finished = text.stamp_time(summary.finished)
    took = f"took {text.duration(max((finished - started).total_seconds(), 0))}"
    parts = (
        summary.scheduler.title(),
        f"run {summary.run}",
        text.readable_stamp(summary.started),
        took if summary.attested else "not attested",
    )
    return " · ".join(parts)


def _figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return label, value and note of the counts below the verdict."""
    groups = summary.groups
    if groups and not summary.entries:
        # The nodes only trained together.
        proven = sum(group.outcome in PROVEN for group in groups)
        return [
            ("Nodes", f"{sum(len(group.nodes) for group in groups):,}", ""),
            ("Groups", f"{len(groups):,}", ""),
            ("Trained together", f"{proven:,}", ""),
            ("Did not", f"{len(groups) - proven:,}", ""),
        ]
    tones = Counter(MARKS[entry.outcome].tone for entry in summary.entries)
    busy = sum(entry.outcome == "busy" for entry in summary.entries)
    return [
        ("Nodes", f"{tones.total():,}", ""),
        ("Proven", f"{tones['good']:,}", f"{busy:,} of them busy" if busy else ""),
        ("Not proven", f"{tones['bad'] + tones['caution']:,}", ""),
        ("Left out", f"{tones['left']:,}", ""),
    ]


def _detail(row: Entry | Group, *, job: bool = False) -> str:
    """Return the reason of an outcome, and which job (`job`: of any outcome) and pod it is of."""
    of_job = f"job {row.job}" if row.job and (job or row.outcome not in PROVEN) else ""
    pod = f"pod {row.pod}, not attested" if isinstance(row, Entry) and row.pod else ""
    return " · ".join(filter(None, (row.detail, of_job, pod)))


def _group(group: Group) -> dict[str, object]:
    """Return the texts about nodes that were to train together."""
    speed = group.images_per_second
    notes = (group.profile, group.device, f"{speed:,.0f} images/s" if speed else "")
    return {
        "nodes": group.nodes[:MOST_NAMED],
        "unnamed": len(group.nodes[MOST_NAMED:]),
        "outcome": group.outcome,
        "value": f"{text.percent(group.efficiency, 0)} efficiency" if group.efficiency else "",
        "note": " · ".join(filter(None, notes)),
        "detail": _detail(group, job=True),
    }


def strips(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the strips of a run, one for each kind with a median, the largest first.

    Places are in percent of the width: `rows` as `_strip` returns them, `ticks` with their texts,
    `median` and `limit`. `few` has a sentence for each kind with too few nodes to compare.
    """
    timed = [e for e in entries if e.epoch_seconds is not None]
    kinds = _kinds(e for e in timed if e.share is not None)
    compared = {kind: equals for kind, equals in kinds.items() if len(equals) >= LEAST_EQUALS}
    drawn: set[str] = set()
    shares: list[float] = []
    for equals in compared.values():
        drawn |= {e.node for e in equals}
        shares += map(_share, equals)
    alone = _kinds(e for e in timed if e.node not in drawn and e.outcome in {"verified", "slow"})

    low = max(LOWEST, min([_USUAL[0], *shares]))
    high = min(HIGHEST, max([_USUAL[1], *shares]))

    def across(share: float) -> float:
        return _MARGIN + position(share - low, high - low) * (1 - _MARGIN / 50)

    ordered = sorted(compared.items(), key=lambda item: -len(item[1]))
    return {
        "rows": [_strip(label, note, equals, across) for (label, note), equals in ordered],
        "ticks": [(round(across(t), 2), text.times(t)) for t in _TICKS if low <= t <= high],
        "median": round(across(1.0), 2),
        "limit": round(across(MAX_SLOWDOWN), 2),
        "few": [_few(label, note, nodes) for (label, note), nodes in alone.items()],
    }


def _kinds(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """Return entries by their device and by what did the work on it."""
    kinds: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        note = " · ".join(filter(None, (entry.profile, entry.backend, entry.framework)))
        kinds.setdefault((entry.device, note), []).append(entry)
    return kinds


def _strip(
    label: str, note: str, equals: Sequence[Entry], across: Callable[[float], float]
) -> dict[str, Any]:
    """Return the strip of nodes of one kind.

    `box` has start and width of the middle half of the nodes; `points` and `outliers` are SVG paths
    of lines without a length, which are drawn as dots; `named` are the slowest outliers with their
    shares, `unnamed` how many there are beyond them.
    """
    low, _, high = statistics.quantiles(map(_share, equals), n=4, method="inclusive")
    near = [e for e in equals if 1 / MAX_SLOWDOWN <= _share(e) <= MAX_SLOWDOWN]
    far = [e for e in equals if not 1 / MAX_SLOWDOWN <= _share(e) <= MAX_SLOWDOWN]
    far.sort(key=_share, reverse=True)
    seconds = [e.epoch_seconds for e in equals if e.epoch_seconds is not None]
    value = f"median {text.duration(statistics.median(seconds))}"
    nodes = text.counted(len(equals), "node")
    spread = f"{text.duration(min(seconds))} to {text.duration(max(seconds))}"
    outliers = text.counted(len(far), "outlier") if far else "no outlier"
    return {
        "label": label,
        "note": note,
        "value": value,
        "spread": f"{nodes}, {spread}",
        "box": (round(across(low), 2), round(across(high) - across(low), 2)),
        "points": _dots(near, across),
        "outliers": _dots(far, across),
        "named": [(e.node, text.times(_share(e))) for e in far[:MOST_OUTLIERS]],
        "unnamed": len(far[MOST_OUTLIERS:]),
        "spoken": f"{label}: {nodes}, {value}, {spread}, {outliers}",
    }


def _share(entry: Entry) -> float:
    return entry.share or 0.0


def _dots(nodes: Iterable[Entry], across: Callable[[float], float]) -> str:
    """Return one path for all points; their heights only keep them apart."""
    return "".join(
        f"M{across(_share(entry)):.4g} {10 + 80 * (number * _GOLDEN % 1):.0f}h0"
        for number, entry in enumerate(nodes)
    )


def _few(label: str, note: str, nodes: Sequence[Entry]) -> str:
    epochs = [
        f"{e.node} {text.amount(e.epoch_seconds)} s" for e in nodes if e.epoch_seconds is not None
    ]
    return f"{label} ({note}): {text.first(epochs, MOST_OUTLIERS)}"
