"""A package index on loopback whose releases come, go and change while commands use it."""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote, unquote

from tests.support.http_server import Quiet, serving
from tests.support.index_server import Server, answer

_NAME = re.compile(r"[-_.]+")
JSON = "application/vnd.pypi.simple.v1+json"


class Index:
    """Files by index name; what it serves is what its folders hold at that moment.

    `default` stands for the public index, `torch` for PyTorch's own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.is_away = False
        self.requests: list[str] = []

    def wheels(self, name: str) -> Path:
        """Return the folder of one index; the files in it are its files."""
        return self.folder / name

    def page_url(self, name: str) -> str:
        """Return the URL of one index."""
        return f"{self.url}/{name}/simple"

    def _page(self, name: str, distribution: str) -> bytes:
        """Return the page of a distribution; empty if no file of it is there."""
        links = []
        for path in self._files(name, distribution):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            target = f"/{name}/files/{quote(path.name)}#sha256={digest}"
            links.append(f'<a href="{html.escape(target)}">{html.escape(path.name)}</a>')
        body = "<!DOCTYPE html><html><body>" + "<br>".join(links) + "</body></html>"
        return body.encode() if links else b""

    def _dated_page(self, name: str, distribution: str) -> bytes:
        """Return the page in JSON, which also states when each file came: its modification time."""
        files = []
        for path in self._files(name, distribution):
            came = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            files.append(
                {
                    "filename": path.name,
                    "url": f"/{name}/files/{quote(path.name)}",
                    "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
                    "upload-time": came.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )
        page = {"meta": {"api-version": "1.1"}, "name": distribution, "files": files}
        return json.dumps({**page, "versions": []}).encode() if files else b""

    def _files(self, name: str, distribution: str) -> list[Path]:
        stems = ((p, _NAME.sub("-", p.name.split("-")[0]).lower()) for p in self._all(name))
        return [path for path, stem in stems if stem == distribution]

    def _all(self, name: str) -> list[Path]:
        return sorted(path for path in self.wheels(name).glob("*") if path.is_file())

    def body(self, path: str, *, dated: bool = False) -> io.BytesIO | None:
        """Return what is at a path of the server; None if nothing is."""
        name, _, rest = path.strip("/").partition("/")
        kind, _, last = rest.partition("/")
        if kind == "simple" and last:
            make = self._dated_page if dated else self._page
            page = make(name, last.strip("/"))
            return io.BytesIO(page) if page else None
        file = self.wheels(name) / Path(last).name
        if kind == "files" and last and file.is_file():
            return io.BytesIO(file.read_bytes())
        return None

    @contextlib.contextmanager
    def served(self) -> Iterator[Index]:
        """Serve the index while the context lasts."""
        index = self

        class Handler(Quiet):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                index.requests.append(self.path)
                dated = JSON in self.headers.get("Accept", "")
                body = None if index.is_away else index.body(unquote(self.path), dated=dated)
                if body is None:
                    self.send_response(503 if index.is_away else 404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                _send(self, body, JSON if dated else "text/html; charset=utf-8")

        http = Server(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        with serving(http):
            self.url = f"http://127.0.0.1:{http.server_address[1]}"
            yield self


def _send(client: BaseHTTPRequestHandler, body: io.BytesIO, content_type: str) -> None:
    if "/simple/" not in client.path:
        answer(client, body)
        return
    content = body.getvalue()
    client.send_response(200)
    client.send_header("Content-Type", content_type)
    client.send_header("Content-Length", str(len(content)))
    client.end_headers()
    if client.command == "GET":
        client.wfile.write(content)
