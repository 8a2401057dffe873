"""Time the first `envbuilder lock` of a project: for one profile, and for all of its hardware.

    python benchmarks/lock.py --index https://…/simple [--runs 5] [--direct] [REQUIREMENT …]

Caches are empty in each run. The package index is answered by this script, at an address of the
loopback, from what the first run fetched through it: what is left is the work of envbuilder and of
uv, without the network and its name service. With `--direct`, runs alternate with ones that ask the
index itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

PROFILES = ("cpu", "cuda", "rocm", "xpu", "mps", "zendnn", "cuda-legacy")
WAYS = {"one profile": PROFILES[:1], "seven profiles": PROFILES}
PASSED_ON = ("Accept", "Range")


class Index(ThreadingHTTPServer):
    """An index at 127.0.0.1 that remembers what the real one answered."""

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.upstream = url.rstrip("/")
        self.known: dict[tuple[str, ...], tuple[int, dict[str, str], bytes]] = {}
        self.own = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, asked: tuple[str, ...]) -> tuple[int, dict[str, str], bytes]:
        key = (path, *asked)
        if key not in self.known:
            self.known[key] = self._fetch(path, asked)
        return self.known[key]

    def _fetch(self, path: str, asked: tuple[str, ...]) -> tuple[int, dict[str, str], bytes]:
        is_file = path.startswith("/file/")
        url = f"https://{path[6:]}" if is_file else self.upstream + path.removeprefix("/simple")
        pairs = zip(PASSED_ON, asked, strict=True)
        request = urllib.request.Request(url, headers={n: v for n, v in pairs if v})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status = reply.status
                content = reply.read()
                headers = {
                    n: reply.headers[n]
                    for n in ("Content-Type", "Content-Range")
                    if reply.headers[n]
                }
        except urllib.error.HTTPError as error:
            return error.code, {}, b""
        if not is_file:
            content = content.replace(b"https://", f"{self.own}/file/".encode())
        return status, headers, content


class Answer(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Index

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = tuple(self.headers.get(name, "") for name in PASSED_ON)
        status, headers, content = self.server.answer(self.path, asked)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def lock(requirements: list[str], profiles: tuple[str, ...], index: str) -> float:
    """Lock a new project with empty caches; return the seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = folder / "project"
        project.mkdir()
        listed = "".join(f"  - {requirement}\n" for requirement in requirements)
        (project / "envbuilder.yaml").write_text(
            f"profiles: [{', '.join(profiles)}]\nrequirements:\n{listed}"
        )
        own = {"ENVBUILDER_CACHE_DIR": "cache", "UV_CACHE_DIR": "uv", "ENVBUILDER_DATA_DIR": "data"}
        variables = {**os.environ, **{key: str(folder / value) for key, value in own.items()}}
        if index:
            variables |= {"PIP_INDEX_URL": f"{index}/simple", "PIP_CONFIG_FILE": os.devnull}
            variables |= {"UV_INDEX_URL": f"{index}/simple", "UV_NO_CONFIG": "1"}
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", "lock"],
            cwd=project,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}")
    return seconds


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requirements", nargs="*", default=["einops"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--index", required=True, help="its simple pages, which pip and uv ask")
    parser.add_argument("--direct", action="store_true")
    given = parser.parse_args()
    index = Index(given.index)
    threading.Thread(target=index.serve_forever, daemon=True).start()
    for way, profiles in WAYS.items():
        lock(given.requirements, profiles, index.own)
        times: dict[str, list[float]] = {"loopback": [], **({"direct": []} if given.direct else {})}
        for _ in range(given.runs):
            for name, seconds in times.items():
                seconds.append(
                    lock(given.requirements, profiles, index.own if name == "loopback" else "")
                )
        for name, seconds in times.items():
            all_of_them = ", ".join(f"{value:.2f}" for value in sorted(seconds))
            print(f"{way}, {name}: median {median(seconds):.2f} s ({all_of_them})")
    index.shutdown()


if __name__ == "__main__":
    main()
