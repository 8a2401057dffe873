"""The report page in a real browser: it fits a phone, loads nothing, goes dark, and prints.

Chromium is driven over the DevTools protocol on a pair of pipes, so that the page is looked at as
it is: nothing is injected into it, and its policy against scripts holds.

ENVBUILDER_SCREENSHOTS=docs renews the pictures of the documentation from ENVBUILDER_REPORT.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.verify.page import page
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 60.0
PHONE, DESKTOP = 390, 1100

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the sandbox needs user namespaces, which containers rarely allow
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class Browser:
    """A headless Chromium; `call` sends one command of the DevTools protocol and waits for it."""

    def __init__(self, program: str, folder: Path) -> None:
        # Chromium reads commands from descriptor 3 and answers on 4.
        self._child = subprocess.Popen(
            [
                *("/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh"),
                *(program, *FLAGS, f"--user-data-dir={folder}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._out, self._in = self._child.stdin.fileno(), self._child.stdout.fileno()
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        """Open a tab and follow what it does."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, event: str) -> None:
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser ended or does not answer"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.communicate()

    def show(self, path: Path, width: int, *, dark: bool = False) -> None:
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, height: float = 1e9, scale: float = 1) -> bytes:
        """A PNG of the page, at most `height` pixels of it, made smaller by `scale`."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height, size["height"])}
        shot = self.call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=True,
            clip={**clip, "scale": scale},
        )
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        missing("chromium", "neither chromium nor google-chrome is installed")
    found = Browser(program, tmp_path_factory.mktemp("chromium"))
    try:
        found.start()
        yield found
    finally:
        found.close()


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
    page.write(path, page.render(report))
    return path


WIDER = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect(), edge = document.documentElement.clientWidth;
  return box.width && box.right > edge + 0.5 && !e.closest('.scroll, .defs');
}).map(e => e.tagName + '.' + (e.className.baseVal ?? e.className))
"""


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


def test_text_is_large_enough_on_a_phone(browser: Browser, written: Path) -> None:
    browser.show(written, PHONE)
    smallest = browser.ask(
        "Math.min(...[...document.querySelectorAll('main *')].filter(e => e.textContent.trim())"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12


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
    text = page.render(usual())
    bad = "<script>document.title = 'taken'</script><img src='https://example.org/x.png'>"
    path = tmp_path / "bad.html"
    path.write_text(text.replace("</body>", f"{bad}</body>"))
    browser.show(path, DESKTOP)
    browser.picture()
    assert browser.ask("document.title").startswith("VERIFIED")
    logged = [e for e in browser.events if e.get("method") == "Log.entryAdded"]
    assert len(logged) == 2
    assert all("Content Security Policy" in e["params"]["entry"]["text"] for e in logged)


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
        assert all((ground < 60) == dark and (ground > 200) != dark for ground in grounds)
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
    assert ("columnheader", "Status") in said  # only its picture stands on a phone
    if written.stem == "usual":
        epoch = "Epoch 1: 2.50 s, compute 2.38 s, data 125 ms, 16.0× the CPU"
        assert epoch in [n.replace("\N{NO-BREAK SPACE}", " ") for _, n in said]


def test_the_pictures_of_the_documentation(
    browser: Browser, tmp_path: Path, repository: Path
) -> None:
    shipped = repository / "docs" / "evidence" / "reports" / "cpu.json"
    report = os.environ.get("ENVBUILDER_REPORT", str(shipped))
    folder = Path(os.environ.get("ENVBUILDER_SCREENSHOTS", str(tmp_path)))
    path = tmp_path / "report.html"
    page.write(path, page.render(json.loads(Path(report).read_text())))
    for name, width, height, scale, dark in (
        ("report", DESKTOP, 2800, 0.75, False),
        ("report-dark", DESKTOP, 2800, 0.75, True),
        ("report-phone", PHONE, 1680, 1, False),
    ):
        browser.show(path, width, dark=dark)
        picture = browser.picture(height, scale)
        (folder / f"{name}.png").write_bytes(picture)
        assert len(picture) < 250_000
