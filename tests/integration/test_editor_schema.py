"""The schema of envbuilder.yaml in a real YAML language server, as editors run it."""

from __future__ import annotations

import hashlib
import json
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing, ran
from tools import project_schema

BAD = {
    "dependencies: [rich]\n": (0, "Property dependencies is not allowed."),
    "python: '3.12'\nrequirements: rich\n": (1, 'Incorrect type. Expected "array".'),
    "python: 3.10\n": (0, 'Incorrect type. Expected "string".'),
    "requirements_from:\n  - ../r.txt\n": (
        1,
        "Expected the path of a file in the project, without `..`.",
    ),
    "environments:\n  default: {}\n": (
        1,
        "Expected a name of lower-case letters, digits and hyphens; 'default' is what the top",
    ),
    "environments:\n  train:\n    profiles: [cpu]\n": (2, "Property profiles is not allowed."),
    "profiles:\n  - cpu\n  - cpu\n": (1, "Array has duplicate items."),
}


@pytest.fixture(scope="session")
def program(repository: Path, test_cache: Path) -> Path:
    """The language server from npm's registry, by the hashes of its lock."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        missing("npm", "npm or node is not installed")
    source = repository / "tests/data/yaml-language-server"
    lock = (source / "package-lock.json").read_bytes()
    folder = test_cache / f"yaml-language-server-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = ran(command, cwd=part)
        if done.returncode != 0:
            missing("npm", f"its registry does not answer: {done.stderr[-400:]}")
        part.rename(folder)
    return folder / "node_modules/.bin/yaml-language-server"


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    settings = {
        "validate": True,
        "completion": True,
        "hover": True,
        "schemaStore": {"enable": False},
        "schemas": {project_schema.FILE.as_uri(): "envbuilder.yaml"},
    }
    folder = tmp_path_factory.mktemp("editor")
    shutil.copy(project_schema.FILE, folder)
    running = LanguageServer([str(program), "--stdio"], folder, {"yaml": settings})
    yield running
    running.close()


def labels(completions: Any) -> set[str]:
    return {item["label"] for item in completions["items"]}


def test_a_good_file_has_no_diagnostics(server: LanguageServer) -> None:
    document = server.open("good/envbuilder.yaml", project_schema.EXAMPLE)
    assert server.diagnostics(document) == []


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_has_one_where_the_mistake_is(server: LanguageServer, text: str) -> None:
    document = server.open(f"bad-{list(BAD).index(text)}/envbuilder.yaml", text)
    (problem,) = server.diagnostics(document)
    line, message = BAD[text]
    assert problem["range"]["start"]["line"] == line
    assert problem["message"].startswith(message)


def test_the_first_line_can_name_the_schema(server: LanguageServer) -> None:
    first = "# yaml-language-server: $schema=envbuilder.schema.json\n"
    document = server.open("another-name.yaml", f"{first}pip: [rich]\n")
    (problem,) = server.diagnostics(document)
    assert problem["message"] == "Property pip is not allowed."


@pytest.mark.parametrize(
    ("name", "text", "place", "offered"),
    [
        ("keys", "\n", (0, 0), {"requirements", "python", "environments", "indexes", "signatures"}),
        ("below", "environments:\n  train:\n    \n", (2, 4), {"requirements", "python"}),
        ("profiles", "profiles:\n  - \n", (1, 4), {"cpu", "cuda", "rocm", "xpu", "mps"}),
        ("a file", "requirements_from:\n  - file: x\n    \n", (2, 4), {"extras", "groups"}),
    ],
)
def test_keys_and_profiles_are_completed(
    server: LanguageServer, name: str, text: str, place: tuple[int, int], offered: set[str]
) -> None:
    document = server.open(f"completion-{name}/envbuilder.yaml", text)
    assert offered <= labels(server.at("completion", document, *place))


def test_what_is_completed_has_the_right_type(server: LanguageServer) -> None:
    """The examples are inserted as they are."""
    document = server.open("insertion/envbuilder.yaml", "\n")
    items = server.at("completion", document, 0, 0)["items"]
    inserted = {item["label"]: item["insertText"] for item in items}
    assert inserted["python"] == 'python: ${1:"3.12"}'
    assert inserted["requirements"] == "requirements:\n  - ${1}"


def test_hover_shows_what_a_key_means(server: LanguageServer) -> None:
    document = server.open("hover/envbuilder.yaml", project_schema.EXAMPLE)
    lines = project_schema.EXAMPLE.splitlines()
    for key, words in {
        "python:": "The Python version. By default",
        "requirements_from:": "Files that list more requirements.",
        "  - file:": "Path of the file, such as `requirements.txt`, `pyproject.toml`",
        "signatures:": "Required signatures.",
    }.items():
        line = next(number for number, text in enumerate(lines) if text.startswith(key))
        hover = server.at("hover", document, line, key.index(":") - 1)
        assert words in hover["contents"]["value"]


# ---- a client of a language server on stdio (LSP 3.17), as far as these tests need it

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
