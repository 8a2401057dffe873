"""A watched command runs as it would alone: its exit code, its signals, its imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.watch import model, supervise


def test_the_commit_and_whether_it_is_what_ran(tmp_path: Path) -> None:
    assert supervise.source(tmp_path) == model.Source()
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run([*git, *command], check=True)
    clean = supervise.source(tmp_path)
    assert (clean.is_clean, len(clean.commit or "")) == (True, 40)
    (tmp_path / "train.py").touch()
    (tmp_path / ".git" / "config").write_text("[core]\nfsmonitor = touch ran\n")
    assert supervise.source(tmp_path) == model.Source(commit=clean.commit, is_clean=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)]
)
def test_the_commands_own_code_is_passed_through(script: str, code: int) -> None:
    running = supervise.Running(in_container=False)
    assert running.start(("sh", "-c", script), {}) == code
    assert running.machine.cpus >= 1


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ToolError, match="nosuch"):
        supervise.Running(in_container=False).start(("nosuch",), {})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_the_command_gets_the_signals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # no terminal
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


def test_a_signal_that_the_caller_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nohup: the program inherits it, which it would not if it were handled here."""
    monkeypatch.setattr(sys, "stdin", None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    script = "import signal; raise SystemExit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    try:
        assert process.accompany((sys.executable, "-c", script), {}) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_not_lost_while_the_program_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

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
    package = tmp_path / "lib" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.stderr.write('own')\n")
    with supervise.Session.laid(tmp_path) as session:
        folders = (session.hook, tmp_path / "own", tmp_path / "lib")
        done = subprocess.run(
            [sys.executable, "-c", HOOKED],
            env={"PYTHONPATH": os.pathsep.join(map(str, folders)), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        parts, left_out = session.parts()
    assert (done.returncode, done.stderr) == (0, "own")
    assert done.stdout == str(package / "__init__.py")
    assert (parts, left_out) == ((), 0)


def test_a_training_within_another_one_runs_unchanged(tmp_path: Path) -> None:
    """The inner command has both hooks on its path."""
    package = tmp_path / "lib" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    with supervise.Session.laid(tmp_path) as outer, supervise.Session.laid(tmp_path) as inner:
        folders = (inner.hook, outer.hook, tmp_path / "lib")
        done = subprocess.run(
            [sys.executable, "-c", HOOKED],
            env={"PYTHONPATH": os.pathsep.join(map(str, folders)), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == str(package / "__init__.py")
