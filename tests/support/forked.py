"""Runs the command line as forks of a process that has imported it: imports are most of a start.

One runs at a time, with streams, variables and a folder of its own. But all share a seed for
hashes, and find every module imported: tests of packaging, streams, signals, bundles and isolation
start Python anew.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import NoReturn

READ_AT_START = ("LANG", "LC_", "PYTHON")
"""Beginnings of variables that Python reads only when it starts."""
LIBRARIES = (
    *("concurrent.futures.thread", "cyclonedx.output.json", "docker", "jinja2", "packageurl"),
    *("platformdirs.unix", "requests", "rich.console", "rich.table", "uv"),
)
"""What commands import when they need it; none starts a thread."""


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-P", __file__], stdin=theirs)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def run(
    arguments: Sequence[str], variables: dict[str, str], folder: Path, given: str
) -> subprocess.CompletedProcess[str]:
    """Run `envbuilder ARGUMENTS` in a folder to its end, with these variables and this input."""
    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(4)]
        request, stdin, stdout, stderr = streams
        json.dump((arguments, variables, str(folder)), request)
        stdin.write(given)
        for stream in streams:
            stream.seek(0)
        socket.send_fds(_server(), [b"."], [stream.fileno() for stream in streams])
        code = int(_server().recv(16))
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def _serve() -> None:
    from envbuilder.cli import COMMANDS, RELATIVES

    commands = (f"envbuilder.commands.{name}" for name in COMMANDS.keys() - RELATIVES)
    for name in (*commands, *LIBRARIES):
        import_module(name)
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    while True:
        _, given, _, _ = socket.recv_fds(requests, 1, 4)
        if not given:
            return
        child = os.fork()
        if child == 0:
            requests.close()
            _become(given)
        for number in given:
            os.close(number)
        _, status = os.waitpid(child, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(given: list[int]) -> NoReturn:
    from envbuilder.__main__ import main

    with os.fdopen(given[0]) as request:
        arguments, variables, folder = json.load(request)
    for number, source in enumerate(given[1:]):
        os.dup2(source, number)
        os.close(source)
    os.chdir(folder)
    words = ["-m", "envbuilder", *arguments]
    if any(os.environ.get(n) != v for n, v in variables.items() if n.startswith(READ_AT_START)):
        os.execve(sys.executable, [sys.executable, *words], variables)
    os.environ.clear()
    os.environ.update(variables)
    sys.path.insert(0, folder)
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = words
    main()


if __name__ == "__main__":
    _serve()
