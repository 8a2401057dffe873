"""A watched command runs as it would alone: its exit code, its signals, its imports."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.commands import watch
from envbuilder.core import process
from envbuilder.core.errors import ToolError
from tests.conftest import ran


def test_the_commit_and_whether_it_is_what_ran(tmp_path: Path) -> None:
    assert watch.source(tmp_path).commit is None
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run([*git, *command], check=True)
    clean = watch.source(tmp_path)
    assert (clean.is_clean, len(clean.commit or "")) == (True, 40)
    (tmp_path / "train.py").touch()
    (tmp_path / ".git/config").write_text("[core]\nfsmonitor = touch ran\n")
    assert watch.source(tmp_path) == replace(clean, is_clean=False)
    (tmp_path / "below").mkdir()
    below = watch.source(tmp_path / "below")
    assert (below.commit, below.is_clean) == (clean.commit, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)]
)
def test_the_commands_own_code_is_passed_through(script: str, code: int) -> None:
    running = watch.Running(in_container=False)
    assert running.start(("sh", "-c", script), {}) == code
    assert running.machine.cpus >= 1


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ToolError, match="nosuch"):
        watch.Running(in_container=False).start(("nosuch",), {})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_the_command_gets_the_signals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_has_terminal", lambda: False)
    script = f"import os, signal, time\nsignal.signal(signal.{name}, lambda n, f: os._exit(42))\n"
    script += f"open({str(tmp_path / 'ready')!r}, 'w').close()\ntime.sleep(60)\n"

    def send() -> None:
        while not (tmp_path / "ready").exists():
            pass
        os.kill(os.getpid(), getattr(signal, name))

    before = signal.getsignal(getattr(signal, name))
    thread = threading.Thread(target=send)
    thread.start()
    assert process.accompany((sys.executable, "-c", script), {}) == 42
    thread.join()
    assert signal.getsignal(getattr(signal, name)) == before


COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)
print("seen", len(seen), flush=True)
"""
ACCOMPANIED = f"""
import sys
from envbuilder.core import process
sys.exit(process.accompany((sys.executable, "-c", {COUNTING!r}), {{}}))
"""


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_an_interrupt_reaches_the_command_once(send: Callable[[int, int], None]) -> None:
    """A second one would end a training that writes its checkpoint."""
    started = subprocess.Popen(
        [sys.executable, "-c", ACCOMPANIED],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        assert started.stdout.readline() == "ready\n"
        send(started.pid, signal.SIGINT)
        assert started.stdout.read() == "seen 1\n"
    assert started.returncode == 0


def test_an_interrupt_of_the_terminal_reaches_a_command_without_its_input_once() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(sys.executable, [sys.executable, "-c", ACCOMPANIED])
    with open(terminal, "rb", buffering=0) as screen:  # noqa: PTH123 (a descriptor)
        shown = b""
        while b"ready" not in shown:
            shown += screen.read(100)
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # the terminal's end
            while more := screen.read(100):
                shown += more
    assert b"seen 1" in shown
    assert os.waitpid(child, 0)[1] == 0


def test_a_command_is_killed_with_what_accompanies_it() -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", ACCOMPANIED],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with started:
        assert started.stdout.readline() == b"ready\n"
        started.kill()
        assert started.stdout.read() == b"", "nothing holds it open any more"


def test_a_signal_that_the_caller_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nohup: the program inherits it, which it would not if it were handled here."""
    monkeypatch.setattr(process, "_has_terminal", lambda: False)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    script = "import signal; raise SystemExit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    try:
        assert process.accompany((sys.executable, "-c", script), {}) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_not_lost_while_the_program_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_has_terminal", lambda: False)

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(*arguments, **options)  # type: ignore[arg-type, misc]

    monkeypatch.setattr(subprocess, "Popen", Slow)
    assert process.accompany(("sleep", "60"), {}) == 128 + signal.SIGTERM


HOOKED = """
import sys
import torch
assert torch.VALUE == 1
assert not [path for path in sys.path if "watch" in path], sys.path
print(torch.__spec__.origin, end="")
"""


def test_a_framework_is_imported_as_ever_even_if_it_cannot_be_observed(tmp_path: Path) -> None:
    package = tmp_path / "lib/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import sys\nsys.stderr.write('own')\n")
    with watch.Session.laid(tmp_path) as session:
        folders = (session.hook, tmp_path / "own", tmp_path / "lib")
        done = ran(
            [sys.executable, "-c", HOOKED],
            env={"PYTHONPATH": os.pathsep.join(map(str, folders)), "PATH": os.environ["PATH"]},
        )
        parts, left_out = session.parts()
    assert (done.returncode, done.stderr) == (0, "own")
    assert done.stdout == str(package / "__init__.py")
    assert (parts, left_out) == ((), 0)
