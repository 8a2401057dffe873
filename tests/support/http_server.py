"""An HTTP server of a test, in a thread of its own for as long as it is needed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, SimpleHTTPRequestHandler


class Quiet(BaseHTTPRequestHandler):
    """Answers requests and prints nothing about them."""

    def log_message(self, *_: object) -> None:
        pass


class Files(Quiet, SimpleHTTPRequestHandler):
    """Serves the files of a folder."""


@contextlib.contextmanager
def serving(http: HTTPServer) -> Iterator[None]:
    http.handle_error = lambda *args: None  # type: ignore[method-assign]  # a client may leave
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
