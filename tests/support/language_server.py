"""A client of a language server on stdio (LSP 3.17), as far as one test needs it."""

from __future__ import annotations

import json
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 60.0


class LanguageServer:
    """A running server with one folder; documents exist in memory alone."""

    def __init__(self, command: Sequence[str], folder: Path, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._folder = folder
        self._number = 0
        self._buffer = b""
        self._diagnostics: dict[str, list[dict[str, Any]]] = {}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._readable = selectors.DefaultSelector()
        self._readable.register(self._process.stdout, selectors.EVENT_READ)
        root = folder.as_uri()
        capabilities = {
            "workspace": {"configuration": True, "workspaceFolders": True},
            "textDocument": {"hover": {"contentFormat": ["markdown"]}},
        }
        self.request(
            "initialize",
            processId=None,
            rootUri=root,
            workspaceFolders=[{"uri": root, "name": "project"}],
            capabilities=capabilities,
        )
        self._notify("initialized")

    def close(self) -> None:
        """End the server."""
        self.request("shutdown")
        self._notify("exit")
        self._process.communicate(timeout=PATIENCE)
        self._readable.close()

    def open(self, name: str, text: str) -> str:
        """Open a document and return its URI."""
        uri = (self._folder / name).as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._notify("textDocument/didOpen", textDocument=document)
        return uri

    def diagnostics(self, uri: str) -> list[dict[str, Any]]:
        """Wait for what the server says is wrong with an open document."""
        while uri not in self._diagnostics:
            self._take()
        return self._diagnostics.pop(uri)

    def at(self, what: str, uri: str, line: int, character: int) -> Any:
        """Ask for `completion` or `hover` at a place, counted from 0."""
        place = {"line": line, "character": character}
        return self.request(f"textDocument/{what}", textDocument={"uri": uri}, position=place)

    def request(self, method: str, **params: Any) -> Any:
        """Send a request and wait for its result."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._take()
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, message
                return message.get("result")

    def _notify(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _take(self) -> dict[str, Any]:
        """Wait for a message, and answer it if the server asks for something."""
        message: dict[str, Any] = self._receive()
        if "method" in message and "id" in message:
            asked = message["params"].get("items", []) if message["params"] else []
            result = [self._settings.get(item.get("section")) for item in asked]
            is_configuration = message["method"] == "workspace/configuration"
            self._send({"id": message["id"], "result": result if is_configuration else None})
        elif message.get("method") == "textDocument/publishDiagnostics":
            self._diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        return message

    def _receive(self) -> Any:
        end = time.monotonic() + PATIENCE
        assert self._process.stdout is not None
        while True:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            size = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]) if separator else 0
            if separator and len(rest) >= size:
                self._buffer = rest[size:]
                return json.loads(rest[:size])
            ready = self._readable.select(timeout=max(0.0, end - time.monotonic()))
            assert ready, "the language server does not answer"
            part = self._process.stdout.raw.read(1 << 16)  # type: ignore[attr-defined]
            assert part, "the language server ended"
            self._buffer += part
