"""The page of a fleet: the verdict first, every node in it, nothing of a node unescaped."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.fleet import drift, page
from envbuilder.fleet.model import MARKS, OUTCOMES, TONES, Group, Summary
from envbuilder.fleet.page import HIGHEST, MOST_OUTLIERS, strips
from envbuilder.verify.report.history import MAX_SLOWDOWN
from tests.support.colours import BLINDNESS, contrast, difference, scheme
from tests.support.fleet_runs import earlier, entry, summary, unreported
from tests.support.pages import POLICY, Seen
from tests.unit.verify.test_page import HOSTILE


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
    seen = Seen(page.render(mixed(), drift.compare(earlier(entry("gpu-00")), mixed())))
    headings = ["Nodes", "Epochs", "Against the run of 16 November 2026, 09:15 UTC", "All nodes"]
    places = [seen.text.rindex(heading) for heading in headings]
    assert places == sorted(places)
    for words in (
        "NOT VERIFIED 6 of 18 nodes proved by training what was promised of them. 2 nodes",
        "1 failed : failed-1",
        "Slurm · run 20261123t091500z-0123ab · 23 November 2026, 09:15 UTC · took 27 min 5 s",
        "Nodes 20 Proven 6 1 of them busy Not proven 12 Left out 2",
        "5 verified",
        "median 1.25 s",
        "6 nodes, 1.20 s to 2.50 s",
        "slow-1 2.00×",
        "why it is killed · job 4711",
        "19 new; 1 node is in both runs.",
    ):
        assert words in seen.text, words
    assert "None" not in page.render(mixed())


def test_every_node_is_a_row_and_a_tile() -> None:
    run = mixed()
    seen = Seen(page.render(run))
    rows = [row for row in seen.all("tr") if row.get("id")]
    tiles = [a for a in seen.all("a") if (a.get("class") or "").startswith("tile")]
    assert len(rows) == len(tiles) == len(run.entries)
    assert {f"#{row['id']}" for row in rows} == {tile["href"] for tile in tiles}
    for each, tile in zip(run.entries, tiles, strict=True):
        assert tile["title"] == f"{each.node}: {each.outcome}"
        (row,) = [row for row in rows if f"#{row['id']}" == tile["href"]]
        assert row["class"] == f"o-{each.outcome}"


def test_what_needs_attention_comes_first_in_the_table() -> None:
    text = page.render(mixed())
    order = re.findall(r'<tr id="n\d+" class="o-([a-z-]+)"', text)
    assert (order[0], order[-2:]) == ("wrong", ["drained", "unmapped"])
    assert order.index("refused") < order.index("slow") < order.index("verified")


def test_every_outcome_that_is_there_can_be_filtered_without_the_script() -> None:
    text = page.render(mixed())
    for outcome in OUTCOMES:
        assert f'id="only-{outcome}"' in text
        assert f":not(:has(#only-{outcome}:checked)) .o-{outcome} " in text
    some = page.render(summary(entry("a")))
    assert "only-failed" not in some
    assert "o-failed" not in some


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (summary(entry("a")), "VERIFIED 1 of 1 node proved by training what was promised of it."),
        (summary(unreported("a", "drained")), "No node was examined. 1 node was left out."),
        (summary(), "No node was examined."),
        (summary(entry("a"), quick=True), "quick look"),
    ],
)
def test_small_runs(run: Summary, words: str) -> None:
    text = page.render(run)
    assert words in Seen(text).text
    assert ("NOT VERIFIED" in text) == (not run.passed)


def test_many_nodes_are_counted_in_the_verdict_and_all_in_the_table() -> None:
    run = summary(*(unreported(f"n{n:03}", "lost") for n in range(300)))
    text = page.render(run)
    head = text.partition("</header>")[0]
    assert "n007 and 292 more" in head
    assert "n008" not in head
    assert text.count(">n008<") == 1


def test_a_thousand_nodes_are_a_page_of_less_than_a_megabyte() -> None:
    run = summary(*(entry(f"rack{n // 48}-node{n % 48:02}") for n in range(1000)))
    assert len(page.render(run).encode()) < 1_000_000


def test_the_page_loads_nothing_and_runs_one_script_only() -> None:
    text = page.render(mixed())
    seen = Seen(text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [m for m in seen.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    script_rule = f"script-src 'sha256-{digest}'; form-action 'none'; "
    assert (policy["content"] or "").replace(script_rule, "") == POLICY
    assert script_rule in (policy["content"] or "")
    assert not {tag for tag, _ in seen.tags} & {"iframe", "object", "img"}
    assert "innerHTML" not in script
    assert "eval" not in script


def test_drawings_and_tables_say_what_they_show() -> None:
    text = page.render(mixed(), drift.compare(earlier(entry("gone")), mixed()))
    seen = Seen(text)
    for d in seen.all("svg"):
        assert d.get("aria-hidden") == "true" or d.get("aria-label")
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        assert 'scope="col"' in table
        assert 'scope="row"' in table
    hidden = re.search(r'<div class="nodes" aria-hidden="true">(.*?)</div>', text, re.DOTALL)
    for tile in hidden[1].split("<a ")[1:]:
        assert 'tabindex="-1"' in tile


def poisoned(run: Summary, poison: str) -> Summary:
    """The same run with poison in every text of its nodes that the model leaves free."""
    texts = dict.fromkeys(
        ("promised", "why", "device", "detail", "profile", "backend", "accelerator", "framework"),
        poison,
    )
    return replace(run, entries=tuple(replace(each, **texts) for each in run.entries))


@pytest.mark.parametrize("poison", [p for p in HOSTILE if "\ud800" not in p])
def test_nothing_of_a_node_is_markup(poison: str) -> None:
    def tags(run: Summary) -> set[str]:
        compared = drift.compare(earlier(*mixed().entries), run)
        return {tag for tag, _ in Seen(page.render(run, compared)).tags}

    before: Any = tags(replace(mixed(), entries=(*mixed().entries, unreported("new", "lost"))))
    assert tags(poisoned(mixed(), poison)) <= before
    seen = Seen(page.render(poisoned(mixed(), poison)))
    assert poison[:40].strip() in seen.text or "\x00" in poison or "&lt;" in poison
    assert len(page.render(poisoned(mixed(), poison)).split("<script>")) == 2


PAIR = Group(
    name="ddp-cuda-1f",
    nodes=("a", "b"),
    outcome="verified",
    profile="cuda",
    device="NVIDIA H100",
    images_per_second=91234.5,
    efficiency=0.947,
    detail="16 ranks in step",
)


def test_groups_have_a_section_of_their_own() -> None:
    failed = Group(name="g", nodes=("b", "c"), outcome="failed", detail="<b> differ", job="7")
    run = summary(entry("a"), entry("b"), entry("c"), across=True, groups=(PAIR, failed))
    text = page.render(run)
    seen = Seen(text).text
    assert "1 of 2 groups of nodes trained together." in text.partition("</header>")[0]
    for words in (
        "Trained together",
        "cuda · NVIDIA H100 · 91,234 images/s",
        "95 % efficiency",
        "16 ranks in step",
        "<b> differ · job 7",
    ):
        assert words in seen, words
    assert "NOT VERIFIED" in seen
    # Groups are no nodes: nothing filters by their outcomes.
    assert "only-failed" not in text


def test_without_groups_the_page_says_so_only_if_asked_for() -> None:
    words = "No two nodes that are equal were proven, so none trained together."
    assert words in page.render(summary(entry("a"), across=True))
    assert "together" not in Seen(page.render(summary(entry("a")))).text


def test_nodes_that_only_trained_together_have_a_page() -> None:
    run = summary(across=True, groups=(PAIR,))
    text = " ".join(Seen(page.render(run)).text.split())
    assert "1 of 1 group of nodes trained together." in text
    assert "2 nodes" in text
    assert "No node was examined" not in text
    assert "Left out" not in text


def dots(path: str) -> list[tuple[float, float]]:
    """Return the places of a path's points, which must be nothing else."""
    points = re.findall(r"M([0-9.]+) ([0-9]+)h0", path)
    assert "".join(f"M{x} {y}h0" for x, y in points) == path
    return [(float(x), float(y)) for x, y in points]


