"""The page of a fleet of 1,000 nodes in a real browser: it fits, loads nothing, and is heard."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.fleet import drift, show
from envbuilder.fleet.model import Summary
from tests.support.browser import WIDER, Browser
from tests.support.fleet_runs import earlier, entry, summary, unreported

NODES = 1000
PHONE = 360
DESKTOP = 1280


def hostile() -> Summary:
    """A run with words that no line can hold and a page of somebody else in it."""
    text = "x" * 250 + "<img src='https://example.org/x.png'><script>document.title=1</script>"
    names = [f"{'n' * 200}-{number}" for number in range(3)]
    texts = dict.fromkeys(("promised", "why", "device", "detail", "profile", "backend"), text)
    return summary(
        *(entry(name, **texts) for name in names),
        *(unreported(f"{o}-{'y' * 90}", o, text) for o in ("failed", "mixed-up", "drained")),
        entry("fast", **texts, share=0.1),
    )


def generated(nodes: int) -> str:
    """Return the page of many nodes, of which some are slow, compared with a week before."""
    names = [f"rack{number // 48:02}-node{number % 48:02}" for number in range(nodes)]
    slow = {"outcome": "slow", "share": 2.0, "epoch_seconds": 2.5, "detail": "much slower"}
    now = [entry(name, **({} if number % 9 else slow)) for number, name in enumerate(names)]
    before = [
        entry(name) if number % 7 else unreported(name, "lost") for number, name in enumerate(names)
    ]
    run = summary(*now)
    return show.page(run, drift.compare(earlier(*before), run))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fleet")
    before = earlier(entry("gone"), *hostile().entries[:2])
    texts = {
        "large": generated(NODES),
        "small": generated(100),
        "hostile": show.page(hostile(), drift.compare(before, hostile())),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(params=["large", "hostile"])
def written(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


@pytest.fixture
def small(pages: dict[str, Path]) -> Path:
    return pages["small"]


@pytest.mark.parametrize(
    "width", [320, *(pytest.param(w, marks=pytest.mark.slow) for w in (PHONE, 700, 900, DESKTOP))]
)
def test_nothing_is_wider_than_the_window(browser: Browser, written: Path, width: int) -> None:
    browser.show(written, width)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(WIDER) == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_reader_that_does_not_see_hears_it_all(browser: Browser, small: Path, width: int) -> None:
    browser.show(small, width)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    heard = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"]
    ]
    roles = [role for role, _ in heard]
    assert next(name for role, name in heard if role == "heading") == "NOT VERIFIED"
    assert roles.count("rowheader") >= 100
    assert ("columnheader", "epoch") in heard
    assert roles.count("cell") + roles.count("gridcell") >= 600
