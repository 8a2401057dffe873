"""Container engines that a machine has, as their sockets, files and programs tell."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.host import engines
from envbuilder.host.model import Containers, Engine
from envbuilder.host.snapshot import Snapshot
from tests.support.engine_trees import look, tree

Reply = Callable[[socket.socket, threading.Event], None]


DOCKER = {"Version": "28.5.2", "Components": [{"Name": "Engine", "Version": "28.5.2"}]}

PODMAN = {"Version": "5.4.2", "Components": [{"Name": "Podman Engine", "Version": "5.4.2"}]}

BUILDX = "github.com/docker/buildx v0.30.1 9e66234\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not `tmp_path`: a socket's path holds about 100 characters.
    with tempfile.TemporaryDirectory(prefix="eb-") as name:
        yield Path(name)


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., Path]]:
    """`serve(reply, name)`: a socket whose connections `reply(connection, stop)` handles."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:

        def start(reply: Reply, name: str = "docker.sock") -> Path:
            class Handler(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    with contextlib.suppress(OSError):
                        reply(self.request, stop)

            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
            stack.enter_context(server)
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            stack.callback(server.shutdown)
            return path

        yield start
        stop.set()


def says(*bodies: object, status: str = "200 OK") -> Reply:
    """One body for each connection in turn, the last one for all further ones."""
    queue = list(bodies)

    def reply(connection: socket.socket, stop: threading.Event) -> None:
        request = connection.recv(4096)
        assert request.startswith(b"GET /")
        assert b" HTTP/1.0\r\n" in request
        body = queue.pop(0) if len(queue) > 1 else queue[0]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.sendall(f"HTTP/1.0 {status}\r\nServer: x\r\n\r\n".encode() + content)

    return reply


def silent(connection: socket.socket, stop: threading.Event) -> None:
    stop.wait()


def trickling(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while not stop.wait(0.01):
        connection.sendall(b" ")


def flooding(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while not stop.is_set():
        connection.sendall(b" " * 100)


def closing(connection: socket.socket, stop: threading.Event) -> None:
    connection.recv(4096)


def garbage(connection: socket.socket, stop: threading.Event) -> None:
    connection.recv(4096)
    connection.sendall(b"\x00\xff\r\n\r\n\r\n")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., dict[str, Engine]]:
    """The engines below the test's folder, by what follows it; none of this machine's own."""
    monkeypatch.setattr(engines, "DOCKERS", ())
    monkeypatch.setattr(engines, "_PODMAN", "nonexistent/podman.sock")
    monkeypatch.setattr(engines, "_SECONDS", 0.1)
    session = {"XDG_RUNTIME_DIR": str(folder)}

    def run(environ: dict[str, str] = session, home: str = "", full: bool = False) -> Any:
        text = engines.ask(environ, home, full=full)
        taken = Snapshot(live=True, system="linux", files={"engines.json": text})
        found = engines.decide(taken).engines
        return {e.socket.removeprefix(f"{folder}/"): e for e in found}

    return run


def test_an_engine_that_answers_is_usable(ask: Any, serve: Any, folder: Path) -> None:
    serve(says(DOCKER))
    serve(says(PODMAN), "podman/podman.sock")
    docker = Engine(name="docker", socket=f"{folder}/docker.sock", version="28.5.2", state="usable")
    podman = Engine(
        name="podman", socket=f"{folder}/podman/podman.sock", version="5.4.2", state="usable"
    )
    assert ask() == {"docker.sock": docker, "podman/podman.sock": podman}


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (silent, "timed out"),
        (trickling, "timed out"),
        (closing, "it sent no response"),
        (garbage, "its answer was '"),
        (says(DOCKER, status="403 Forbidden"), "403 Forbidden"),
        (says(b"\xff"), "malformed"),
        (says({"Version": 5}), "Expected `str`"),
        (says({}), "its answer names no version"),
        # Refused for its depth; Python 3.14 gets to its end, which is missing.
        (says(b'{"x":' * 10_000), "recursion" if sys.version_info < (3, 14) else "truncated"),
        (says(b" " * 1_000_000), "too long"),
    ],
)
def test_an_engine_that_answers_badly_is_unknown(
    reply: Reply, detail: str, ask: Any, serve: Any
) -> None:
    serve(reply)
    found = ask()["docker.sock"]
    assert (found.name, found.version, found.state) == ("unknown", None, "unknown")
    assert found.detail.startswith("No usable answer: ")
    assert detail.lower() in found.detail.lower()


