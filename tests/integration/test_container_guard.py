"""What runs in a container ends with whoever holds its stdin; its exit code is the container's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuilder.containers import inside

Start = Callable[[str], subprocess.Popen[str]]

CONNECTION = '{"ip": "0.0.0.0"}'
REPORT = """\
import json, os, stat, sys
path = sys.argv[sys.argv.index("-f") + 1]
mode = stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)
leads = os.getpgid(0) == os.getpid()
facts = [open(path).read(), mode, sys.stdin.read(), leads, os.getpid()]
print(json.dumps(facts), flush=True)
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Start]:
    """`guarded(script)` runs a stand-in for ipykernel."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        (tmp_path / "ipykernel_launcher.py").write_text(script)
        command = (sys.executable, "-m", "ipykernel_launcher", "-f", inside.BEGINNING)
        guard = subprocess.Popen(
            inside.guarded((sys.executable,), command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
        )
        started.append(guard)
        guard.stdin.write(f"{CONNECTION}\n")
        guard.stdin.flush()
        return guard

    yield start
    for guard in started:
        with guard:
            guard.kill()


def facts(guard: subprocess.Popen[str]) -> list[object]:
    facts: list[object] = json.loads(guard.stdout.readline())
    return facts


def test_the_kernel_gets_its_connection_and_no_stdin(guarded: Start) -> None:
    guard = guarded(REPORT + "sys.exit(3)")
    content, mode, stdin, leads, _ = facts(guard)
    assert (content, mode, stdin, leads) == (f"{CONNECTION}\n", 0o700, "", True)
    assert guard.wait(10) == 3


@pytest.mark.parametrize("how", ["stdin", "SIGTERM"])
def test_it_ends_with_whoever_started_it(guarded: Start, how: str) -> None:
    guard = guarded(REPORT + "import time; time.sleep(60)")
    kernel = facts(guard)[-1]
    try:
        if how == "stdin":
            guard.stdin.close()
        else:
            guard.send_signal(signal.SIGTERM)
        assert guard.wait(10) == (0 if how == "stdin" else 128 + signal.SIGTERM)
    finally:
        # In a container, the end of its first process ends the others.
        os.kill(int(str(kernel)), signal.SIGKILL)


def test_a_kernel_that_a_signal_ended_is_told_as_shells_do(guarded: Start) -> None:
    assert guarded("import os; os.kill(os.getpid(), 9)").wait(10) == 128 + 9
