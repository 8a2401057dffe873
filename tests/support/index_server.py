"""A package index over http on loopback, as uv, pip and envbuilder read it (PEP 691)."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import secrets
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from envbuilder.core.types import canonical
from envbuilder.packages.python.uv import Offer
from tests.support.http_server import Quiet, serving


class Server(ThreadingHTTPServer):
    """A server that a hundred clients may connect to at the same moment."""

    request_queue_size = 256


def asked(text: str, size: int) -> tuple[int, int]:
    """The part of a file that a Range header asks for; without one, all of it."""
    first, _, last = text.removeprefix("bytes=").partition("-")
    if not (first or last):
        return 0, size
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def answer(client: BaseHTTPRequestHandler, body: BinaryIO) -> None:
    """Send what a client asks for of a page or a file."""
    size = body.seek(0, io.SEEK_END)
    begin, end = asked(client.headers.get("Range", ""), size)
    client.send_response(200 if (begin, end) == (0, size) else 206)
    kind = "vnd.pypi.simple.v1+json" if "/simple/" in client.path else "octet-stream"
    client.send_header("Content-Type", f"application/{kind}")
    client.send_header("Accept-Ranges", "bytes")
    client.send_header("Content-Length", str(end - begin))
    client.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
    client.end_headers()
    body.seek(begin)
    while client.command == "GET" and begin < end:
        begin += client.wfile.write(body.read(min(1 << 20, end - begin)))


@contextlib.contextmanager
def serve(
    offers: Sequence[Offer], login: str = "", requests: list[str] | None = None
) -> Iterator[str]:
    """Serve the offers, each from its file on this machine; yield the URL of the index.

    `login` is the user and password that a client must have, as `user:password`. The path of each
    GET is added to `requests`, with the range that it asks for.
    """
    wanted = f"Basic {base64.b64encode(login.encode()).decode()}"
    # uv caches by URL: two tests must not get the same one.
    root = f"/{secrets.token_hex(12)}"
    files = {o.file: o for o in offers}

    def page(name: str) -> bytes:
        listed = [o for o in offers if canonical(o.distribution) == name]
        if not listed:
            return b""
        entries = [
            {
                "filename": o.file,
                "url": f"{root}/files/{quote(o.file)}",
                "hashes": {"sha256": o.sha256},
                **({"size": o.size} if o.size else {}),
            }
            for o in listed
        ]
        meta = {"api-version": "1.1"}
        return json.dumps({"meta": meta, "name": name, "files": entries}).encode()

    def content(path: str) -> BinaryIO | None:
        kind, _, name = path.removeprefix(f"{root}/").strip("/").partition("/")
        if kind == "simple":
            found = page(canonical(name))
            return io.BytesIO(found) if found else None
        offer = files.get(name)
        if kind != "files" or offer is None or not offer.location:
            return None
        wheel = Path(offer.location)
        return wheel.open("rb") if wheel.is_file() else None

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if login and self.headers.get("Authorization") != wanted:
                self.send_response(401, f"not {login} at http://{login}@index.example/")
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if requests is not None and self.command == "GET":
                requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
            body = content(unquote(self.path))
            if body is None:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            with body:
                answer(self, body)

    http = Server(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    with serving(http):
        yield f"http://127.0.0.1:{http.server_address[1]}{root}/simple"
