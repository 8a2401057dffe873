"""The doorway to programs, with real small programs (the one unit test that runs any)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.core import process
from envbuilder.core.errors import CommandError, ToolError

REAL_POPEN = subprocess.Popen


@pytest.fixture(autouse=True)
def allow(no_outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", REAL_POPEN)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_output_comes_line_by_line_and_whole() -> None:
    out: list[str] = []
    err: list[str] = []
    done = process.run(
        python("import sys; print(' aX '); print('b', file=sys.stderr); print('cX', end='')"),
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, " aX \ncX", "b\n")
    assert (out, err) == ([" aX ", "cX"], ["b"])


def test_what_a_callback_raises_ends_the_program_and_is_raised() -> None:
    def refuse(line: str) -> None:
        raise ValueError(line)

    endless = python("while True: print('more', flush=True)")
    with pytest.raises(ValueError, match="more"):
        process.run(endless, on_stdout=refuse)


def test_a_program_gets_what_it_is_told_or_nothing() -> None:
    read = python("import sys; print(repr(sys.stdin.read()))")
    assert process.run(read, stdin="a line\n").stdout.strip() == "'a line\\n'"
    assert process.run(read).stdout.strip() == "''"
    deaf = python("import sys; sys.stdin.close()")
    assert process.run(deaf, stdin="nobody listens\n").returncode == 0


def test_a_failing_status_is_returned() -> None:
    done = process.run(python("import sys; print('why', file=sys.stderr); sys.exit(3)"))
    assert done.returncode == 3
    assert done.last_words == "why"


def test_a_missing_program_is_a_tool_error() -> None:
    with pytest.raises(ToolError, match="no-such-program-here: not found"):
        process.run(["no-such-program-here"])


def test_environment_is_added_and_nothing_is_a_shell(tmp_path: Path) -> None:
    done = process.run(
        [
            *python("import os, sys; print(os.environ['X'], sys.argv[1], os.getcwd())"),
            "; touch made",
        ],
        env={"X": "$(id)"},
        cwd=tmp_path,
    )
    assert done.stdout == f"$(id) ; touch made {tmp_path.resolve()}\n"
    assert not done.timed_out
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_interrupted_then_terminated_then_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_PATIENCE", (0.2, 0.2))
    deaf = python(
        "import signal, time\n"
        "for n in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(n, lambda number, frame: print(number, flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(60)"
    )
    done = process.run(deaf, timeout=1.5)
    assert done.stdout.split() == ["ready", str(int(signal.SIGINT)), str(int(signal.SIGTERM))]
    assert done.timed_out
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("lacking", [AttributeError, OSError])
def test_a_time_limit_needs_no_help_of_linux(
    lacking: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=lacking), raising=False)
    assert process.run(python("import time; time.sleep(60)"), timeout=0.1).timed_out
    assert not process.run(python("pass"), timeout=60).timed_out


def test_a_held_program_ends_with_its_own_code() -> None:
    script = "import sys; sys.exit(len(sys.stdin.readline()))"
    assert process.run_while_needed(python(script), "four\n", lambda: True) == 5
    assert (
        process.run_while_needed(
            python("import sys; sys.stdin.close(); sys.exit(2)"), "x", lambda: True
        )
        == 2
    )
    with pytest.raises(ToolError):
        process.run_while_needed(["no-such-program"], "", lambda: True)


def test_a_held_program_sees_that_it_is_no_longer_needed() -> None:
    script = "import sys; sys.exit(7 if sys.stdin.read() == 'beginning' else 1)"
    assert process.run_while_needed(python(script), "beginning", lambda: False) == 7


def test_a_held_program_that_does_not_care_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_HASTE", (0.1, 0.1))
    for name in ("_HELD_SECONDS", "_UNHELD_SECONDS"):
        monkeypatch.setattr(process, name, 0.1)
    ready = tmp_path / "ready"
    deaf = python(
        "import pathlib, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        " pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    )
    ended = process.run_while_needed([*deaf, str(ready)], "", lambda: not ready.exists())
    assert ended == -signal.SIGTERM
    assert not process.running()


def test_a_pipe_that_a_descendant_keeps_open_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_READ_SECONDS", 0.2)
    before = set(threading.enumerate())
    done = process.run(
        python(
            "import subprocess, sys\n"
            "sleeping = [sys.executable, '-c', 'import time; time.sleep(30)']\n"
            "print(subprocess.Popen(sleeping, start_new_session=True).pid)"
        )
    )
    try:
        assert done.seconds < 20
        reading = set(threading.enumerate()) - before
        assert reading
        for thread in reading:
            assert thread.daemon, "this program could not exit"
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_running_children_can_be_killed() -> None:
    seen: list[int] = []

    def end(line: str) -> None:
        seen.append(len(process.running()))
        process.kill(process.running())

    done = process.run(python("import time; print('x', flush=True); time.sleep(60)"), on_stdout=end)
    assert done.returncode == -signal.SIGKILL
    assert (seen, process.running()) == ([1], frozenset())


class ReplacedError(Exception):
    """This process has become another program."""


def replaced(*args: object) -> None:
    raise ReplacedError(*args)


def test_this_program_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execve", replaced)
    monkeypatch.setenv("OURS", "x")
    monkeypatch.setenv("CHANGED", "x")
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        with pytest.raises(ReplacedError) as caught:
            process.exec_program(["sh", "-c", "a b"], {"CHANGED": "y"})
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, before)
    program, argv, env = caught.value.args
    assert (program, argv) == (process.which("sh"), ["sh", "-c", "a b"])
    assert env == {**os.environ, "CHANGED": "y"}
    with pytest.raises(ToolError, match="no-such-program-here: not found"):
        process.exec_program(["no-such-program-here", "sh"], {})
    monkeypatch.setattr(os, "execve", Mock(side_effect=OSError(errno.ENOEXEC, "Exec format error")))
    with pytest.raises(CommandError, match="cannot be executed: Exec format error") as refused:
        process.exec_program(["sh"], {})
    assert refused.value.run_code == 126
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_this_program_is_restarted_with_options_for_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "execv", replaced)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "envbuilder", "detect"])
    with pytest.raises(ReplacedError) as caught:
        process.start_again("-X", "utf8")
    again = [sys.executable, "-X", "utf8", "-m", "envbuilder", "detect"]
    assert caught.value.args == (sys.executable, again)


def test_grandchildren_go_with_their_parent(tmp_path: Path) -> None:
    note = tmp_path / "alive"
    grandchild = (
        "import signal, time\n"
        "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
        f"while True:\n open({str(note)!r}, 'a').write('x'); time.sleep(.05)"
    )
    script = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}]); time.sleep(60)"
    )
    process.run(python(script), timeout=1.5)
    time.sleep(0.2)
    before = note.stat().st_size if note.exists() else 0
    time.sleep(0.3)
    assert (note.stat().st_size if note.exists() else 0) == before


def test_an_exception_in_the_caller_ends_the_child() -> None:
    started = time.monotonic()
    # A test run in the background inherits SIGINT as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        process.run(python("import time; time.sleep(60)"))
    assert time.monotonic() - started < 30


def test_odd_bytes_do_not_break_the_reader() -> None:
    done = process.run(python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe ok\\n')"))
    assert done.stdout.endswith(" ok\n")


def test_output_without_an_end_is_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEPT_BYTES", 1000)
    monkeypatch.setattr(process, "LONGEST_LINE", 300)
    lines: list[str] = []
    done = process.run(
        python("print('x' * 100_000); print('y\\n' * 10_000, end='')"), on_stdout=lines.append
    )
    assert len(done.stdout) <= 2 * 1000
    assert done.stdout.endswith("y\ny\n")
    assert max(map(len, lines)) == 300
    assert lines.count("y") == 10_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_signal_while_a_child_is_born_still_ends_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The handler would raise before anybody knows the child, and it would live on."""
    born: list[subprocess.Popen[str]] = []

    def disturbed(*args: Any, **options: Any) -> subprocess.Popen[str]:
        child = REAL_POPEN(*args, **options)
        born.append(child)
        os.kill(os.getpid(), number)
        return child

    monkeypatch.setattr(subprocess, "Popen", disturbed)
    before = signal.signal(number, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        process.run(python("import time; time.sleep(60)"))
    assert signal.signal(number, before) is signal.default_int_handler
    assert born[0].poll() is not None


def test_verbose_shows_no_program_text_and_no_variables() -> None:
    shown = [process._shown(a) for a in ("uv", "import a\nb", '{"variables": {"A": "secret"}}')]
    assert shown == ["uv", "…", "…"]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    changed = (*process.STOP_SIGNALS, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in changed}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


class Exit:
    """What would have ended this process: its exit code, and the children that were killed."""

    def __init__(self) -> None:
        self.code = -1
        self.killed: list[object] = []
        self.cleaned, self.happened, self.never = (threading.Event() for _ in range(3))

    def clean_up(self) -> None:
        """Hang, as a connection to a server that does not answer."""
        self.cleaned.set()
        self.never.wait(60)

    def end(self, code: int) -> None:
        self.code = code
        self.happened.set()


@pytest.fixture
def exit_of_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exit]:
    ending = Exit()
    monkeypatch.setattr(process.os, "_exit", ending.end)
    monkeypatch.setattr(process.atexit, "_run_exitfuncs", ending.clean_up)
    monkeypatch.setattr(process, "CLEANUP_SECONDS", 0.05)
    monkeypatch.setattr(process, "EXIT_SECONDS", 0.05)
    monkeypatch.setattr(process, "running", lambda: frozenset({"a child"}))
    monkeypatch.setattr(process, "kill", ending.killed.extend)
    yield ending
    ending.never.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_exception_with_its_number(number: signal.Signals) -> None:
    process.install_stop_handlers(owns_process=False)
    with pytest.raises(process.TerminatedError) as caught:
        os.kill(os.getpid(), number)
    assert caught.value.args == (number,)


