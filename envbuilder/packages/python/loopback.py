"""A package index on this machine's loopback address, alive for one resolve.

uv resolves only what an index offers. This one offers wheels whose names, hashes and requirements
are known although their own index may be unreachable (PEP 503 and 691; requirements as PEP 658
defines them). It also serves tiny wheels to tests.
"""

from __future__ import annotations

import html
import json
import secrets
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

from msgspec import Struct

from envbuilder.packages.python.indexes import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
CHUNK = 1 << 20


class Offer(Struct, frozen=True, kw_only=True):
    """One wheel that the index offers."""

    distribution: str
    version: str
    file: str
    sha256: str
    source: str
    provenance: str
    by: str
    size: int | None = None
    requires_python: str = ""
    metadata: bytes | None = None
    """The METADATA file, if it is known beforehand."""
    metadata_url: str = ""
    """The URL of the METADATA file, if its content is not known beforehand."""
    location: str = ""
    """URL or path of the wheel itself; empty if only claims are known."""

    @property
    def has_metadata(self) -> bool:
        """Return whether its requirements can be served without the wheel."""
        return self.metadata is not None or bool(self.metadata_url)


@contextmanager
def serve(offers: Sequence[Offer], read: Callable[[str], bytes] | None = None) -> Iterator[str]:
    """Serve the offers and yield the URL of the index; `read` fetches a metadata URL."""
    # An unguessable path: other users of the machine cannot read it, and a cache keyed by URL never
    # mixes up two indexes that got the same port one after the other.
    root = f"/{secrets.token_hex(12)}"

    class Handler(_Handler):
        base = root
        files: ClassVar[dict[str, Offer]] = {o.file: o for o in offers}
        reader = staticmethod(read) if read else None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{root}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """The handler of one request; `serve` makes a subclass with the data."""

    base = ""
    files: ClassVar[dict[str, Offer]] = {}
    reader: Callable[[str], bytes] | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        """Stay silent: stderr is for progress."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a page, a METADATA file, a wheel, or a redirect to the wheel."""
        path = unquote(self.path.partition("?")[0])
        if not path.startswith(self.base + "/"):
            self._send(404, b"", "text/plain")
            return
        kind, _, rest = path.removeprefix(self.base + "/").partition("/")
        name = rest.strip("/")
        if kind == "simple" and name and "/" not in name:
            self._page(canonical(name))
        elif kind == "simple" and not name:
            self._list()
        elif kind == "files" and name.endswith(".metadata"):
            self._metadata(name.removesuffix(".metadata"))
        elif kind == "files":
            self._wheel(name)
        else:
            self._send(404, b"", "text/plain")

    def _list(self) -> None:
        names = sorted({canonical(o.distribution) for o in self.files.values()})
        if self._wants_json():
            body = {"meta": {"api-version": "1.1"}, "projects": [{"name": n} for n in names]}
            self._send(200, json.dumps(body).encode(), JSON_TYPE)
            return
        links = "".join(f'<a href="{n}/">{n}</a>\n' for n in names)
        self._send(200, f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode())

    def _page(self, name: str) -> None:
        offers = [o for o in self.files.values() if canonical(o.distribution) == name]
        if not offers:
            self._send(404, b"", "text/plain")
        elif self._wants_json():
            body = {
                "meta": {"api-version": "1.1"},
                "name": name,
                "versions": sorted({o.version for o in offers}),
                "files": [self._json(o) for o in offers],
            }
            self._send(200, json.dumps(body).encode(), JSON_TYPE)
        else:
            links = "".join(self._link(o) for o in offers)
            self._send(200, f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode())

    def _json(self, offer: Offer) -> dict[str, object]:
        entry: dict[str, object] = {
            "filename": offer.file,
            "url": self._url(offer),
            "hashes": {"sha256": offer.sha256},
            "core-metadata": offer.has_metadata,
        }
        if offer.requires_python:
            entry["requires-python"] = offer.requires_python
        if offer.size:
            entry["size"] = offer.size
        return entry

    def _link(self, offer: Offer) -> str:
        python = html.escape(offer.requires_python)
        extra = f' data-requires-python="{python}"' if python else ""
        extra += ' data-core-metadata="true"' if offer.has_metadata else ""
        return (
            f'<a href="{self._url(offer)}#sha256={offer.sha256}"{extra}>'
            f"{html.escape(offer.file)}</a><br>\n"
        )

    def _url(self, offer: Offer) -> str:
        return f"{self.base}/files/{quote(offer.file)}"

    def _metadata(self, name: str) -> None:
        offer = self.files.get(name)
        if offer and offer.metadata is not None:
            self._send(200, offer.metadata, "text/plain; charset=utf-8")
        elif offer and offer.metadata_url and self.reader:
            try:
                body = self.reader(offer.metadata_url)
            except OSError:
                self._send(502, b"", "text/plain")
            else:
                self._send(200, body, "text/plain; charset=utf-8")
        else:
            self._send(404, b"", "text/plain")

    def _wheel(self, name: str) -> None:
        offer = self.files.get(name)
        if offer is None or not offer.location:
            self._send(404, b"", "text/plain")
        elif "://" in offer.location:
            self.send_response(302)
            self.send_header("Location", offer.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._file(Path(offer.location))

    def _file(self, path: Path) -> None:
        try:
            stream = path.open("rb")
        except OSError:
            self._send(404, b"", "text/plain")
            return
        with stream:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            while self.command != "HEAD" and (block := stream.read(CHUNK)):
                self.wfile.write(block)

    def _wants_json(self) -> bool:
        return JSON_TYPE in self.headers.get("Accept", "")

    def _send(self, status: int, body: bytes, kind: str = "text/html; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
