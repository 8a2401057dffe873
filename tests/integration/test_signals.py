"""The whole command ends soon after a signal, whatever it is doing, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ran
from tests.support.faulty_server import FaultyServer

STATE_SECONDS = 60
"""How long each state would last without a signal, at least."""
GENEROUS_SECONDS = 10
"""Two seconds are promised; a machine that runs other tests takes longer."""

PROGRAM = """\
import hashlib, os, signal, sys, tempfile, threading
from pathlib import Path
from envbuilder import cli
from envbuilder.core import http, process
from envbuilder.core.files import file_sha256

url, folder = sys.argv[1], Path(sys.argv[2])

def up():
    print("up", flush=True)

def fetch(number):
    session = http.open_session(direct=True)
    http.download(session, url, folder / str(number), lambda n: None)

def requesting():
    threading.Timer(0.5, up).start()
    fetch(0)

def in_a_pool():
    session = http.open_session(direct=True)
    threading.Timer(0.5, up).start()
    with process.pool(6, session.stop) as pool:
        jobs = [
            pool.submit(http.download, session, url, folder / str(n), lambda n: None)
            for n in range(20)
        ]
        jobs[0].result()

def uninterruptible():
    # As a name server that does not answer: C code that sees no signal.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

def in_a_name_server():
    up()
    uninterruptible()

def in_name_servers():
    with process.pool(2) as pool:
        jobs = [pool.submit(uninterruptible) for _ in range(2)]
        up()
        jobs[0].result()

def hashing():
    big = folder / "big"
    big.touch()
    os.truncate(big, 1 << 40)
    up()
    file_sha256(big)

def in_a_child():
    stubborn = (
        "import signal, time, pathlib\\n"
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\\n"
        "print('up', flush=True)\\n"
        "while True: pathlib.Path('alive').write_text(str(time.time())); time.sleep(0.05)"
    )
    process.run([sys.executable, "-c", stubborn], cwd=folder, on_stdout=lambda line: up())

def compressing():
    import zstandard
    big = bytes(1 << 28)
    up()
    while True:
        zstandard.ZstdCompressor(level=1).compress(big)

def state():
    with tempfile.TemporaryDirectory(prefix="envbuilder-") as scratch:
        Path(scratch, "half-made").touch()
        globals()[sys.argv[3]]()

# Where tests run in the background, signals may be ignored.
for number in process.STOP_SIGNALS:
    signal.signal(number, signal.SIG_DFL)
cli.cli.main = lambda **_: state()
cli.main()
"""
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
STATES = {
    "requesting": ("silent", "drips in the head", "drips chunks", "silent in the body"),
    "in_a_pool": ("silent", "drips in the body", "unavailable"),
    "in_a_name_server": ("",),
    "in_name_servers": ("",),
    "hashing": ("",),
    "compressing": ("",),
    "in_a_child": ("",),
}


def start(tmp_path: Path, url: str, state: str) -> subprocess.Popen[str]:
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{url}/file", str(tmp_path), state],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(tmp_path: Path, state: str, fault: str, number: signal.Signals) -> None:
    with FaultyServer(bytes(100_000)) as server:
        server.fault = fault
        with start(tmp_path, server.url, state) as running:
            assert running.stdout.readline() == "up\n", running.stderr.read()
            time.sleep(0.2)
            sent = time.monotonic()
            running.send_signal(number)
            try:
                _, stderr = running.communicate(timeout=STATE_SECONDS)
            finally:
                running.kill()
            seconds = time.monotonic() - sent
    print(f"{state} {fault}: {number.name} {seconds:.2f} s")
    assert running.returncode == SIGNALS[number], stderr
    assert "Traceback" not in stderr
    assert "no partial results are left" in stderr or "before everything was cleaned up" in stderr
    assert list((tmp_path / "tmp").iterdir()) == []
    assert seconds < GENEROUS_SECONDS
    if state == "in_a_child":
        before = (tmp_path / "alive").read_text()
        time.sleep(0.3)
        assert (tmp_path / "alive").read_text() == before


PAIRS = [(state, fault) for state, faults in STATES.items() for fault in faults]
FIRST = {(state, faults[0]) for state, faults in STATES.items()}


@pytest.mark.parametrize(
    ("state", "fault", "number"),
    [
        pytest.param(*pair, number, marks=[] if pair in FIRST else pytest.mark.slow)
        for pair, number in zip(PAIRS, itertools.cycle(SIGNALS), strict=False)
    ],
)
def test_every_state_ends_soon(
    state: str, fault: str, number: signal.Signals, tmp_path: Path
) -> None:
    check(tmp_path, state, fault, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("state", "fault"), PAIRS)
def test_every_state_ends_soon_after_every_signal(
    state: str, fault: str, number: signal.Signals, tmp_path: Path
) -> None:
    check(tmp_path, state, fault, number)


def test_a_second_signal_does_not_cut_the_cleaning_up_short(tmp_path: Path) -> None:
    with FaultyServer(b"") as server, start(tmp_path, server.url, "in_a_child") as running:
        running.stdout.readline()
        for _ in range(20):
            running.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, stderr = running.communicate(timeout=STATE_SECONDS)
    assert running.returncode == 130, stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_nohup_is_respected() -> None:
    program = """\
