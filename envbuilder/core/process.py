"""Run other programs and threads. No other module starts processes.

Programs are located first, so that a missing program leads to a clear error before anything starts.
Output is streamed line by line. On Ctrl-C, a timeout or any other error, the child and its process
group are interrupted, then killed. On Ctrl-C and other signals, this takes less than a second.

This process itself ends within two seconds of SIGINT, SIGTERM or SIGHUP. The first signal raises an
exception in the main thread, so that everything is cleaned up as after an error. Later signals have
no effect. If the clean-up takes too long, or if the main thread is in a call that cannot be
interrupted (such as waiting for a name server that does not answer), a second thread ends the
process.

uv is started in a private folder, and receives only the documented settings of its caller.
Otherwise, uv would read settings from its working folder and the folders above it, for example from
a project that somebody cloned, or from files that another user put into /tmp. Such settings
determine which interpreter uv runs, which files it overwrites and which servers receive the
caller's credentials.

This module is long because it contains all code that starts and ends programs and threads.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from envbuilder.core import console
from envbuilder.core.errors import NOT_EXECUTABLE, NOT_FOUND, CommandError, ToolError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path
    from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end this program. The program stops its children first."""
_PATIENCE = (2.0, 10.0)
"""Seconds that a child may take to end after SIGINT, and then after SIGTERM, before it is
killed."""
_HASTE = (0.5, 0.3)
"""The limits that replace `_PATIENCE`, in seconds, when this process is itself ending."""
_HELD_SECONDS = 0.5
"""Interval in seconds at which `run_while_needed` checks that its program is still needed."""
_UNHELD_SECONDS = 1.0
"""Seconds that the program of `run_while_needed` may take to end once its stdin is closed."""
_READ_SECONDS = 10.0
"""Seconds allowed for reading the output that a child left in its pipes when it ended."""

KEPT_BYTES = 16 << 20
LONGEST_LINE = 4 << 20
"""Limits on a program's output in bytes, since a program may write without end.

At least the last `KEPT_BYTES` of the output are kept, and at most twice as many. A callback
receives a line longer than `LONGEST_LINE` in pieces. The lines of a payload have at most 0.3 MB.
"""
_running: dict[subprocess.Popen[str], int] = {}
"""Running child → ident of the thread that started it."""
_inherited: set[int] = set()
"""File descriptors of the locks that child programs inherit."""
_FAMILIES = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
UV_SETTINGS = frozenset(
    {
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
        "UV_INDEX_STRATEGY",
        "UV_OFFLINE",
        "UV_CONFIG_FILE",
        "UV_NO_CONFIG",
        "UV_HTTP_TIMEOUT",
        "UV_HTTP_RETRIES",
        "UV_CONCURRENT_DOWNLOADS",
        "UV_INSECURE_HOST",
        "UV_NATIVE_TLS",
        "UV_SYSTEM_CERTS",
        "UV_KEYRING_PROVIDER",
        "UV_CREDENTIALS_DIR",
        "PYTHON_KEYRING_BACKEND",
        "UV_PYTHON_INSTALL_DIR",
    }
)
"""Environment variables that are passed on to uv.

They concern its indexes, its network settings, its credentials and the Pythons that it installs.
"""
_LOGIN = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
_NAMED = re.compile(r"[A-Za-z0-9_.-]+=")
_SEPARATORS = {
    **dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"), " "),
    **dict.fromkeys(("UV_CONFIG_FILE", "UV_CREDENTIALS_DIR", "UV_PYTHON_INSTALL_DIR"), "\n"),
    **dict.fromkeys(("SSL_CERT_FILE", "SSL_CLIENT_CERT", "NETRC"), "\n"),
    "SSL_CERT_DIR": os.pathsep,
    "UV_FIND_LINKS": ",",
}
"""Variables that may hold relative paths → the separator between two paths in the variable."""
POOL_SECONDS = 0.5
"""Seconds that the running jobs of a pool may continue after a failure."""
_T = TypeVar("_T")
_U = TypeVar("_U")


class Completed(NamedTuple):
    """A program that has ended: its exit status, output and run time.

    `returncode` is the negative signal number if a signal ended the program.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def status(self) -> str:
        """How the program ended, for messages about a failure."""
        return f"exit {self.returncode}" if self.returncode > 0 else f"signal {-self.returncode}"

    @property
    def last_words(self) -> str:
        """The last 12 lines of stderr, or of stdout if stderr is empty, for use in messages."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-12:])


