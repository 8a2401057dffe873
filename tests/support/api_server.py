"""As much of Kubernetes' API as `kubectl` needs to create, list and read logs; it runs nothing."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support import http_server
from tests.support.kubernetes import DATA, log_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERBS = ["create", "get", "list"]


def _resource(kind: str) -> dict[str, Any]:
    name = kind.lower()
    names = {"name": f"{name}s", "singularName": name, "kind": kind}
    return {**names, "namespaced": True, "verbs": _VERBS}


_DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": "batch",
                "versions": [{"groupVersion": "batch/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "batch/v1", "version": "v1"},
            }
        ],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("Pod"),
            _resource("ConfigMap"),
        ],
    },
    "/apis/batch/v1": {
        "kind": "APIResourceList",
        "groupVersion": "batch/v1",
        "resources": [_resource("Job")],
    },
}
_PODS, _JOBS = "/api/v1/namespaces/ml/pods", "/apis/batch/v1/namespaces/ml/jobs"


class Requests(list[tuple[str, str, dict[str, list[str]]]]):
    """Method, path and query of each request; the objects that were created."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    requests: Requests

    def do_GET(self) -> None:
        path, query = self._noted()
        recorded = {_PODS: "pods.json", _JOBS: "jobs.json"}
        if path in _DISCOVERY:
            self._answer(_DISCOVERY[path])
        elif path in recorded:
            items = json.loads((DATA / "run" / recorded[path]).read_text())
            kind = {"kind": f"{'Pod' if path == _PODS else 'Job'}List"}
            self._answer({**items, **kind, "apiVersion": "v1" if path == _PODS else "batch/v1"})
        elif path.startswith(f"{_PODS}/") and path.endswith("/log"):
            name = path.removeprefix(f"{_PODS}/").removesuffix("/log")
            node = name.removeprefix("envbuilder-4f1a2b-").removesuffix("-x7k2p")
            content = log_of(node).encode()[: int(query["limitBytes"][0])]
            self._send(200, content, "text/plain")
        elif path.startswith(f"{_PODS}/"):
            pods = json.loads((DATA / "run" / "pods.json").read_text())["items"]
            (pod,) = [p for p in pods if path == f"{_PODS}/{p['metadata']['name']}"]
            self._answer(pod)
        else:
            self._answer({"kind": "Status", "status": "Failure", "code": 404}, 404)

    def do_POST(self) -> None:
        self._noted()
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.created.append(sent)
        self._answer(sent, 201)

    def _noted(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.requests.append((self.command, parts.path, query))
        return parts.path, query

    def _answer(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def serving() -> Iterator[tuple[str, Requests]]:
    """Serve on this machine alone; yield the URL and the requests."""
    requests = Requests()
    handler = type("Handler", (_Handler,), {"requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with http_server.serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
