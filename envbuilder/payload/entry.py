"""The image's entrypoint: set the thread count for this host's limits, then exec the command."""

from __future__ import annotations

import os
import signal
import sys
from typing import Sequence

from .machine import threads


def run_command(command: Sequence[str]) -> int:
    """Replace this process with ``command``; return only if that is impossible.

    Returns 127 if the command does not exist, 126 if it cannot be executed, 2 if none was given.
    ``OMP_NUM_THREADS`` is derived from affinity, quota and cores, unless it is already set. It must
    be set before the command starts, because OpenMP reads it once, when it is loaded.
    """
    if not command:
        print("payload exec: no command given: payload exec -- CMD [ARG...]", file=sys.stderr)
        return 2
    if not os.environ.get("OMP_NUM_THREADS"):
        os.environ["OMP_NUM_THREADS"] = str(threads.decide(threads.fetch()))
    # Python ignores these two signals, and an ignored signal stays ignored across exec: without
    # this, a pipeline inside the container would not end when its reader does.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - exec of the command is the purpose
    except FileNotFoundError:
        print(f"payload exec: {command[0]}: command not found", file=sys.stderr)
        return 127
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"payload exec: {command[0]}: cannot be executed: {reason}", file=sys.stderr)
        return 126
