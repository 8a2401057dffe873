"""Use a running JupyterLab as its page does: start a kernel, run cells, interrupt one.

Runs with the Python of JupyterLab's own environment, which has a client of websockets. The
arguments are the link and cells to run; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from typing import Any

import websocket

SECONDS = 60


class Server:
    """A server, by its link."""

    def __init__(self, link: str) -> None:
        parts = urllib.parse.urlsplit(link)
        self.host = parts.netloc
        self.token = dict(urllib.parse.parse_qsl(parts.query))["token"]

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        request = urllib.request.Request(
            f"http://{self.host}/api/{path}",
            method=method,
            headers={"Authorization": f"token {token or self.token}"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read() or b"null")


class Kernel:
    """A new kernel of a server, through its channels."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = server.ask("POST", "kernels", {})["id"]
        self.socket = websocket.create_connection(
            f"ws://{server.host}/api/kernels/{self.id}/channels",
            header={"Authorization": f"token {server.token}"},
            timeout=SECONDS,
        )

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell; return its text and the name of its exception."""
        name = uuid.uuid4().hex
        header = {"msg_id": name, "msg_type": "execute_request", "username": "", "version": "5.3"}
        message = {
            "header": {**header, "session": name, "date": ""},
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "store_history": True},
            "channel": "shell",
        }
        self.socket.send(json.dumps(message))
        text = ""
        error = ""
        while True:
            answer = json.loads(self.socket.recv())
            if answer["parent_header"].get("msg_id") != name:
                continue
            content = answer["content"]
            match answer["header"]["msg_type"]:
                case "stream":
                    text += content["text"]
                case "execute_result":
                    text += content["data"]["text/plain"]
                case "error":
                    error = content["ename"]
                case "status" if content["execution_state"] == "idle":
                    return {"text": text, "error": error}

    def interrupted(self) -> dict[str, Any]:
        """Run a cell without end, and interrupt it."""

        def interrupt() -> None:
            time.sleep(1)
            self.server.ask("POST", f"kernels/{self.id}/interrupt")

        threading.Thread(target=interrupt).start()
        return self.run("import time\nwhile True: time.sleep(0.1)")


def main(link: str, *cells: str) -> None:
    server = Server(link)
    try:
        refused = server.ask("GET", "kernels", token="wrong") is None
    except urllib.error.HTTPError as error:
        refused = error.code == 403
    started = time.monotonic()
    kernel = Kernel(server)
    first = kernel.run("1")
    seconds = time.monotonic() - started
    results = {
        "refused": refused,
        "specs": server.ask("GET", "kernelspecs"),
        "seconds": seconds,
        "first": first,
        "cells": [kernel.run(cell) for cell in cells],
        "interrupted": kernel.interrupted(),
        "after": kernel.run("2"),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
