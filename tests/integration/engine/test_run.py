"""`Engine.run` with real engines: however a container ends, it is told and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine.connection import connect
from envbuilder.containers.engine.container import Container, Devices, Limits
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.core import process
from envbuilder.core.errors import ToolError, VerifyError
from envbuilder.verify import run as verify
from tests.integration.engine.conftest import PODMAN_BASE

CHILD = """\
import functools, sys
from envbuilder.containers.engine import connection, podman
from envbuilder.containers.engine.container import Container, Limits
from envbuilder.core import process
from tests.integration.engine.test_run import labelled
process.install_stop_handlers(owns_process=False)
client, image, label, code = sys.argv[1:]
try:
    engine = podman.connect(None) if client == "podman" else connection.connect()
    container = Container(
        image=image, user="1:1", limits=Limits(), arguments=("python3", "-u", "-c", code)
    )
    labelled(engine, label).run(container, functools.partial(print, flush=True), 600)
except process.TerminatedError as stopped:
    sys.exit(process.exit_code(*stopped.args))
"""
FOREGROUND = """\
import sys
from envbuilder.containers import inside
from envbuilder.containers.engine import connection, podman
from envbuilder.containers.engine.container import Container, Limits
from envbuilder.core import process
from tests.integration.engine.test_run import labelled
client, image, label, code = sys.argv[1:]
engine = podman.connect(None) if client == "podman" else connection.connect()
container = Container(
    image=image,
    user="1:1",
    limits=Limits(),
    entrypoint=inside.accompanied(("python3", "-I"), ("python3", "-u", "-c")),
    arguments=(code,),
)
process.exec_program(labelled(engine, label).foreground(container, terminal=False), {})
"""
IGNORES = (
    "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)];"
    " print('up', flush=True); time.sleep(600)"
)

HANDLES = (
    "import os, signal, time; signal.signal(2, lambda *_: os._exit(42));"
    " print('up'); time.sleep(600)"
)


def labelled(engine: Engine, label: str) -> Engine:
    """Let an engine's containers be found again."""
    flags: Callable[[Container], tuple[str, ...]] = engine._flags
    engine._flags = lambda container: (*flags(container), "--label", label)  # type: ignore[method-assign]
    return engine


