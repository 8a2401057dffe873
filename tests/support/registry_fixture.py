"""A registry in memory on loopback that misbehaves on request."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import Quiet, serving

USER = "somebody"
PASSWORD = "very-secret-password"
TOKEN = "very-secret-token"


class FakeRegistry:
    """`faults` are taken one by one by the first request whose `METHOD path` they are found in."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.numbers = itertools.count()
        self.log: list[str] = []
        self.authorizations: list[str] = []
        self.faults: list[tuple[str, str]] = []
        self.demands = ""
        """`basic` or `bearer`."""
        self.realm = ""
        """Another token server than this one."""
        self.lists_referrers = False
        self.mounts = True
        self._lock = threading.Lock()
        self.released = threading.Event()
        outer = self

        class Handler(_Handler):
            registry = outer

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        # A client that goes away, as an impatient one does, is no fault of the server.
        self.http.handle_error = lambda *args: None  # type: ignore[method-assign]
        self.host = f"127.0.0.1:{self.http.server_address[1]}"

    def take_fault(self, request: str) -> str:
        with self._lock:
            for number, (pattern, action) in enumerate(self.faults):
                if re.search(pattern, request):
                    del self.faults[number]
                    return action
        return ""

    def requests(self, method: str) -> list[str]:
        return [line for line in self.log if line.startswith(f"{method} ")]


