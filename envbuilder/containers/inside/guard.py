"""Run a command while stdin stays open; runs as the first process of a container.

The first argument is a placeholder. If the command has it, the first line of stdin goes into a file
whose path replaces it. When this process ends, the container ends, with everything that the command
started. Without a placeholder the command gets this process's stdin and terminal, and its signals,
since the kernel does not deliver unhandled signals to a first process. Needs the standard library
only, and no file of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CHUNK = 1 << 16


def main(placeholder: str, *command: str) -> None:
    """Run the command; exit with its exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    words = list(command)
    if placeholder:
        if placeholder in words:
            path = Path(tempfile.mkdtemp(), "beginning")  # a folder of this user only
            path.write_bytes(sys.stdin.buffer.readline())
            words[words.index(placeholder)] = str(path)
        # A group of its own: an interrupt also reaches what a cell of a notebook has started.
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=watch, daemon=True).start()
    else:
        child = accompanied(words)
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)


def accompanied(words: "list[str]") -> "subprocess.Popen[bytes]":
    """Run a command in the foreground and pass this process's signals on to it."""
    child = subprocess.Popen(words)
    # A terminal sends these two to the command itself.
    of_terminal = {signal.SIGINT, signal.SIGQUIT} if os.isatty(0) else set()

    def forward(number: int, frame: object) -> None:
        if number not in of_terminal:
            child.send_signal(number)

    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT"):
        signal.signal(getattr(signal, name), forward)
    return child


def watch() -> None:
    """End this process when the other end of stdin is closed."""
    while os.read(0, CHUNK):
        pass
    os._exit(0)


main(*sys.argv[1:])