class Bench:
    """An engine with a base image, and the label of the containers that a test makes."""

    def __init__(self, client: str, engine: Engine, image: str) -> None:
        self.client, self.image, self.label = (
            client,
            image,
            f"envbuilder-test={secrets.token_hex(6)}",
        )
        self.engine = labelled(engine, self.label)

    def run(
        self, *arguments: str, timeout: float = 60, seen: list[str] | None = None, **more: Any
    ) -> process.Completed:
        limits = more.pop("limits", Limits())
        container = Container(
            image=self.image, user="1000:1000", limits=limits, arguments=arguments, **more
        )
        lines = [] if seen is None else seen
        return self.engine.run(container, lines.append, timeout)

    def python(self, code: str, **more: Any) -> process.Completed:
        return self.run("python3", "-u", "-c", code, **more)

    def left(self) -> str:
        words = [self.client, "ps", "--all", "--quiet", "--filter", f"label={self.label}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "podman":
        found = request.getfixturevalue("engine_of_podman")
        same = PodmanEngine(found.command, rootless=found.rootless, limits=found.limits)
        return Bench("podman", same, PODMAN_BASE)
    request.getfixturevalue("docker_client")
    return Bench("docker", connect(), request.getfixturevalue("base_image"))


def test_output_and_code_come_through(bench: Bench) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    seen = list[str]()
    done = bench.python(code, seen=seen)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert seen == ["out"]
    assert not done.timed_out
    assert bench.left() == ""


def test_nothing_of_the_clients_settings_gets_in(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither proxies that its configuration has for containers, nor the user's variables."""
    proxies = {"default": {"httpProxy": "http://proxy:1", "noProxy": "local"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("HTTP_PROXY", "ENVBUILDER_TEST_SECRET"):
        monkeypatch.setenv(name, "http://mine:1")
    for tls in (
        "DOCKER_TLS",
        "DOCKER_TLS_VERIFY",
    ):  # for an endpoint that is named with DOCKER_HOST
        monkeypatch.setenv(tls, "1")
    done = bench.python("import os; print(*os.environ)", variables={"A": "1"})
    assert "A" in done.stdout.split()
    assert not {"HTTP_PROXY", "http_proxy", "ENVBUILDER_TEST_SECRET"} & {*done.stdout.split()}


def test_out_of_memory_is_told(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "x = bytearray(10**9)"
    done = bench.python(code, limits=Limits(memory=64 << 20), timeout=120)
    assert (done.returncode, done.timed_out) == (137, False)
    assert bench.left() == ""
    assert list(tmp_path.iterdir()) == []

    class Quiet:
        def note(self, text: str) -> None: ...

    with pytest.raises(VerifyError, match="memory ran out"):
        verify.follow(lambda on_line: done, verify.Events(Quiet()), Quiet(), tmp_path / "log", "")


def test_time_runs_out_even_for_what_ignores_signals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PATIENCE", (0.2, 0.5))
    started = time.monotonic()
    done = bench.python(IGNORES, timeout=3)
    assert (done.stdout, done.timed_out) == ("up\n", True)
    assert 3 <= done.seconds <= time.monotonic() - started < 60
    assert bench.left() == ""


def test_lines_of_any_length(bench: Bench) -> None:
    """Events between a line of 64 MB, which comes in bounded pieces, and bytes that are no text."""
    seen: list[str] = []
    code = (
        "import sys; w = sys.stdout.buffer.write; w(b'first\\n');"
        " [w(b'x' * 1_000_000) for _ in range(64)]; w(b'\\nlast\\n\\xff')"
    )
    done = bench.python(code, timeout=120, seen=seen)
    assert done.returncode == 0
    first, *pieces, last, rest = (len(line) for line in seen)
    assert (first, sum(pieces), last, rest) == (5, 64_000_000, 4, 1)
    assert max(pieces) < 2 * process.LONGEST_LINE
    assert len(done.stdout) <= 2 * process.KEPT_BYTES
    assert done.stdout.endswith("last\n\ufffd")


def test_what_cannot_be_started_is_told(bench: Bench) -> None:
    with pytest.raises(VerifyError, match="/nowhere/program"):
        bench.run("/nowhere/program")
    unknown = Container(image=f"sha256:{secrets.token_hex(32)}", user="1:1", limits=Limits())
    with pytest.raises(VerifyError, match="the container cannot be started"):
        bench.engine.run(unknown, print, 60)
    device = {"docker": "cannot pass the device to", "podman": r"nvidia\.com/gpu=all"}
    for devices in (
        Devices(nodes=("/dev/nowhere",), shm_size="64m"),
        Devices(gpus="all", shm_size="64m"),
    ):
        expected = "/dev/nowhere" if devices.nodes else device[bench.client]
        with pytest.raises(ToolError, match=expected):
            bench.python("", devices=devices)
    assert bench.left() == ""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_an_interrupted_run_leaves_no_container(
    number: signal.Signals, code: int, bench: Bench
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, bench.client, bench.image, bench.label, IGNORES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "up\n"
    assert bench.left() != ""
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code, said
    assert bench.left() == ""


CLIENT = """\
import sys
from envbuilder.containers import inside
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.container import Container, Limits
code = "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1])); sys.exit(7)"
with connection.connect() as engine:
    image = engine.image(sys.argv[1])
    container = Container(
        image=image.id, user="1000:1000", limits=Limits(), is_held=True, home="/home/user",
        entrypoint=inside.guarded(("python3", "-I"), ("python3", "-c", code)),
        arguments=(sys.argv[2], sys.argv[3]),
    )
    print(engine.run(container, lambda line: print(line, flush=True), 600).returncode)
"""


def running(token: str) -> list[bytes]:
    """The processes of this machine whose command line has a word."""
    lines = list[bytes]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if token.encode() in line]


def start(
    engine: tuple[str, str, dict[str, str]], seconds: str, token: str
) -> subprocess.Popen[str]:
    _, base, variables = engine
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, base, seconds, token],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_ends_with_a_client_that_is_killed(
    each_engine: tuple[str, str, dict[str, str]],
) -> None:
    token = secrets.token_hex(8)
    with start(each_engine, "600", token) as client:
        assert client.stdout.readline() == "up\n"
        assert len(running(token)) >= 3, "the client, the guard and the command"
        client.kill()
    deadline = time.monotonic() + 30
    while running(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running(token) == []
    words = ["docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for ended in (line.split()[0] for line in listed.splitlines() if token in line):
        subprocess.run(["docker", "rm", ended], capture_output=True, check=True)


def test_it_ends_by_itself_with_the_commands_code(
    each_engine: tuple[str, str, dict[str, str]],
) -> None:
    with start(each_engine, "0.1", secrets.token_hex(8)) as client:
        assert client.communicate()[0] == "up\n7\n"


def foreground(bench: Bench, code: str) -> subprocess.Popen[str]:
    """A command in the foreground as `run` starts it, once it has printed its first line."""
    started = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, bench.client, bench.image, bench.label, code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout.readline() == "up\n"
    return started


@pytest.mark.parametrize(
    ("code", "number", "ends"),
    [
        ("print('up'); import time; time.sleep(600)", signal.SIGTERM, 128 + signal.SIGTERM),
        (HANDLES, signal.SIGINT, 42),
        ("print('up'); raise SystemExit(7)", None, 7),
    ],
)
def test_a_command_in_the_foreground_gets_signals_and_ends_with_its_code(
    bench: Bench, code: str, number: signal.Signals | None, ends: int
) -> None:
    """The first process of a container gets no signal that it does not handle."""
    with foreground(bench, code) as started:
        if number is not None:
            started.send_signal(number)
        assert started.wait(20) == ends
    assert bench.left() == ""


def test_a_container_ends_with_a_client_that_is_killed(bench: Bench) -> None:
    with foreground(bench, IGNORES) as started:
        started.kill()
    deadline = time.monotonic() + 20
    while bench.left() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert bench.left() == ""