def test_an_answer_of_the_greatest_length_is_taken(serve: Any) -> None:
    head = len(b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n")
    path = serve(says(b"x" * (2000 - head)))
    assert len(engines.get(str(path), "/", seconds=5, limit=2000)) == 2000 - head
    with pytest.raises(ValueError, match="too long"):
        engines.get(str(path), "/", seconds=5, limit=1999)


def test_the_deadline_is_for_all_of_the_answer(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(serve(flooding))
    with pytest.raises(TimeoutError):
        engines.get(path, "/", seconds=0.05, limit=1 << 40)
    given_: list[float] = []
    real = socket.socket.settimeout

    def settimeout(self: socket.socket, value: float) -> None:
        given_.append(value)
        real(self, value)

    monkeypatch.setattr(socket.socket, "settimeout", settimeout)
    engines.get(str(serve(says(DOCKER), "other.sock")), "/", seconds=60)
    assert given_[0] == 60
    assert given_[1] < 60


def test_a_socket_that_nothing_listens_on(ask: Any, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "docker.sock"))
    found = ask()["docker.sock"]
    assert (found.name, found.state) == ("unknown", "present")
    assert found.detail.startswith("Nothing listens")


def test_no_socket_is_no_engine(ask: Any, folder: Path) -> None:
    assert ask() == {}
    (folder / "docker.sock").mkdir()  # what Docker makes of a bind mount's missing source
    assert ask() == {}
    (folder / "docker.sock").rmdir()
    (folder / "docker.sock").touch()
    assert ask() == {}


def test_two_paths_to_one_socket_count_once(ask: Any, serve: Any, folder: Path) -> None:
    path = serve(says(DOCKER))
    (folder / "podman").mkdir()
    (folder / "podman/podman.sock").symlink_to(path)
    environ = {"XDG_RUNTIME_DIR": str(folder), "DOCKER_HOST": f"unix://{path}"}
    assert list(ask(environ)) == ["docker.sock"]


def test_a_closed_socket_is_present_and_a_closed_folder_a_note(
    ask: Any, serve: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = serve(says(DOCKER))
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        found = ask()["docker.sock"]
        assert (found.name, found.state) == ("unknown", "present")
        assert found.detail == "This user may not open it."
        patch.setattr(engines, "DOCKERS", (str(path)[1:],))
        assert "join the group docker" in ask({})["docker.sock"].detail
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert ask() == {}
        text = engines.ask({"XDG_RUNTIME_DIR": str(folder)}, "", full=False)
    notes = engines.notes(Snapshot(live=True, system="linux", files={"engines.json": text}))
    assert f"It is unknown whether an engine listens at {path}" in notes[1]


def test_sockets_of_the_home_and_the_one_that_is_named(ask: Any, serve: Any, folder: Path) -> None:
    for name in (".docker/run", ".docker/desktop", ".colima/default", ".orbstack/run", "elsewhere"):
        serve(says(DOCKER), f"{name}/docker.sock")
    environ = {"DOCKER_HOST": f"unix://{folder}/elsewhere/docker.sock"}
    found = ask(environ, home=str(folder)[1:])
    assert [e.state for e in found.values()] == ["usable"] * 5
    assert "elsewhere/docker.sock" in found


@pytest.mark.parametrize("value", ["tcp://user:secret@10.0.0.1:2376", "ssh://me@there", "unix://x"])
def test_an_engine_that_is_named_elsewhere_is_unknown(value: str, ask: Any) -> None:
    found = ask({"DOCKER_HOST": value})["DOCKER_HOST"]
    assert (found.name, found.state) == ("unknown", "unknown")
    assert "not queried" in found.detail
    assert "secret" not in str(found)


def test_a_socket_that_cannot_be_named(ask: Any, folder: Path) -> None:
    deep = folder / ("x" * 120)
    deep.mkdir()
    odd = folder / "\udcff"
    with contextlib.suppress(OSError):  # macOS has only names in UTF-8
        odd.mkdir()
    for home in (deep, odd):
        with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as stale:
            stale.bind("docker.sock")
            (folder / "docker.sock").rename(home / "docker.sock")
    assert next(iter(ask({"XDG_RUNTIME_DIR": str(deep)}).values())).state == "unknown"
    found = ask({"XDG_RUNTIME_DIR": str(odd)})
    assert next(iter(found.values())).state == "present"
    msgspec.json.encode(list(found.values()))


INFO = {
    "Runtimes": {
        "runc": {"path": "runc", "status": {"x": "y"}},
        "io.containerd.runc.v2": {"path": "runc"},
        "nvidia": {"path": "nvidia-container-runtime"},
        "amd": {"path": "/usr/bin/amd-container-runtime"},
        "no word nvidia": {},
    },
}


def test_full_asks_for_runtimes(serve: Any, ask: Any, folder: Path) -> None:
    serve(says(DOCKER, INFO))
    text = engines.ask({"XDG_RUNTIME_DIR": str(folder)}, "", full=True)
    taken = Snapshot(live=True, system="linux", files={"engines.json": text})
    assert engines.decide(taken).runtimes == ("amd", "nvidia")


@pytest.mark.parametrize("info", [b"{", b"x" * 2_000_000, {"Runtimes": []}])
def test_without_further_answers_an_engine_is_still_usable(
    info: object, serve: Any, ask: Any
) -> None:
    serve(says(DOCKER, info))
    assert ask(full=True)["docker.sock"].state == "usable"


def test_a_recorded_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a recorded tree asks nobody")

    monkeypatch.setattr(engines, "get", never)
    monkeypatch.setattr(process, "run", never)
    answers = {
        "run/docker.sock": {**DOCKER, "Info": INFO},
        "run/podman/podman.sock": {"error": "Connection refused"},
        "var/run/docker.sock": {"error": "Permission denied"},
        "run/user/1000/docker.sock": 5,
    }
    plugin = "usr/libexec/docker/cli-plugins/docker-buildx"
    files = {
        "engines.json": answers,
        "full.json": {"docker buildx version": BUILDX},
        plugin: "",
        "usr/bin/nvidia-ctk": "",
        "usr/local/bin/nvidia-container-runtime": "",
    }
    found, notes = look(tree(tmp_path, files), full=True)
    assert [(e.socket, e.name, e.state) for e in found.engines] == [
        ("/run/docker.sock", "docker", "usable"),
        ("/run/podman/podman.sock", "unknown", "present"),
        ("/var/run/docker.sock", "unknown", "present"),
        ("/run/user/1000/docker.sock", "unknown", "unknown"),
    ]
    assert "group docker" in found.engines[2].detail
    assert (found.buildx, found.buildx_version) == (True, "0.30.1")
    assert found.runtimes == ("amd", "nvidia", "nvidia-container-runtime", "nvidia-ctk")
    assert notes == []
    assert look(tmp_path)[0].buildx_version is None
    (tmp_path / plugin).unlink()
    assert look(tmp_path)[0].buildx is None  # whose home counts is not recorded


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("26.1.5+dfsg1", "26.1.5+dfsg1"),
        ("\x1b[31m1.0", None),
        ("1" * 200, None),
    ],
)
def test_versions_are_checked(version: str, expected: str | None, tmp_path: Path) -> None:
    tree(tmp_path, {"engines.json": {"run/docker.sock": {"Version": version}}})
    assert look(tmp_path)[0].engines[0].version == expected


