"""Downloads beyond 4 GiB: resumed where they broke off."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import download, http
from tests.support.http_server import serving

if TYPE_CHECKING:
    from pathlib import Path

HAVE = (5 << 30) + 3
REST = bytes(range(100))


class Handler(BaseHTTPRequestHandler):
    """Has only the end of a file of 5 GiB."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.headers["Range"] == f"bytes={HAVE}-"
        size = HAVE + len(REST)
        self.send_response(206)
        self.send_header("Content-Length", str(len(REST)))
        self.send_header("Content-Range", f"bytes {HAVE}-{size - 1}/{size}")
        self.end_headers()
        self.wfile.write(REST)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize("size", [HAVE + len(REST), None])
def test_a_file_of_more_than_4_gib_is_continued(tmp_path: Path, size: int | None) -> None:
    part = tmp_path / "part"
    with part.open("wb") as out:
        out.truncate(HAVE)
    counted: list[int] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}/x"
    with serving(server):
        download.download(http.open_session(), url, part, counted.append, size=size)
    assert sum(counted) == part.stat().st_size == HAVE + len(REST)
    with part.open("rb") as stream:
        stream.seek(HAVE)
        assert stream.read() == REST
