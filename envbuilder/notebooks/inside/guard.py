"""Run a kernel while stdin stays open; runs in the kernel's container, as its first process.

The first line of stdin is the kernel's connection file. When this process ends, the container does,
with all that the kernel started. Needs the standard library only, and no file of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LONGEST = 1 << 16


def main() -> None:
    """Run the kernel, and end with its exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    line = sys.stdin.buffer.readline(LONGEST)
    path = Path(tempfile.mkdtemp(), "connection.json")  # a folder of this user only
    path.write_bytes(line)
    kernel = subprocess.Popen(
        [sys.executable, "-m", "ipykernel_launcher", "-f", str(path)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "JPY_PARENT_PID": str(os.getpid())},  # else it prints advice for a shell
        start_new_session=True,  # an interrupt also reaches what a cell has started
    )
    threading.Thread(target=watch, daemon=True).start()
    code = kernel.wait()
    os._exit(code if code >= 0 else 128 - code)


def watch() -> None:
    """End this process when nobody holds the other end of stdin."""
    while os.read(0, LONGEST):
        pass
    os._exit(0)


main()
