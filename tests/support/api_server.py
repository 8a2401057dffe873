"""As much of Kubernetes' API as `kubectl` needs to create Jobs and read logs; it runs nothing.

Every Job that was created has one pod, whose log is what `log_of` returns of run, node and pod.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support import http_server


def _resources(group: str, *kinds: str) -> dict[str, Any]:
    resources = [
        {
            "name": f"{kind.lower()}s",
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": True,
            "verbs": ["create", "get", "list"],
        }
        for kind in kinds
    ]
    return {"kind": "APIResourceList", "groupVersion": group, "resources": resources}


_BATCH = {"groupVersion": "batch/v1", "version": "v1"}
_DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH}],
    },
    "/api/v1": _resources("v1", "Pod", "ConfigMap", "Service"),
    "/apis/batch/v1": _resources("batch/v1", "Job"),
}
_PODS, _JOBS = "/api/v1/namespaces/ml/pods", "/apis/batch/v1/namespaces/ml/jobs"


class _Handler(http_server.Quiet):
    created: list[dict[str, Any]]
    log_of: Callable[[str, str, str], str]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        jobs = {each["metadata"]["name"]: _job(each) for each in self.created if _is_job(each)}
        pods = {f"{name}-x7k2p": _pod(job) for name, job in jobs.items()}
        folder, _, name = path.removesuffix("/log").rpartition("/")
        if path in _DISCOVERY:
            self._answer(_DISCOVERY[path])
        elif path == _JOBS:
            items = [*jobs.values()]
            self._answer({"kind": "JobList", "apiVersion": "batch/v1", "items": items})
        elif path == _PODS:
            items = [pod for pod in pods.values() if pod["metadata"]["labels"]["job-name"] in query]
            self._answer({"kind": "PodList", "apiVersion": "v1", "items": items})
        elif folder == _JOBS and name in jobs:
            self._answer(jobs[name])
        elif folder == _PODS and name in pods and path.endswith("/log"):
            run = pods[name]["metadata"]["labels"]["envbuilder/run"]
            text = self.log_of(run, pods[name]["spec"]["nodeName"], name)
            self._send(200, text.encode(), "text/plain")
        elif folder == _PODS and name in pods:
            self._answer(pods[name])
        else:
            self._answer({"kind": "Status", "status": "Failure", "code": 404}, 404)

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.created.append(sent)
        self._answer(sent, 201)

    def _answer(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _is_job(created: dict[str, Any]) -> bool:
    return bool(created["kind"] == "Job")


def _job(created: dict[str, Any]) -> dict[str, Any]:
    """Return a Job with the selector of its pods, which a cluster adds."""
    selector = {"matchLabels": {"job-name": created["metadata"]["name"]}}
    return {**created, "spec": {**created["spec"], "selector": selector}}


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    name, notes = job["metadata"]["name"], job["metadata"]["annotations"]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"{name}-x7k2p",
            "namespace": "ml",
            "labels": {**job["metadata"]["labels"], "job-name": name},
        },
        "spec": {"nodeName": notes["envbuilder/node"], "containers": [{"name": "verify"}]},
        "status": {"phase": "Succeeded"},
    }


@contextmanager
def serving(log_of: Callable[[str, str, str], str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve on this machine alone; yield the URL and the objects that were created."""
    created: list[dict[str, Any]] = []
    handler = type("Handler", (_Handler,), {"created": created, "log_of": staticmethod(log_of)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with http_server.serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", created
