"""Let a process, and all that it starts, run for half of the time: `python throttle.py PID`.

So does the kernel with a processor that is too hot or may draw less power (intel_powerclamp): it
idles for a part of each period, whatever there is to do. Nobody else works in that time, and nobody
waits for a CPU. It is stopped and continued as long as it is the parent of this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from tests.support.slurm_processes import descendants

_HALF_PERIOD_SECONDS = 0.05


def throttle(pid: int) -> None:
    """Stop and continue a process and its descendants, without this process, until it ends."""
    slowed: set[int] = set()
    try:
        while os.getppid() == pid:
            _send(slowed, signal.SIGSTOP)
            resumes = time.monotonic() + _HALF_PERIOD_SECONDS
            # Only what gets a CPU once more stops: to look around at once would keep it waiting.
            time.sleep(_HALF_PERIOD_SECONDS / 4)
            # Those that are stopped start no others meanwhile.
            present = ({pid} | descendants([pid])) - {os.getpid()}
            _send(present - slowed, signal.SIGSTOP)
            slowed = present
            time.sleep(max(0.0, resumes - time.monotonic()))
            _send(slowed, signal.SIGCONT)
            time.sleep(_HALF_PERIOD_SECONDS)
    finally:
        _send(slowed, signal.SIGCONT)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        # It ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    throttle(int(sys.argv[1]))