@contextlib.contextmanager
def running() -> Iterator[FakeRegistry]:
    made = FakeRegistry()
    with serving(made.http):
        try:
            yield made
        finally:
            made.released.set()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Handler(Quiet):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _any(self) -> None:
        registry = self.registry
        path = urlsplit(self.path).path
        query = parse_qs(urlsplit(self.path).query)
        registry.log.append(f"{self.command} {self.path}")
        registry.authorizations.append(self.headers.get("Authorization", ""))
        action, _, detail = registry.take_fault(f"{self.command} {self.path}").partition(" ")
        if action == "hang":
            registry.released.wait(20)
            self.close_connection = True
        elif action == "drop":
            self.close_connection = True
        elif action == "partly":  # takes some of a piece, and the connection is gone
            taken = self.rfile.read(int(detail))
            if self.registry.uploads:
                self.registry.uploads[path.rpartition("/")[2]] += taken
            self.close_connection = True
        elif action.isdigit():
            headers = dict([detail.split(": ", 1)]) if detail else {}
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = {"errors": [{"code": "TESTED", "message": f"as asked, {TOKEN}"}]}
            self._send(int(action), json.dumps(said).encode(), headers)
        elif path == "/token":
            self._token(query)
        elif not self._allowed():
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
        elif found := re.fullmatch(r"/v2/(.+)/blobs/uploads/", path):
            self._begin(found[1], query)
        elif found := re.fullmatch(r"/v2/(.+)/(blobs|manifests|referrers)/(.+)", path):
            self._serve(found[1], found[2], found[3], query, action)
        else:
            self._send(404)

    def _serve(self, name: str, kind: str, rest: str, query: Any, action: str) -> None:
        registry = self.registry
        if rest.startswith("uploads/"):
            self._upload(name, rest.removeprefix("uploads/"), query)
        elif kind == "blobs":
            data = registry.blobs.get((name, rest))
            self._send(404) if data is None else self._body(data, action)
        elif kind == "referrers":
            self._referrers(name, rest)
        elif self.command == "PUT":
            self._put_manifest(name, rest)
        else:
            media_type, data = registry.manifests.get((name, rest), ("", b""))
            if not data:
                self._send(404)
            else:
                headers = {"Content-Type": media_type, "Docker-Content-Digest": digest_of(data)}
                self._body(data, action, headers)

    def _body(self, data: bytes, action: str, headers: dict[str, str] | None = None) -> None:
        """Bytes, whole or from where it is asked, perhaps wrong ones."""
        headers = headers or {}
        if action == "wrong":
            data = bytes(b ^ 1 for b in data)
        elif action == "longer":
            data += b"!" * 100_000
        elif action == "shorter":
            data = data[:-1]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and action != "whole" else 0
        start = 7 if action == "elsewhere" else start
        status = 206 if start else 200
        if start:
            headers |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        body = data[start:]
        if action == "cut":
            self._send(status, body, headers, only=len(body) // 2)
        else:
            self._send(status, body, headers)

    def _begin(self, name: str, query: Any) -> None:
        registry = self.registry
        mount, source = (query.get(k, [""])[0] for k in ("mount", "from"))
        data = registry.blobs.get((source, mount))
        if data is not None and registry.mounts:
            registry.blobs[name, mount] = data
            self._send(201)
            return
        number = f"u{next(registry.numbers)}"
        registry.uploads[number] = bytearray()
        self._send(202, headers={"Location": f"/v2/{name}/blobs/uploads/{number}?state=0"})

    def _upload(self, name: str, number: str, query: Any) -> None:
        registry = self.registry
        have = registry.uploads.get(number)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if have is None:
            self._send(404)
            return
        if self.command == "DELETE":
            del registry.uploads[number]
            self._send(204)
            return
        said = self.headers.get("Content-Range")
        if self.command == "PATCH" and said and int(said.partition("-")[0]) != len(have):
            self._send(416)
            return
        have += data
        headers = {"Location": f"/v2/{name}/blobs/uploads/{number}?state={len(have)}"}
        headers |= {"Range": f"0-{max(len(have) - 1, 0)}"}
        if self.command == "PUT":
            wanted = query["digest"][0]
            del registry.uploads[number]
            if digest_of(have) != wanted:
                self._send(400)
                return
            registry.blobs[name, wanted] = bytes(have)
            self._send(201)
        else:
            self._send(202 if self.command == "PATCH" else 204, headers=headers)

    def _put_manifest(self, name: str, rest: str) -> None:
        registry = self.registry
        data = self.rfile.read(int(self.headers["Content-Length"]))
        entry = (self.headers["Content-Type"], data)
        registry.manifests[name, rest] = registry.manifests[name, digest_of(data)] = entry
        self._send(201, headers={"Docker-Content-Digest": digest_of(data)})

    def _referrers(self, name: str, digest: str) -> None:
        if not self.registry.lists_referrers:
            self._send(404)
            return
        index_type = "application/vnd.oci.image.index.v1+json"
        found = {}
        for (where, _), (media_type, data) in self.registry.manifests.items():
            read = json.loads(data)
            if where == name and (read.get("subject") or {}).get("digest") == digest:
                found[digest_of(data)] = {
                    "mediaType": media_type,
                    "digest": digest_of(data),
                    "size": len(data),
                    "artifactType": read["artifactType"],
                }
        index = {"schemaVersion": 2, "mediaType": index_type, "manifests": [*found.values()]}
        self._send(200, json.dumps(index).encode(), {"Content-Type": index_type})

    def _allowed(self) -> bool:
        registry = self.registry
        said = self.headers.get("Authorization", "")
        if registry.demands == "basic":
            pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            right = said == f"Basic {pair}"
            asks = 'Basic realm="test"'
        elif registry.demands == "bearer":
            realm = registry.realm or f"http://{registry.host}/token"
            right = said == f"Bearer {TOKEN}"
            asks = f'Bearer realm="{realm}",service="test",scope="repository:a:pull,push"'
        else:
            return True
        if not right:
            self._send(401, headers={"WWW-Authenticate": asks})
        return right

    def _token(self, query: Any) -> None:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        known = self.headers.get("Authorization") == f"Basic {pair}"
        known = known or parse_qs(data).get("refresh_token") == [PASSWORD]
        if known and (query or parse_qs(data))["scope"] == ["repository:a:pull,push"]:
            self._send(200, json.dumps({"token": TOKEN}).encode())
        else:
            self._send(401)

    def _send(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        only: int | None = None,
    ) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:only])
        if only is not None:
            self.close_connection = True


for _method in ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