def test_each_kind_has_a_strip_the_largest_first() -> None:
    slow = entry("s", outcome="slow", epoch_seconds=2.5, share=2.0)
    shown = strips(
        [
            *(entry(f"a{n}", device="A100 (cuda)", epoch_seconds=2.0) for n in range(3)),
            *(entry(f"h{n}") for n in range(5)),
            slow,
            entry("busy", outcome="busy", share=None, epoch_seconds=9.0),
            unreported("lost", "lost"),
        ]
    )
    assert [(s["label"], s["note"], s["value"]) for s in shown["rows"]] == [
        ("NVIDIA H100 80GB HBM3 (cuda)", "cuda · venv · torch 2.14.1+cu130", "median 1.25 s"),
        ("A100 (cuda)", "cuda · venv · torch 2.14.1+cu130", "median 2.00 s"),
    ]
    first, second = shown["rows"]
    assert first["spread"] == "6 nodes, 1.25 s to 2.50 s"
    assert (len(dots(first["points"])), len(dots(first["outliers"]))) == (5, 1)
    assert first["named"] == [("s", "2.00×")]
    assert first["spoken"] == (
        "NVIDIA H100 80GB HBM3 (cuda): 6 nodes, median 1.25 s, 1.25 s to 2.50 s, 1 outlier"
    )
    assert (second["outliers"], second["named"]) == ("", [])
    assert second["spoken"].endswith("no outlier")
    assert shown["few"] == []


