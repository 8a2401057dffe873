"""A headless Chromium, driven over the DevTools protocol on a pair of pipes.

So pages are looked at as they are: nothing is injected into them, and their policies hold.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

WIDER = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect(), edge = document.documentElement.clientWidth;
  return box.width && box.right > edge + 0.5 && !e.closest('.scroll, .defs');
}).map(e => e.tagName + '.' + (e.className.baseVal ?? e.className))
"""
"""What of a page is wider than the window, apart from what scrolls by itself."""

SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll('main *')].filter(e => e.textContent.trim())
  .map(e => parseFloat(getComputedStyle(e).fontSize)))
"""
"""The size of the smallest text in a page, in pixels."""

PATIENCE_SECONDS = 60.0
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
                "/bin/sh",
                "-c",
                'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null',
                "sh",
                program,
                *FLAGS,
                f"--user-data-dir={folder}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._out, self._in = self._child.stdin.fileno(), self._child.stdout.fileno()
        self._buffer = b""
        self._number = 0
        self._session = ""
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
        """Return the value of an expression, or what its promise resolves to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, height: float = 1e9) -> bytes:
        """A PNG of the page, at most `height` pixels of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height, size["height"])}
        shot = self.call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=True,
            clip={**clip, "scale": 1},
        )
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])