def test_what_the_caller_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.install_stop_handlers(owns_process=False)
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, process.TerminatedError),
        (signal.SIGHUP, process.TerminatedError),
    ],
)
def test_a_process_of_ours_ends_even_if_its_cleanup_hangs(
    exit_of_ours: Exit,
    number: signal.Signals,
    error: type[BaseException],
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())
    process.install_stop_handlers(owns_process=True)
    watching = set(threading.enumerate()) - before
    assert [thread.daemon for thread in watching] == [True], "the process could not exit"
    with pytest.raises(error):
        os.kill(os.getpid(), number)
    for later in process.STOP_SIGNALS:
        os.kill(os.getpid(), later)  # changes nothing
    assert exit_of_ours.happened.wait(30)
    assert exit_of_ours.code == process.exit_code(number)
    assert exit_of_ours.killed == ["a child"]
    assert exit_of_ours.cleaned.is_set()
    for thread in set(threading.enumerate()) - before:
        assert thread.daemon
    assert capfd.readouterr().err == (
        "error: stopped before everything was cleaned up; the next run does\n"
    )


def test_a_signal_of_another_kind_does_not_end_a_process_of_ours(exit_of_ours: Exit) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    process.install_stop_handlers(owns_process=True)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert not exit_of_ours.happened.wait(0.3)
    assert seen == [signal.SIGUSR1]
    with pytest.raises(process.TerminatedError):
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_of_ours.happened.wait(30)


def test_cleaning_up_and_the_exit_fit_into_two_seconds() -> None:
    assert process.CLEANUP_SECONDS + process.EXIT_SECONDS < 2
    assert sum(process._HASTE) < process.CLEANUP_SECONDS


def test_a_lock_where_the_system_has_none_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "no locks")))
    with process.lock(tmp_path / "lock", "waiting"):
        assert (tmp_path / "lock.soft").exists()
    assert not (tmp_path / "lock.soft").exists()
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), process.lock(tmp_path / "lock", "waiting"):
        pass


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "another")
    with pytest.raises(OSError), process.lock(tmp_path / "lock", "waiting"):
        pass
    assert not (tmp_path / "another").exists()
