"""The payload's command line: ``verify``, ``parallel``, ``trial``, ``exec`` and ``count``.

verify and parallel exit with 0 if they pass, 5 if they fail, 2 for wrong usage or damaged data, and
130 if interrupted. exec exits with the command's own code, with 127 if the command is missing, and
with 126 if it cannot be executed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Optional, Sequence

from .machine import threads

if TYPE_CHECKING:
    import argparse

EXIT_USAGE = 2
EXIT_FAILED = 5
EXIT_INTERRUPTED = 130


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["exec"]:
        # Everything after exec belongs to the command. exec precedes every command of a
        # container, so the imports that only other commands need come below.
        return become(words[2:] if words[1:2] == ["--"] else words[1:])
    from . import arguments, report

    options = arguments.parser().parse_args(words)
    try:
        options.start.isolate()
        return _run(options)
    except report.CheckError as error:
        print(f"payload: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("payload: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.command == "count":
        from .machine import device

        print(device.count(options.device))
        return 0
    if options.command == "verify":
        return _verify(options)
    options.start.require()
    if options.command == "trial":
        from . import tuning

        return tuning.run(options)
    return _parallel(options)


def become(command: Sequence[str]) -> int:
    """Replace this process with ``command``. Return an exit code only if that fails.

    This is the image's entrypoint. The exit code is 127 if the command does not exist, 126 if it
    cannot be executed, and 2 if no command was given. ``OMP_NUM_THREADS`` is derived from the CPU
    affinity, quota and cores, unless it is already set. The variable must be set before the command
    starts, because OpenMP reads it only once, when OpenMP is loaded.
    """
    if not command:
        print("payload exec: no command given: payload exec -- CMD [ARG...]", file=sys.stderr)
        return EXIT_USAGE
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


def _parallel(options: argparse.Namespace) -> int:
    from . import events
    from .parallel import parallel, ranks

    if options.command == "parallel-rank":
        return ranks.main(options)
    out = events.Events(events.take_stdout(), options.run_id)
    report = parallel.measure(options, out)
    out.report(report)
    return EXIT_FAILED if report["status"] == "failed" else 0


def _verify(options: argparse.Namespace) -> int:
    from dataclasses import fields

    from . import events, verify
    from .options import Options
    from .parallel import shares
    from .training import dataset

    if options.index:
        # Before torch is imported: it counts devices only once. The one left visible is device 0.
        os.environ.update(shares.visible(options.device, [options.index], os.environ))
    out = events.Events(events.take_stdout(), options.run_id)
    out.phase("read data")
    try:
        data = dataset.load(options.data, options.dataset_name)
    except dataset.DataError as error:
        print(f"payload: {error}", file=sys.stderr)
        out.write("error", message=str(error))
        return EXIT_USAGE
    settings = Options(**{field.name: getattr(options, field.name) for field in fields(Options)})
    if options.quick:
        data = data.quick()
    elif options.images:
        data = data.first(options.images)
    report = verify.verify(settings, data, out)
    out.report(report)
    return EXIT_FAILED if report["status"] == "failed" else 0
