"""`docker_run.run` on a real engine: however a container ends, it is told and leaves nothing."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from docker.types import DeviceRequest

from envbuilder.containers.engine import connection, docker_run
from envbuilder.core import process
from envbuilder.core.errors import ToolError, VerifyError
from envbuilder.verify import run as verify

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.process import Completed
LABEL = "envbuilder-test"
CHILD = """\
import functools, json, sys
from envbuilder.containers.engine import connection, docker_run
from envbuilder.core import stopping
stopping.install(owns_process=False)
try:
    show = functools.partial(print, flush=True)
    with connection.connect() as engine:
        show(docker_run.run(engine._client, json.loads(sys.argv[1]), show, 600))
except stopping.TerminatedError as stopped:
    sys.exit(stopping.exit_code(*stopped.args))
"""
IGNORES = (
    "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)];"
    " print('up', flush=True); time.sleep(600)"
)


class Container:
    """Options for a container that can be found again by its label."""

    def __init__(self, client: Any, image: str) -> None:
        self._client, self._image = client, image
        self.label = f"{LABEL}={secrets.token_hex(6)}"

    def options(self, code: str, **more: Any) -> dict[str, Any]:
        key, _, value = self.label.partition("=")
        return {
            "image": self._image,
            "command": ["python3", "-u", "-c", code],
            "network_mode": "none",
            "labels": {key: value},
            **more,
        }

    def run(self, code: str, timeout: float = 60, **more: Any) -> Completed:
        return docker_run.run(self._client, self.options(code, **more), lambda line: None, timeout)

    def left(self) -> list[Any]:
        found: list[Any] = self._client.containers.list(all=True, filters={"label": self.label})
        return found


@pytest.fixture
def container(docker_client: Any, base_image: str) -> Container:
    return Container(docker_client, base_image)


def test_output_and_code_come_through(container: Container) -> None:
    done = container.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert not done.timed_out
    assert container.left() == []


def test_out_of_memory_is_told(container: Container, tmp_path: Path) -> None:
    options = {"mem_limit": "64m", "memswap_limit": "64m"}
    done = container.run("x = bytearray(10**9)", **options)
    assert (done.returncode, done.timed_out) == (137, False)
    assert container.left() == []

    class Quiet:
        def note(self, text: str) -> None: ...

    with pytest.raises(VerifyError, match="out of memory"):
        verify.follow(lambda on_line: done, verify.Events(Quiet()), Quiet(), tmp_path / "log", "")


def test_time_runs_out_even_for_what_ignores_signals(container: Container) -> None:
    started = time.monotonic()
    done = container.run(IGNORES, timeout=2)
    assert (done.returncode, done.stdout, done.timed_out) == (137, "up\n", True)
    assert 2 <= done.seconds <= time.monotonic() - started < 30
    assert container.left() == []


def test_a_quiet_container_is_waited_for_longer_than_a_request(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's time-out is for answers, not for what runs."""
    monkeypatch.setattr(connection, "_SECONDS", 2)
    with connection.connect() as engine:
        quick = Container(engine._client, container._image)
        done = quick.run("import time; time.sleep(5); print('end')")
        assert (done.returncode, done.stdout) == (0, "end\n")
        assert quick.left() == []


def test_lines_of_any_length(container: Container) -> None:
    """Events between a line of 64 MB, which comes in bounded pieces, and bytes that are no text."""
    seen: list[str] = []
    code = (
        "import sys; w = sys.stdout.buffer.write; w(b'first\\n');"
        " [w(b'x' * 1_000_000) for _ in range(64)]; w(b'\\nlast\\n\\xff')"
    )
    started = time.monotonic()
    options = container.options(code)
    done = docker_run.run(container._client, options, seen.append, 120)
    assert done.returncode == 0
    first, *pieces, last, rest = (len(line) for line in seen)
    assert (first, sum(pieces), last, rest) == (5, 64_000_000, 4, 1)
    assert max(pieces) < 2 * process.LONGEST_LINE
    assert len(done.stdout) <= 2 * process.KEPT_BYTES
    assert done.stdout.endswith("last\n\ufffd")
    assert time.monotonic() - started < 30


def test_a_command_that_is_not_there_is_told(container: Container) -> None:
    options = {**container.options(""), "command": ["/nowhere/program"]}
    with pytest.raises(VerifyError, match="/nowhere/program"):
        docker_run.run(container._client, options, lambda line: None, 60)
    assert container.left() == []


def test_a_device_that_is_not_there_is_told(container: Container) -> None:
    with pytest.raises(ToolError, match="cannot give the container its device"):
        container.run("", devices=["/dev/nowhere:/dev/nowhere:rwm"])
    with pytest.raises(ToolError, match="cannot give the container its device"):
        container.run("", device_requests=[DeviceRequest(count=-1, capabilities=[["nothing"]])])
    assert container.left() == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_an_interrupted_run_leaves_no_container(
    number: signal.Signals, code: int, container: Container
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(container.options(IGNORES))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    assert len(container.left()) == 1
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code, said
    assert container.left() == []
