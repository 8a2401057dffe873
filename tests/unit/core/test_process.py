"""The doorway to programs, with real small programs (the one unit test that runs any)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import process
from envbuilder.core.errors import ToolError

if TYPE_CHECKING:
    from pathlib import Path

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
        python("import sys; print('a'); print('b', file=sys.stderr); print('c', end='')"),
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\nc", "b\n")
    assert (out, err) == (["a", "c"], ["b"])


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
        [*python("import os, sys; print(os.environ['X'], sys.argv[1])"), "; touch made"],
        env={"X": "$(id)"},
        cwd=tmp_path,
    )
    assert done.stdout == "$(id) ; touch made\n"
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_does_not_end_is_stopped() -> None:
    done = process.run(python("import time; time.sleep(60)"), timeout=0.5)
    assert done.timed_out
    assert done.returncode != 0
    assert done.seconds < 30


def test_grandchildren_go_with_their_parent(tmp_path: Path) -> None:
    note = tmp_path / "alive"
    grandchild = f"import time\nwhile True:\n open({str(note)!r}, 'a').write('x'); time.sleep(.05)"
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
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            process.run(python("import time; time.sleep(60)"))
    finally:
        signal.signal(signal.SIGINT, before)
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


def test_commands_are_shown_as_one_would_type_them() -> None:
    assert process.quoted(["a b", "c"]) == "'a b' c"


def test_a_signal_while_a_child_is_born_still_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The handler would raise before anybody knows the child, and it would live on."""
    born: list[subprocess.Popen[str]] = []

    def disturbed(*args: Any, **options: Any) -> subprocess.Popen[str]:
        child = REAL_POPEN(*args, **options)
        born.append(child)
        os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr(subprocess, "Popen", disturbed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.run(python("import time; time.sleep(60)"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert born[0].poll() is not None


def test_verbose_shows_no_program_text_and_no_variables() -> None:
    shown = [process._shown(a) for a in ("uv", "import a\nb", '{"variables": {"A": "secret"}}')]
    assert shown == ["uv", "…", "…"]