import os, signal
from envbuilder import cli

def main(**_):
    os.kill(os.getpid(), signal.SIGHUP)
    print("lives")

signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.cli.main = main
cli.main()
"""
    done = ran([sys.executable, "-c", program])
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_a_command_that_waits_for_an_index(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with FaultyServer(b"") as server:
        server.fault = "drips in the head"
        settings = {
            "TMPDIR": str(tmp_path / "tmp"),
            "UV_DEFAULT_INDEX": server.url,
            "ENVBUILDER_INDEX_PYTORCH_CPU": server.url,
            "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache"),
            "ENVBUILDER_CONFIG_DIR": str(tmp_path / "config"),
            "NO_PROXY": "127.0.0.1",
        }
        with subprocess.Popen(
            [sys.executable, "-m", "envbuilder", "lock", "--profile", "cpu"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            end = time.monotonic() + STATE_SECONDS
            while not server.requests:
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < end
                time.sleep(0.02)
            sent = time.monotonic()
            running.send_signal(signal.SIGTERM)
            _, stderr = running.communicate(timeout=STATE_SECONDS)
    assert running.returncode == 143, stderr
    assert time.monotonic() - sent < GENEROUS_SECONDS
    assert list((tmp_path / "tmp").iterdir()) == []


LOCKING = """\
import sys
from pathlib import Path
from envbuilder.core import process

with process.lock(Path("lock"), "waiting"):
    process.run(
        [sys.executable, "-c", sys.argv[1]], on_stdout=lambda line: print(line, flush=True)
    )
"""


def test_a_lock_outlasts_a_killed_process_until_what_it_started_has_ended(tmp_path: Path) -> None:
    def starting(program: str) -> list[str]:
        return [sys.executable, "-c", LOCKING, program]

    writer = "import pathlib, time\nprint('up')\ntime.sleep(1.5)\npathlib.Path('written').touch()"
    with subprocess.Popen(
        starting(f"import sys\nsys.stdout.reconfigure(line_buffering=True)\n{writer}"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout.readline() == "up\n"
        killed.kill()
    assert not (tmp_path / "written").exists()
    reader = "import pathlib; print(pathlib.Path('written').exists())"
    done = ran(starting(reader), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "waiting" in done.stderr


STARTING = """
import os, random, time
from envbuilder.core import process

def work():
    while True:
        process.in_batches(list, range(4), 1)

for _ in range(300):
    try:
        with process.beside(work):
            time.sleep(random.random() / 1000)
            raise ValueError
    except ValueError:
        pass
os._exit(0)
"""


def test_an_interruption_never_ends_a_thread_that_just_starts() -> None:
    """The thread that starts it would wait for it forever, and hold the lock of all pools."""
    subprocess.run([sys.executable, "-c", STARTING], check=True, timeout=120)
