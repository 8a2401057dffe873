"""The page of a fleet: the verdict first, every node in it, nothing of a node unescaped."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.fleet import drift, show
from envbuilder.fleet.model import OUTCOMES, Summary
from tests.support.fleet_runs import earlier, entry, summary, unreported
from tests.support.pages import POLICY, Seen
from tests.unit.verify.test_show import HOSTILE


def mixed() -> Summary:
    """A run with a node of every outcome, and equals to compare with."""
    proven = [entry(f"gpu-{n:02}", epoch_seconds=1.2 + n / 50) for n in range(5)]
    return summary(
        *proven,
        entry("busy-1", outcome="busy", share=None, detail="other tasks waited"),
        entry("slow-1", outcome="slow", epoch_seconds=2.5, share=2.0, detail="much slower"),
        *(unreported(f"{o}-1", o, f"why it is {o}") for o in OUTCOMES[3:]),
    )


def test_the_whole_run_is_there_in_order() -> None:
    text = show.page(mixed(), drift.compare(earlier(entry("gpu-00")), mixed()))
    seen = Seen(text)
    headings = ["Against the run of 16 November 2026, 09:15 UTC", "All nodes"]
    places = [seen.text.rindex(heading) for heading in headings]
    assert places == sorted(places)
    for words in (
        "NOT VERIFIED 20 nodes: 5 verified, 1 busy, 1 slow, 1 unproven, 1 wrong, 1 failed,",
        "1 failed: failed-1",
        "Slurm · run 20261123t091500z-0123ab · 23 November 2026, 09:15 UTC · took 27 min 5 s",
        "5 verified training on what was promised is proven",
        "why it is killed · by feature h100 · job 4711",
        "19 new; 1 node is in both runs.",
    ):
        assert words in seen.text, words
    assert "None" not in text
    policy = [m for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert [m["content"] for m in policy] == [POLICY]
    assert not {tag for tag, _ in seen.tags} & {"script", "iframe", "object", "img"}


def test_every_node_is_a_row_what_needs_attention_first() -> None:
    run = mixed()
    rows = show.page(run).rpartition("<tbody>")[2]
    assert min(run.entries, key=lambda e: rows.index(f">{e.node}<")).outcome == "wrong"
    order = [rows.index(f">{name}-1<") for name in ("refused", "slow", "busy", "drained")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (summary(entry("a")), "VERIFIED 1 node: 1 verified"),
        (summary(unreported("a", "drained")), "1 node: 1 drained; nothing was examined"),
        (summary(), "0 nodes: none; nothing was examined"),
        (summary(entry("a"), quick=True), "quick look"),
    ],
)
def test_small_runs(run: Summary, words: str) -> None:
    text = show.page(run)
    assert words in Seen(text).text
    assert ("NOT VERIFIED" in text) == (not run.passed)


def test_many_nodes_are_counted_in_the_verdict_and_all_in_the_table() -> None:
    run = summary(*(unreported(f"n{n:03}", "lost") for n in range(300)))
    text = show.page(run)
    head = text.partition("</header>")[0]
    assert "n007 and 292 more" in head
    assert "n008" not in head
    assert text.count(">n008<") == 1


def poisoned(run: Summary, poison: str) -> Summary:
    """The same run with poison in every text of its nodes that the model leaves free."""
    texts = dict.fromkeys(
        ("promised", "why", "device", "detail", "profile", "backend", "accelerator", "framework"),
        poison,
    )
    return replace(run, entries=tuple(replace(each, **texts) for each in run.entries))


@pytest.mark.parametrize("poison", HOSTILE)
def test_nothing_of_a_node_is_markup(poison: str) -> None:
    def tags(run: Summary) -> set[str]:
        compared = drift.compare(earlier(*mixed().entries), run)
        return {tag for tag, _ in Seen(show.page(run, compared)).tags}

    before: Any = tags(replace(mixed(), entries=(*mixed().entries, unreported("new", "lost"))))
    assert tags(poisoned(mixed(), poison)) <= before
    seen = Seen(show.page(poisoned(mixed(), poison)))
    assert poison[:40].strip() in seen.text or "\x00" in poison or "&lt;" in poison
