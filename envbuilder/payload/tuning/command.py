"""The command ``trial``: its options, its process, its one line of JSON.

Variables such as OMP_NUM_THREADS and LD_PRELOAD are read when a process starts. With ``--set`` the
process therefore execs itself with the variables in place, in whatever environment it runs: its
caller does not have to know how to pass them on.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence

from .. import SCHEMA, events, origins, start
from ..machine.accelerators import ACCELERATORS
from ..numerics import compilers
from ..training import dataset, idx, model
from . import survey, trial

EXIT_USAGE, EXIT_FAILED = 2, 5
LIMIT_SECONDS = 900
"""A trial takes seconds, with a compiler a minute. Workers can deadlock and wait forever."""

START_METHODS = ("fork", "forkserver", "spawn")


def add_trial(commands: Any) -> None:
    """Add the command to the payload's commands."""
    command = commands.add_parser("trial", help="time a setting", allow_abbrev=False)
    add = command.add_argument
    add("--survey", action="store_true", help="report what could be tried, then exit")
    add("--device", default="cpu", choices=ACCELERATORS)
    add("--data", type=Path, help="folder with the four IDX files, raw or .gz")
    add("--steps", type=_positive, default=trial.STEPS, help="steps that are timed, at batch 64")
    add("--warm-up", type=_positive, default=trial.WARM_UP, help="steps before them")
    add("--seed", type=int, default=1)
    add("--batch", type=_positive, default=trial.Setting.batch)
    add("--layout", choices=("contiguous", "channels_last"))
    add("--order", choices=("published", "pool-first"))
    add("--dropout", choices=("torch", "bytes"), help="how dropout masks are drawn")
    add("--bfloat16", action="store_true", help="autocast to bfloat16")
    add("--flush-denormal", action="store_true")
    add("--compile", dest="compile_backend", choices=compilers.BACKENDS)
    add("--check-compile", action="store_true", help="check the backend's gradients instead")
    add("--workers", type=_count, help="DataLoader workers; without it, data is held on the device")
    add("--start-method", choices=START_METHODS)
    add("--extension", choices=("ipex", "zentorch"))
    add("--set", dest="variables", action="append", default=[], metavar="NAME=VALUE")
    add("--limit", type=_positive, default=LIMIT_SECONDS, help="time limit in seconds")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code: 0, 2 for damaged data or usage, 5 for a failure."""
    if options.variables:
        _become(variables(options.variables), options.start)
    out = events.Events(events.take_stdout())
    if options.survey:
        out.report({"schema": SCHEMA, **survey.survey()})
        return 0
    if options.data is None:
        return _refuse(out, "trial needs --data, or --survey")
    if options.check_compile and not options.compile_backend:
        return _refuse(out, "--check-compile needs --compile")
    faulthandler.dump_traceback_later(options.limit, exit=True)
    try:
        data = dataset.load(options.data)
        work = trial.check_compile if options.check_compile else trial.run
        with compilers.fresh_cache() as cache:
            result = work(setting(options), data)
            origins.require(options.start, cache)
        out.report({"schema": SCHEMA, **result})
    except idx.DataError as error:
        return _refuse(out, str(error))
    except Exception as error:
        out.error(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    finally:
        faulthandler.cancel_dump_traceback_later()
    return 0


def setting(options: argparse.Namespace) -> trial.Setting:
    """Return the setting given by the options; the form defaults to the accelerator's fastest."""
    form = model.fastest(options.device)
    if options.layout:
        form = replace(form, channels_last=options.layout == "channels_last")
    if options.order:
        form = replace(form, pool_first=options.order == "pool-first")
    if options.dropout or options.compile_backend:
        form = replace(form, byte_masks=options.dropout == "bytes")
    return trial.Setting(
        device=options.device,
        form=form,
        steps=options.steps,
        warm_up=options.warm_up,
        seed=options.seed,
        batch=options.batch,
        bfloat16=options.bfloat16,
        flush_denormal=options.flush_denormal,
        compile_backend=options.compile_backend,
        workers=options.workers,
        start_method=options.start_method,
        ipex=options.extension == "ipex",
    )


def variables(pairs: Sequence[str]) -> Dict[str, str]:
    """Parse ``NAME=VALUE`` pairs; an empty value means that the variable is to be removed."""
    result = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        result[name] = value
    return result


def started(original: Sequence[str], shown: Sequence[str]) -> List[str]:
    """Return the command that starts this program again, without its own arguments.

    ``original`` is ``sys.orig_argv``, empty before Python 3.10; ``shown`` is ``sys.argv``.
    """
    if not original:
        return [sys.executable, shown[0]]
    return [sys.executable, *original[1 : len(original) - len(shown) + 1]]


def without_set(arguments: Sequence[str]) -> List[str]:
    """Return the arguments without ``--set``, ``--promise`` and their values, in either form."""
    result: List[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in ("--set", "--promise"):
            next(remaining, None)
        elif not argument.startswith(("--set=", "--promise=")):
            result.append(argument)
    return result


def _become(changes: Dict[str, str], begun: start.Start) -> None:
    # Variables set here are promised just like those that the core set.
    promised = replace(begun, variables={**begun.variables, **changes})
    arguments = [] if begun.as_found else ["--promise", promised.text()]
    arguments += without_set(sys.argv[1:])
    command = [*started(getattr(sys, "orig_argv", ()), sys.argv), *arguments]
    environ = {**os.environ, **changes}
    environment = {name: value for name, value in environ.items() if value or name not in changes}
    os.execve(command[0], command, environment)  # noqa: S606 - the same program again


def _refuse(out: events.Events, message: str) -> int:
    print(f"payload: {message}", file=sys.stderr)
    out.error(message)
    return EXIT_USAGE


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number