def test_kinds_with_too_few_nodes_are_named_without_a_strip() -> None:
    alone = [entry(f"n{n}", share=None, epoch_seconds=1.0 + n) for n in range(MOST_OUTLIERS + 2)]
    shown = strips(alone)
    assert shown["rows"] == []
    (sentence,) = shown["few"]
    assert sentence.startswith("NVIDIA H100 80GB HBM3 (cuda) (cuda · venv · torch 2.14.1+cu130)")
    assert "n0 1.00 s, n1 2.00 s" in sentence
    assert sentence.endswith("n11 12.0 s and 2 more")


def test_the_slowest_are_named_and_the_others_counted() -> None:
    far = [entry(f"s{n}", outcome="slow", share=1.5 + n / 10) for n in range(MOST_OUTLIERS + 3)]
    (strip,) = strips([*far, *(entry(f"n{n}") for n in range(40))])["rows"]
    assert len(strip["named"]) == MOST_OUTLIERS
    assert (strip["named"][0], strip["unnamed"]) == ((f"s{MOST_OUTLIERS + 2}", "2.90×"), 3)
    # One that is much faster is an outlier, too.
    (strip,) = strips([entry("fast", share=0.5), *(entry(f"n{n}") for n in range(4))])["rows"]
    assert strip["named"] == [("fast", "0.50×")]


shares = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=3, max_size=40)


@given(shares)
def test_every_node_is_one_point_in_the_frame(values: list[float]) -> None:
    shown = strips([entry(f"n{n}", share=value) for n, value in enumerate(values)])
    (strip,) = shown["rows"]
    points = dots(strip["points"]) + dots(strip["outliers"])
    assert len(points) == len(values)
    for x, y in points:
        assert 0 <= x <= 100
        assert 0 <= y <= 100
    assert 0 <= shown["median"] < shown["limit"] <= 100
    start, width = strip["box"]
    assert 0 <= start <= start + width <= 100
    near = [value for value in values if 1 / MAX_SLOWDOWN <= value <= MAX_SLOWDOWN]
    assert len(dots(strip["points"])) == len(near)
    if near:
        left = min(x for x, _ in dots(strip["points"]))
        assert (left <= shown["median"]) == (min(near) <= 1) or abs(left - shown["median"]) < 0.02


def test_the_scale_ends_where_it_says() -> None:
    shown = strips([entry(f"n{n}", share=value) for n, value in enumerate([1.0, 1.0, 50.0])])
    assert [label for _, label in shown["ticks"]] == ["1.00×", "1.30×", "2.00×", "3.00×"]
    ((edge, _),) = dots(shown["rows"][0]["outliers"])
    assert edge == shown["ticks"][-1][0] == 98.0
    assert HIGHEST == 3.0


def test_every_outcome_has_a_mark_of_its_own() -> None:
    assert list(MARKS) == list(OUTCOMES)
    assert len({mark.letter for mark in MARKS.values()}) == len(OUTCOMES)
    assert len({mark.meaning for mark in MARKS.values()}) == len(OUTCOMES)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_letters_can_be_read_on_their_tiles(name: str, repository: Path) -> None:
    colours = scheme((repository / "templates/fleet/style.css").read_text(), name)
    for tone in TONES:
        assert contrast(colours[f"tile-{tone}"], colours[f"on-{tone}"]) >= 4.5, tone


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_tiles_can_be_told_apart_by_everybody(name: str, blindness: str, repository: Path) -> None:
    colours = scheme((repository / "templates/fleet/style.css").read_text(), name)
    for one, other in itertools.combinations(TONES, 2):
        tiles = colours[f"tile-{one}"], colours[f"tile-{other}"]
        assert difference(*tiles, blindness) >= 10, (one, other)
