"""What nodes of a tests' fleet start as envbuilder: the real one, or what the node's name says."""

from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import fleets
from tests.support.quiet import wait_until_quiet

_QUIET_SECONDS = 60
"""How long a node whose speed is judged waits for other tests."""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def result_of(node: str, job: str) -> bytes:
    return fleets.result(node, job, run=option("--run"))


def hang_verifications() -> None:
    """Have whatever this process starts wait as for a driver: nothing but SIGKILL ends it."""
    folder = tempfile.mkdtemp()
    (Path(folder) / "sitecustomize.py").write_text(
        "import signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "time.sleep(600)\n"
    )
    os.environ["PYTHONPATH"] = f"{folder}:{os.environ['PYTHONPATH']}"


def throttle() -> None:
    """Have the processor idle for half of the time, until this process ends."""
    subprocess.Popen([sys.executable, "-m", "tests.support.throttle", str(os.getpid())])


def work_for_others() -> None:
    """Keep half of the cores busy until this process ends."""
    # Threads that wait actively would take minutes beside other work.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    endless = [sys.executable, "-c", "while True: pass"]
    for _ in range(max(1, len(os.sched_getaffinity(0)) // 2)):
        atexit.register(subprocess.Popen(endless).kill)


def verify(behaviour: str) -> None:
    """Verify really, on a node that is what its name says."""
    match behaviour:
        case "hangs":
            hang_verifications()
        case "alike1" | "alike2" | "alike3":
            wait_until_quiet(_QUIET_SECONDS)
        case "slow":
            wait_until_quiet(_QUIET_SECONDS)
            throttle()
        case "busy":
            work_for_others()
    runpy.run_module("envbuilder", run_name="__main__", alter_sys=True)


def main() -> None:
    node = option("--node")
    job = option("--job")
    path = Path(option("--folder")) / f"results/{node}.{job}.json"
    match node.partition("-")[2]:
        case "exits":
            sys.exit(3)
        case "silent":
            return
        case "liar":
            path.write_bytes(result_of("n-other", "1"))
        case "damaged":
            path.write_bytes(result_of(node, job)[:500])
        case "canned1":
            path.write_bytes(result_of(node, job))
        case "sleeps" | "dies" | "waits":
            while not Path("go-on").exists():  # in the folder of the run
                time.sleep(0.1)
            path.write_bytes(result_of(node, job))
        case behaviour:
            verify(behaviour)


if __name__ == "__main__":
    main()