def test_damaged_answers_are_noted(tmp_path: Path) -> None:
    found, notes = look(tree(tmp_path, {"engines.json": "[]"}))
    assert found.engines == ()
    assert "engines.json is damaged" in notes[0]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as the live machine, without engines."""
    monkeypatch.setattr(engines, "ask", lambda *_, **__: "{}")
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("home/me", "usr/bin", "etc", "run"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_buildx_needs_a_plugin_that_may_run(live: Path) -> None:
    assert look(live, live=True)[0].buildx is False
    plugin = live / "home/me/.docker/cli-plugins/docker-buildx"
    tree(live, {str(plugin.relative_to(live)): ""})
    plugin.chmod(0o644)
    assert look(live, live=True)[0].buildx is False
    plugin.chmod(0o755)
    assert look(live, live=True)[0].buildx is True


def test_buildx_behind_a_folder_that_cannot_be_read_is_unknown() -> None:
    name = "home/me/.docker/cli-plugins/docker-buildx"
    for reason, expected in (("Permission denied", None), ("not there", False)):
        taken = Snapshot(live=True, system="linux", unreadable={name: reason})
        assert engines.decide(taken).buildx is expected


@pytest.mark.parametrize(
    ("printed", "code", "version"),
    [
        (BUILDX, 0, "0.30.1"),
        ("github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n", 0, "0.13.1+ds1"),
        (BUILDX, 1, None),
        ("unknown command\n", 0, None),
    ],
)
def test_full_asks_buildx(
    printed: str, code: int, version: str | None, live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(argv: list[str], *, timeout: float) -> process.Completed:
        asked.append(argv)
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout=printed, stderr="", seconds=0
        )

    monkeypatch.setattr(process, "run", run)
    assert look(live, live=True)[0].buildx_version is None
    assert asked == []
    found, _ = look(live, live=True, full=True)
    assert asked == [["docker", "buildx", "version"]]
    assert (found.buildx_version, found.buildx) == (version, bool(version))


@pytest.mark.parametrize("error", [ToolError("docker: not found"), OSError(8, "exec format")])
def test_buildx_that_cannot_start_is_no_failure(
    error: Exception, live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", Mock(side_effect=error))
    assert look(live, live=True, full=True)[0].buildx_version is None


KEYS = """
Version Components Name Info Runtimes error name path
"""

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)

anything = st.one_of(
    st.text(max_size=60),
    values.map(json.dumps),
    st.dictionaries(st.text(max_size=20), values, max_size=3).map(json.dumps),
    values.map(lambda v: json.dumps({"docker buildx version": v})),
)


@given(anything, anything, st.booleans())
def test_no_answer_crashes(said: str, printed: str, live_: bool) -> None:
    files = {"engines.json": said, "full.json": printed}
    taken = Snapshot(live=live_, system="linux", files=files)
    found = engines.decide(taken)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Containers) == found
    for engine in found.engines:
        assert (engine.socket + engine.detail).isprintable()
    for note in engines.notes(taken):
        assert note.isprintable()