class Tail:
    """The end of a program's output, which may be too long to keep as a whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Append data. If the output becomes too long, drop its beginning."""
        self._bytes += data
        if len(self._bytes) > 2 * KEPT_BYTES:
            del self._bytes[:-KEPT_BYTES]

    @property
    def text(self) -> str:
        """The whole output or, if it was too long, its end."""
        return self._bytes.decode(errors="replace")


def which(program: str) -> str | None:
    """Return the full path of an executable, or None if it is not found."""
    import shutil

    return shutil.which(program)


def _required(name: str) -> str:
    program = which(name)
    if program is None:
        raise ToolError(f"{name}: not found or not executable")
    return program


def quoted(argv: Iterable[str]) -> str:
    """Return a command as text, quoted for a shell."""
    import shlex

    return shlex.join(argv)


def _shown(argument: str) -> str:
    """Return an argument for messages, or "…" if it is a script or JSON.

    Scripts and JSON may contain the values of variables.
    """
    if "\n" in argument or argument.startswith("{"):
        return "…"
    return argument


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    base: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    timeout: float | None = None,
    stdin: str = "",
    holds_stdin: bool = False,
    on_stdout: Callable[[str], None] | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> Completed:
    """Run a program to completion and return its output and exit status.

    `env` is added to `base`, which by default is this process's environment. `timeout` is in
    seconds. `stdin` is the program's input, at most a line or two. With `holds_stdin`, the program
    receives no input, but its stdin stays open until the program or this process ends. The
    callbacks receive each line of output as it arrives.

    A nonzero exit status is returned and does not raise an error. Raise `ToolError` if the program
    is missing. If the output is very long, only its end is returned. If a callback raises an
    exception, the program is stopped and `run` raises the same exception.
    """
    import subprocess

    program = _required(argv[0])
    console.detail(quoted(map(_shown, argv)))
    started = time.monotonic()
    out = Tail()
    err = Tail()
    readers: list[threading.Thread] = []
    failures: list[Exception] = []
    timed_out = False
    reading = 0.1
    held = _HeldSignals()
    try:
        child = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.PIPE if stdin or holds_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**base, **(env or {})},
            cwd=cwd,
            encoding="utf-8",
            errors="replace",
            # Own session: Ctrl-C reaches only this process, which decides how the child ends.
            start_new_session=True,
            pass_fds=tuple(_inherited),
        )
        _running[child] = threading.get_ident()
    except BaseException:
        held.release()
        raise
    try:
        for stream, tail, callback in (
            (child.stdout, out, on_stdout),
            (child.stderr, err, on_stderr),
        ):
            reader = threading.Thread(
                target=_drain, args=(child, stream, tail, callback, failures), daemon=True
            )
            reader.start()
            readers.append(reader)
        held.release()
        if child.stdin and not holds_stdin:
            with suppress(BrokenPipeError), child.stdin as pipe:
                pipe.write(stdin)
        try:
            _wait(child, timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            _stop(child, _PATIENCE)
        reading = _READ_SECONDS
    except BaseException:
        _stop(child, _HASTE)
        raise
    finally:
        _running.pop(child, None)
        for reader in readers:
            reader.join(reading)
        if child.stdin:
            child.stdin.close()
    if failures:
        raise failures[0]
    return Completed(
        argv=tuple(argv),
        returncode=child.returncode,
        stdout=out.text,
        stderr=err.text,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
    )


def _wait(child: subprocess.Popen[str], timeout: float | None) -> None:
    """Wait for a child as `child.wait` does, but without polling.

    With a timeout, `child.wait` polls every 50 ms.
    """
    if timeout is not None and sys.platform == "linux":
        import select

        # A sandbox may forbid it, and a Python built on an old Linux lack it.
        with (
            suppress(AttributeError, OSError),
            os.fdopen(os.pidfd_open(child.pid), "rb", 0) as ended,
        ):
            poll = select.poll()
            poll.register(ended)
            poll.poll(timeout * 1000)
            timeout = 0.0
    child.wait(timeout)


def run_while_needed(argv: Sequence[str], beginning: str, needed: Callable[[], bool]) -> int:
    """Run a program for as long as it is needed, and return its exit status.

    The program shares this process's output. Its stdin receives `beginning`, and stays open until
    `needed` returns False or this process ends for any reason. Therefore, the program notices the
    end of this process even if all processes between the two have already ended.
    """
    import subprocess

    program = _required(argv[0])
    held = _HeldSignals()
    try:
        child = subprocess.Popen(
            [program, *argv[1:]], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        _running[child] = threading.get_ident()
    finally:
        held.release()
    assert child.stdin is not None
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(beginning)
            child.stdin.flush()
        while needed():
            with suppress(subprocess.TimeoutExpired):
                return child.wait(_HELD_SECONDS)
    finally:
        with suppress(BrokenPipeError):
            child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_UNHELD_SECONDS)
        _stop(child, _HASTE)
        _running.pop(child, None)
    return child.returncode


class _HeldSignals:
    """Guard that holds back stop signals while a child starts, so that no running child is missed.

    The handlers of these signals, and of a timer, may raise an exception at any point. If a handler
    raised an exception between the start of a child and the assignment of its handle, the child
    would continue to write into folders that are being removed.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (*STOP_SIGNALS, signal.SIGALRM):
                self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self._came.append(number)

    def release(self) -> None:
        """Restore the signal handlers, and deliver the signals that were held back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        for number in self._came:
            os.kill(os.getpid(), number)


def _drain(
    child: subprocess.Popen[str],
    stream: Any,
    tail: Tail,
    callback: Callable[[str], None] | None,
    failures: list[Exception],
) -> None:
    """Read a child's output stream to its end.

    If the callback fails, stop the child and append the exception to `failures`.
    """
    with stream:
        while line := stream.readline(LONGEST_LINE):
            tail.add(line.encode())
            try:
                if callback:
                    callback(line.rstrip("\n"))
            except Exception as error:  # noqa: BLE001 (`run` raises it in the caller's thread)
                failures.append(error)
                callback = None
                _stop(child, _PATIENCE)


def _stop(child: subprocess.Popen[str], patience: tuple[float, float]) -> None:
    """Stop the child's process group: interrupt it, then terminate it, then kill it.

    `patience` contains the numbers of seconds to wait after SIGINT and after SIGTERM.
    """
    import subprocess

    for number, seconds in zip((signal.SIGINT, signal.SIGTERM), patience, strict=True):
        if child.poll() is not None:
            break
        _signal(child, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
    # Even if the child has exited: the processes it started may still be writing.
    _signal(child, signal.SIGKILL)
    child.wait()


def running(threads: Collection[int] | None = None) -> frozenset[subprocess.Popen[str]]:
    """Return the running children.

    If `threads` is given, return only the children that the threads with these idents started.
    """
    started = _running.copy()
    return frozenset(c for c, thread in started.items() if threads is None or thread in threads)


def kill(children: Collection[subprocess.Popen[str]]) -> None:
    """Kill the given children that are still running. Do not wait for them to end."""
    for child in _running.keys() & children:
        _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def uv_path() -> str:
    """Return the path of the uv that is installed with envbuilder.

    This uv is only used for look-ups. Wheels are installed by the uv specified in the lock. Raise
    `ToolError` if uv is missing.
    """
    try:
        import uv

        return str(uv.find_uv_bin())
    # A package that fails to be imported may be met half imported by another thread.
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise ToolError(f"uv: not found: {error}", "Run: pip install uv") from error


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment variables without the settings that uv must not receive.

    Of the variables for uv, pip, Python and conda, only `UV_SETTINGS` and credentials are kept. All
    other variables are passed on, such as proxy settings or variables that an interpreter needs to
    start.
    """
    return _absolute(
        {
            name: value
            for name, value in environ.items()
            if not name.startswith(_FAMILIES) or name in UV_SETTINGS or _LOGIN.fullmatch(name)
            if name != "COLUMNS"  # what it says is read: not wrapped
        }
    )


def run_uv(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    runner: Callable[..., Completed] | None = None,
    **options: Any,
) -> Completed:
    """Run uv to completion as `run` does. `env` is added to the settings that uv may receive.

    uv runs in `folder`, which must be private. The default is a temporary folder. If the folder
    contains no uv.toml, an empty one is created, so that uv does not search the folders above. uv
    also puts its temporary files there, so they are removed with the folder even if uv is killed.
    `runner` is called instead of `run` if given.
    """
    with ExitStack() as stack:
        if folder is None:
            # `--help` imports this module.
            from pathlib import Path
            from tempfile import TemporaryDirectory

            folder = Path(stack.enter_context(TemporaryDirectory(prefix="envbuilder-uv-")))
        (folder / "uv.toml").touch()
        variables = {"TMPDIR": str(folder), **_absolute(env or {})}
        start = runner or run
        return start(argv, base=uv_environment(os.environ), env=variables, cwd=folder, **options)


def _absolute(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with relative paths made absolute.

    This is necessary because uv runs in another working folder.
    """
    return {
        name: separator.join(map(_located, value.split(separator)))
        if (separator := _SEPARATORS.get(name))
        else value
        for name, value in variables.items()
    }


def _located(location: str) -> str:
    """Make a path absolute, including one in the form NAME=PATH. Return a URL unchanged."""
    if not location or "://" in location:
        return location
    from pathlib import Path

    matched = _NAMED.match(location)
    name = matched[0] if matched else ""
    return f"{name}{Path(location.removeprefix(name)).absolute()}"


_STARTING = threading.Lock()
"""Lock held while a thread starts other threads.

Until a new thread runs, it has the ident of the thread that starts it. An exception that is raised
in the starting thread by ident could therefore end the new thread instead, and both would wait
forever.
"""


@contextmanager
def pool(
    workers: int | None = None,
    stop: Callable[[], None] = lambda: None,
    patience: float = POOL_SECONDS,
) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool. On any error, cancel the jobs that have not started and call `stop`.

    Running jobs then have `patience` seconds to clean up. A job that does not stop, for example
    because it is resolving a host name, is left running.
    """
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(workers)
    try:
        yield executor
        executor.shutdown()
    except BaseException:
        stop()
        executor.shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(patience)
        raise


def in_batches(
    function: Callable[[Sequence[_T]], _U],
    items: Sequence[_T],
    size: int,
) -> list[_U]:
    """Apply a function to batches of items, in one thread per CPU, and return the results in order.

    Use this only for functions that release the GIL. With other functions, the threads would wait
    for each other. The items are processed in batches because starting a job for each file would
    take as long as hashing the file.
    """
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    with pool(os.cpu_count()) as executor:
        with _STARTING:
            results = executor.map(function, batches)
        return [*results]


@contextmanager
def beside(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Run `work` in another thread and yield its future.

    If the caller fails, interrupt `work` and kill the programs that it is running.
    """
    threads: set[int] = set()

    def begin() -> _T:
        with working(threads):
            return work()

    def stop() -> None:
        interrupt(tuple(threads))
        kill(running(threads))

    with pool(1, stop) as executor:
        yield executor.submit(begin)


@contextmanager
def working(threads: set[int]) -> Iterator[None]:
    """Add this thread's ident to `threads` for the duration of the `with` block.

    `interrupt` can then find the thread. An idle thread in a pool must not be interrupted, because
    it would print a traceback.
    """
    threads.add(threading.get_ident())
    try:
        yield
    finally:
        threads.discard(threading.get_ident())


def interrupt(threads: Iterable[int]) -> None:
    """Raise `KeyboardInterrupt` in threads, as Ctrl-C does in the main thread.

    `threads` contains the idents of the threads. A thread that is waiting for something outside
    Python receives the exception when its wait ends.
    """
    import ctypes

    with _STARTING:
        for ident in threads:
            error = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error)


def require_runnable(path: Path) -> None:
    """Raise `CommandError` if a file is missing or cannot be executed."""
    if not path.exists():
        raise CommandError(f"{path}: no such file", run_code=NOT_FOUND)
    if path.is_dir() or not os.access(path, os.X_OK):
        raise CommandError(
            f"{path}: the file is not executable",
            f"Make it executable: chmod +x {quoted([str(path)])}",
            run_code=NOT_EXECUTABLE,
        )
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if head.isascii() and not head.startswith((b"#!", b"\x7fELF")):
        raise _not_executed(str(path), "it does not begin with #!")


_HEAD = 64


def _not_executed(program: str, reason: str) -> CommandError:
    hint = f"Also name the program that runs it, for example: python {program}"
    return CommandError(f"{program}: cannot be executed: {reason}", hint, run_code=NOT_EXECUTABLE)


@contextmanager
def lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold an exclusive lock on a file. If another process holds the lock, print `waiting`.

    Programs that `run` starts hold the lock as well. If this process is killed, the next process
    waits until those programs have stopped writing. This does not apply on NFS, or on file systems
    without such locks, where a lock file is used instead. Raise `OSError` if the file cannot be
    written.
    """
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            console.message(waiting)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.ENOSYS:  # of Lustre, for example
                raise
            from filelock import SoftFileLock

            with SoftFileLock(f"{path}.soft"):
                yield
            return
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # `clean` has removed it
    _inherited.add(descriptor)
    try:
        yield
    finally:
        _inherited.remove(descriptor)
        # Closing it would not do while a daemon that a program left behind has it open.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def when_ended(argv: Sequence[str]) -> int:
    """Start a shell that runs a program when this process ends, and return a file descriptor.

    The program runs regardless of how this process ends, unless a line is first written to the file
    descriptor. If this process replaces itself with another program, it has not ended.
    """
    reading, writing = os.pipe()
    os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", 'read -r _ || "$@"', "sh", *argv],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, reading, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    os.close(reading)
    os.set_inheritable(writing, True)
    return writing


def exec_program(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process with another program, which then receives this process's signals.

    The program's exit code becomes that of this process. Raise `ToolError` if the program is
    missing, and `CommandError` if it cannot be executed.
    """
    program = _required(argv[0])
    # Python ignores SIGPIPE, and ignored signals stay ignored across exec.
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(program, list(argv), {**os.environ, **env})  # noqa: S606 (no shell is meant)
    except OSError as error:
        signal.signal(signal.SIGPIPE, before)
        raise _not_executed(program, error.strerror or str(error)) from error


_FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to all programs that run in its foreground."""


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal, whether or not stdin is one."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def accompany(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program in the foreground, and return its exit code as a shell would.

    The program shares this process's input, output and terminal. It receives each signal once:
    signals from the terminal directly, and other signals through this process. Without a terminal,
    the program gets a process group of its own, which is killed if this process is killed. Signals
    that the caller ignores stay ignored, as with nohup.
    """
    import subprocess

    program = _required(argv[0])
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    by_terminal = _has_terminal()
    announced = None
    handlers = dict.fromkeys((*_FORWARDED, *_OF_TERMINAL), forward)
    if by_terminal:
        handlers |= dict.fromkeys(_OF_TERMINAL, _ignore)
    wakeup = signal.set_wakeup_fd(-1)  # else the guard would end this process
    previous = {number: signal.getsignal(number) for number in handlers}
    replaced = {n: before for n, before in previous.items() if before != signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, handlers[number])
    try:
        child = subprocess.Popen(
            [program, *argv[1:]],
            env={**os.environ, **env},
            # As if it replaced this process, which may pass on a lock that is to outlive it.
            close_fds=False,
            process_group=None if by_terminal else 0,
        )
        if not by_terminal:
            announced = when_ended(("kill", "-s", "KILL", "--", f"-{child.pid}"))
        for received in early:
            child.send_signal(received)
        status = None
        while status is None:  # a signal that comes just before a wait without end would wait, too
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(_HELD_SECONDS)
    except OSError as error:
        raise _not_executed(program, error.strerror or str(error)) from error
    finally:
        if announced is not None:
            os.write(announced, b"\n")
            os.close(announced)
        for number, before in replaced.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    return exit_code(-status) if status < 0 else status


def start_again(*options: str) -> NoReturn:
    """Restart this command with additional options for the Python interpreter."""
    # Not resolved as other programs are: this interpreter is already running.
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606


CLEANUP_SECONDS = 1.4
"""Seconds that the main thread may take to clean up."""
EXIT_SECONDS = 0.3
"""Seconds allowed after the clean-up for removing temporary folders and closing connections."""


class TerminatedError(BaseException):
    """Error raised if the process receives SIGTERM or SIGHUP. `args` contains the signal number."""


def exit_code(number: int) -> int:
    """Return the exit code that shells report for a process killed by signal `number`."""
    return 128 + number


def install_stop_handlers(*, owns_process: bool) -> None:
    """Install handlers for SIGTERM and SIGHUP, which raise `TerminatedError`.

    With `owns_process`, also handle SIGINT, and end the process if the clean-up after a signal
    takes too long. Signals that the caller ignores stay ignored, as with nohup.
    """
    handled = [n for n in STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    if not owns_process:
        for number in set(handled) - {signal.SIGINT}:
            signal.signal(number, _raise)
        return

    def handle(number: int, frame: FrameType | None) -> None:
        for signal_number in handled:
            signal.signal(signal_number, _ignore)
        _raise(number, frame)

    for number in handled:
        signal.signal(number, handle)
    # Written to by the interpreter itself, even while the main thread cannot run a handler.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_guard, args=(reading, frozenset(handled)), daemon=True).start()


def _ignore(number: int, _: FrameType | None) -> None:
    """Do nothing. SIG_IGN is not used instead, because child processes would inherit it."""


def _raise(number: int, _: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise TerminatedError(number)


def _guard(reading: int, handled: frozenset[int]) -> NoReturn:
    """Wait for a signal. Then end the process if it does not end by itself in time.

    `reading` is the file descriptor from which signal numbers are read. Signals that are not in
    `handled` are ignored.
    """
    numbers: list[int] = []
    while not numbers:
        numbers = [number for number in os.read(reading, 64) if number in handled]
    children = running()
    time.sleep(CLEANUP_SECONDS)
    kill(children)  # later ones clean up, such as one that removes a container
    exiting = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    exiting.start()
    exiting.join(EXIT_SECONDS)
    with suppress(OSError):
        os.write(2, b"error: stopped before everything was cleaned up; the next run does\n")
    os._exit(exit_code(numbers[0]))
