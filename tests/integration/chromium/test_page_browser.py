"""The report page in a real browser: it fits a phone, loads nothing, goes dark, and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.verify import show
from tests.support.browser import SMALLEST_TEXT, WIDER, Browser

PHONE = 390
DESKTOP = 1100


def usual() -> dict[str, Any]:
    """A report with every chart; the numbers are made up."""
    epochs = [
        {
            "seconds": seconds,
            "data_seconds": seconds / 20,
            "compute_seconds": seconds * 0.95,
            "samples_per_second": 60000 / seconds,
            "loss": 0.1,
            "accuracy": 0.985,
        }
        for seconds in (2.5, 1.25, 1.25)
    ]
    names = ("import", "device", "arithmetic", "gradients", "kernels")
    return {
        "schema": 2,
        "profile": "cuda",
        "backend": "docker",
        "artifact": {"kind": "image", "ref": "envbuilder/cuda:py3.12-" + "0123456789abcdef" * 4},
        "device": {"requested": "cuda", "used": "cuda", "name": "A made-up GPU"},
        "framework": {"name": "torch", "version": "2.14.1+cu130", "python": "3.12.1"},
        "dataset": {"name": "MNIST", "train": 60000, "test": 10000, "subset": False},
        "host": {"cpu": {"model_name": "A CPU", "flags": ["avx512_vnni"] * 12}},
        "checks": [
            {"name": n, "status": "passed", "seconds": 0.1, "detail": "namespace::" + n * 30}
            for n in names
        ],
        "training": {
            "epochs": epochs,
            "min_accuracy": 0.975,
            "batch": 64,
            "losses": [[n * 14 + 1, 2.3 / (1 + n)] for n in range(200)],
        },
        "baseline": {**epochs[0], "seconds": 40.0, "data_seconds": 1.0},
        "speedup": 16.0,
        "measurements": {
            "matmul": [{"dtype": "float32", "size": 4096, "flops_per_second": 5e13}],
            "matmul_share": 0.3,
            "bandwidth": {"device": 2e12, "host_to_device_pinned": 5e10},
            "launch_seconds": 4e-6,
            "peak_memory_bytes": 2**30,
        },
        "compile": [{"backend": "inductor", "gradients": {"passed": False}}],
        "status": "passed",
        "reasons": [],
        "warnings": ["compile inductor: " + "wrong gradients " * 8],
    }


def broken() -> dict[str, Any]:
    """A report that failed, with words that no line can hold and a page of somebody else in it."""
    detail = (
        "x" * 500 + "<img src='https://example.org/x.png'><script src='//example.org'></script>"
    )
    check = {"name": "device", "status": "failed", "seconds": 1.0, "detail": detail}
    return {
        **usual(),
        "training": None,
        "baseline": None,
        "checks": [check],
        "status": "failed",
        "reasons": [detail],
        "traceback": detail,
    }


@pytest.fixture(scope="module", params=["usual", "broken"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = {"usual": usual, "broken": broken}[request.param]()
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(show.render(report))
    return path


@pytest.mark.parametrize("width", [320, PHONE, 768, DESKTOP])
def test_nothing_is_wider_than_the_window(browser: Browser, written: Path, width: int) -> None:
    browser.show(written, width)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(WIDER) == []


def test_the_measure_sees_what_is_too_wide(browser: Browser, written: Path) -> None:
    browser.show(written, PHONE)
    browser.ask("document.querySelector('h1').style.minWidth = '600px'")
    assert "H1." in browser.ask(WIDER)


LINES = """
[...document.querySelectorAll('.plot span')].map(e => {
  const text = document.createRange(); text.selectNodeContents(e);
  return [e.textContent, new Set([...text.getClientRects()].map(r => r.top)).size];
})
"""


@pytest.mark.parametrize("width", [320, DESKTOP])
def test_no_label_of_a_curve_is_broken(browser: Browser, tmp_path: Path, width: int) -> None:
    losses = [[1, 2.3], [28_000, 0.28], [1_000_000, 0.000_283]]
    path = tmp_path / "page.html"
    path.write_text(show.render({**usual(), "training": {**usual()["training"], "losses": losses}}))
    browser.show(path, width)
    lines = browser.ask(LINES)
    assert {"0.000283", "step 1", "1,000,000"} <= {label for label, _ in lines}
    assert {count for _, count in lines} == {1}


HIDDEN = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"


@pytest.mark.parametrize("width", [320, PHONE])
def test_checks_are_read_without_scrolling(browser: Browser, written: Path, width: int) -> None:
    browser.show(written, width)
    assert "Checks as a table" not in browser.ask(f"{HIDDEN}.map(e => e.ariaLabel)")


def test_text_is_large_enough_on_a_phone(browser: Browser, written: Path) -> None:
    browser.show(written, PHONE)
    assert browser.ask(SMALLEST_TEXT) >= 12


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_asks_for_nothing_and_breaks_no_rule(
    browser: Browser, written: Path, dark: bool
) -> None:
    browser.show(written, DESKTOP, dark=dark)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.picture()
    asked = {
        e["params"]["request"]["url"]
        for e in browser.events
        if e.get("method") == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}
    logged = [e for e in browser.events if e.get("method") == "Log.entryAdded"]
    assert logged == []


def test_the_policy_stops_what_a_page_could_be_made_to_load(
    browser: Browser, tmp_path: Path
) -> None:
    text = show.render(usual())
    bad = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'>"
    path = tmp_path / "bad.html"
    path.write_text(text.replace("</body>", f"{bad}</body>"))
    browser.show(path, DESKTOP)
    browser.picture()
    assert browser.ask("document.title").startswith("VERIFIED")
    logged = [e for e in browser.events if e.get("method") == "Log.entryAdded"]
    assert len(logged) == 2
    for e in logged:
        assert "Content Security Policy" in e["params"]["entry"]["text"]


BRIGHTNESS = """
(() => { const [r, g, b] = getComputedStyle(SELECTOR).PROPERTY.match(/[0-9.]+/g).map(Number);
return 0.2126 * r + 0.7152 * g + 0.0722 * b; })()
"""


def brightness(browser: Browser, selector: str, of: str) -> float:
    found = f"document.querySelector('{selector}')"
    return float(browser.ask(BRIGHTNESS.replace("SELECTOR", found).replace("PROPERTY", of)))


def test_dark_is_dark_and_light_is_light(browser: Browser, written: Path) -> None:
    pictures = []
    for dark in (False, True):
        browser.show(written, PHONE, dark=dark)
        grounds = [brightness(browser, s, "backgroundColor") for s in ("body", ".card", ".said")]
        ink = brightness(browser, ".card", "color")
        for ground in grounds:
            assert (ground < 60) == dark
            assert (ground > 200) != dark
        assert (ink > 200) == dark
        pictures.append(browser.picture())
    assert pictures[0] != pictures[1]


def test_print_is_light_on_few_pages(browser: Browser, written: Path) -> None:
    browser.show(written, DESKTOP, dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert brightness(browser, ".card", "backgroundColor") > 200
    assert brightness(browser, ".card", "color") < 60
    browser.call("Emulation.setEmulatedMedia", media="", features=[dark])
    printed = browser.pdf()
    assert printed.startswith(b"%PDF-")
    assert 1 <= printed.count(b"/Type /Page\n") <= 5


def test_a_reader_that_does_not_see_hears_it_all(browser: Browser, written: Path) -> None:
    browser.show(written, PHONE)
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    said = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"]
    ]
    headings = [name for role, name in said if role == "heading"]
    assert headings[0] in {"VERIFIED", "NOT VERIFIED"}
    assert all(name for role, name in said if role in {"image", "img", "link", "region"})
    assert ("columnheader", "status") in said
    if written.stem == "usual":
        assert [name for _, name in said if name.startswith("Training loss, from 2.30 to")]
