"""The page of a fleet of 1,000 nodes in a real browser: it fits, filters, sorts, and is heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.fleet import drift, page
from envbuilder.fleet.model import Group, Summary
from tests.support.browser import SMALLEST_TEXT, WIDER, Browser
from tests.support.fleet_runs import Fleet, earlier, entry, summary, unreported

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
        across=True,
        groups=(
            Group(
                name="g",
                nodes=tuple(names),
                outcome="failed",
                profile=text,
                device=text,
                detail=text,
                images_per_second=1e9,
                efficiency=0.9,
            ),
        ),
    )


def generated(report: Path, nodes: int) -> str:
    """Return the page of many nodes, compared with a week before."""
    now, before = (Fleet(report, nodes, seed).summary() for seed in (1, 2))
    return page.render(now, drift.compare(earlier(*before.entries), now))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fleet")
    report = repository / "docs/evidence/reports/zendnn.json"
    before = earlier(entry("gone"), *hostile().entries[:2])
    texts = {
        "large": generated(report, NODES),
        "small": generated(report, 100),
        "hostile": page.render(hostile(), drift.compare(before, hostile())),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(params=["large", "hostile"])
def written(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


@pytest.fixture
def large(pages: dict[str, Path]) -> Path:
    return pages["large"]


@pytest.fixture
def small(pages: dict[str, Path]) -> Path:
    return pages["small"]


def complaints(browser: Browser) -> list[Any]:
    """Return what the browser logged: broken rules, failed requests, exceptions."""
    kinds = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
    return [event["params"] for event in browser.events if event.get("method") in kinds]


def click(browser: Browser, selector: str) -> None:
    browser.ask(f"document.querySelector('{selector}').click()")


@pytest.mark.parametrize(
    "width", [320, *(pytest.param(w, marks=pytest.mark.slow) for w in (PHONE, 700, 900, DESKTOP))]
)
def test_nothing_is_wider_than_the_window(browser: Browser, written: Path, width: int) -> None:
    browser.show(written, width)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(WIDER) == []


@pytest.mark.parametrize(("name", "dark"), [("large", False), ("hostile", True)])
def test_the_page_asks_for_nothing_and_breaks_no_rule(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    written = pages[name]
    browser.show(written, DESKTOP, dark=dark)
    click(browser, "th button")
    browser.picture(2000)
    asked = {
        e["params"]["request"]["url"]
        for e in browser.events
        if e.get("method") == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}
    assert complaints(browser) == []
    assert browser.ask("document.title").startswith("NOT VERIFIED")


def test_another_script_is_stopped(browser: Browser, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    bad = "<script>document.title = 'taken'</script>"
    path.write_text(small.read_text().replace("</main>", f"{bad}</main>"))
    browser.show(path, DESKTOP)
    assert browser.ask("document.title").startswith("NOT VERIFIED")
    (complaint,) = complaints(browser)
    assert "Content Security Policy" in complaint["entry"]["text"]


VISIBLE = "[...document.querySelectorAll('SELECTOR')].filter(e => e.checkVisibility())"
ROWS, TILES = "#all tbody tr", ".nodes a"


def visible(browser: Browser, selector: str) -> list[str]:
    """Return the classes of the elements that are shown."""
    shown = VISIBLE.replace("SELECTOR", selector)
    classes: list[str] = browser.ask(f"{shown}.map(e => e.className)")
    return classes


@pytest.mark.parametrize(("script", "width"), [(True, DESKTOP), (False, PHONE)])
def test_outcomes_are_filtered_with_and_without_the_script(
    browser: Browser, large: Path, width: int, script: bool
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=not script)
    try:
        browser.show(large, width)
        assert len(visible(browser, ROWS)) == len(visible(browser, TILES)) == NODES
        click(browser, "#only-failed")
        failed = visible(browser, ROWS)
        assert set(failed) == {"o-failed"}
        assert len(visible(browser, TILES)) == len(failed)
        click(browser, "#only-slow")
        assert set(visible(browser, ROWS)) == {"o-failed", "o-slow"}
        if script:
            count = len(visible(browser, ROWS))
            assert browser.ask("shown.textContent") == f"{count} of 1,000 nodes"
        click(browser, "button[type=reset]")
        assert len(visible(browser, ROWS)) == NODES
        assert bool(visible(browser, ".search")) == script
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def type_in(browser: Browser, text: str) -> None:
    browser.ask("document.getElementById('search').focus()")
    browser.call("Input.insertText", text=text)


def test_the_search_finds_nodes_by_any_words(browser: Browser, large: Path) -> None:
    browser.show(large, DESKTOP)
    type_in(browser, "RACK03 failed")
    names = browser.ask(
        VISIBLE.replace("SELECTOR", ROWS) + ".map(r => r.cells[0].textContent + r.className)"
    )
    assert names == ["rack03-node04o-failed"]
    assert len(visible(browser, TILES)) == 1
    assert browser.ask("shown.textContent") == "1 of 1,000 nodes"
    type_in(browser, " <nothing>")
    assert visible(browser, ROWS) == []
    assert browser.ask("shown.textContent") == "0 of 1,000 nodes"
    assert complaints(browser) == []


def test_columns_are_sorted_by_their_values(browser: Browser, large: Path) -> None:
    browser.show(large, DESKTOP)
    header = "#all th:nth-child(4)"
    values = "[...document.querySelectorAll('#all tbody td:nth-child(4)')].map(c => c.dataset.v)"
    for direction, backwards in (("ascending", False), ("descending", True)):
        click(browser, f"{header} button")
        assert browser.ask(f"document.querySelector('{header}').ariaSort") == direction
        seconds = browser.ask(values)
        measured = [float(value) for value in seconds if value]
        assert measured == sorted(measured, reverse=backwards)
        # What has no time is last either way.
        assert "" not in seconds[: len(measured)]
        assert len(seconds) == NODES
    click(browser, "#all th:first-child button")
    names = browser.ask("[...document.querySelectorAll('#all tbody th')].map(c => c.textContent)")
    assert names == sorted(names)
    assert browser.ask("document.querySelectorAll('[aria-sort]').length") == 1


def test_the_keyboard_reaches_every_control_and_no_tile(browser: Browser, small: Path) -> None:
    browser.show(small, DESKTOP)
    reached = []
    for _ in range(80):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
        focused = browser.ask(
            "(e => e.id || e.closest('.tile')?.className || e.tagName + ' ' +"
            " e.textContent.slice(0, 20))(document.activeElement)"
        )
        reached.append(focused)
    assert reached[0].startswith("only-verified")
    assert "BUTTON Show all" in reached
    assert any(name.startswith("SUMMARY") for name in reached)
    assert not [name for name in reached if "tile" in name]
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.ask(outline) != "none"


def test_a_tile_leads_to_its_row(browser: Browser, large: Path) -> None:
    browser.show(large, DESKTOP)
    click(browser, ".nodes a.o-lost")
    browser.wait("Page.navigatedWithinDocument")
    assert browser.ask("document.querySelector(':target').className") == "o-lost"
    top = browser.ask("document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= top < 844


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
    # A table stays one where its rows are blocks.
    assert roles.count("rowheader") >= 100
    assert ("columnheader", "Epoch") in heard
    assert roles.count("cell") + roles.count("gridcell") >= 600
    boxes = [name for role, name in heard if role == "checkbox"]
    assert any(name.endswith(" verified") for name in boxes)
    assert all(name for role, name in heard if role in {"image", "link", "button", "checkbox"})
    assert not [name for role, name in heard if role == "link" and len(name) == 1]


def test_text_is_large_enough_on_a_phone(browser: Browser, written: Path) -> None:
    browser.show(written, PHONE)
    assert browser.ask(SMALLEST_TEXT) >= 12


def test_everything_is_printed(browser: Browser, small: Path) -> None:
    browser.show(small, DESKTOP, dark=True)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF-")
    assert printed.count(b"/Type /Page\n") >= 3
