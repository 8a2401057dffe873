"""axe-core finds no barrier on any page, on phones and desktops, light and dark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuilder.verify import show
from envbuilder.verify.report import comparison
from envbuilder.watch import show as watch_show
from tests.conftest import missing
from tests.integration.chromium.test_page_browser import DESKTOP, PHONE, broken, usual
from tests.support.browser import Browser
from tests.support.reports import BUSY, CUDA, loaded
from tests.support.watched import observed, watched

BARRIERS = "axe.run().then(found => found.violations.map(v => [v.id, v.nodes.map(n => n.html)]))"
PAGES = {
    "usual": lambda: show.render(usual()),
    "broken": lambda: show.render(broken()),
    "not judged": lambda: show.render(
        usual() | {"contention": {"epoch 1": BUSY}, "speed": "not_judged"}
    ),
    "compare": lambda: show.render_comparison(
        comparison.rows([loaded(), loaded("gpu.json", **CUDA, baseline={"seconds": 30.0})])
    ),
    "watch": lambda: watch_show.page(watched(observed())),
}


@pytest.fixture(scope="module")
def axe() -> str:
    script = Path(os.environ.get("NODE_PATH", ""), "axe-core/axe.min.js")
    if not script.is_file():
        missing("chromium", "there is no axe-core (npm install axe-core, NODE_PATH)")
    return script.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_barrier(name: str, browser: Browser, axe: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    for width in (PHONE, DESKTOP):
        for dark in (False, True):
            browser.show(path, width, dark=dark)
            browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
            browser.ask(axe)
            assert browser.ask(BARRIERS) == [], (width, dark)


def test_axe_sees_a_barrier(browser: Browser, axe: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(show.render(usual()).replace('<html lang="en">', "<html>"), encoding="utf-8")
    browser.show(path, PHONE)
    browser.ask(axe)
    assert [name for name, _ in browser.ask(BARRIERS)] == ["html-has-lang"]
