"""The command ``trial``: its process, its one line of JSON, and its survey of possible settings.

Variables such as OMP_NUM_THREADS and LD_PRELOAD are read when a process starts. With ``--set``, the
process therefore replaces itself (exec) with one that has the variables set. This works in any
environment, so the caller does not have to know how to pass on the variables.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import re
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence

from . import SCHEMA, events, origins, start, trial
from .machine import facts, threads
from .numerics import compilers
from .training import dataset, model

if TYPE_CHECKING:
    import argparse

EXIT_USAGE = 2
EXIT_FAILED = 5

ALLOCATORS = {
    "tcmalloc": ("libtcmalloc_minimal.so*", "libtcmalloc.so*"),
    "jemalloc": ("libjemalloc.so*",),
    "mimalloc": ("libmimalloc.so*",),
}
"""Allocators that torch's users preload, each with the file names of its library."""

SYSTEM_FOLDERS = ("/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib", "/opt/homebrew/lib")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    The exit code is 0 for success, 2 for damaged data or wrong usage, and 5 for a failure.
    """
    if options.variables:
        _become(variables(options.variables), options.start)
    out = events.Events(events.take_stdout())
    if options.survey:
        out.report({"schema": SCHEMA, **survey()})
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
    except dataset.DataError as error:
        return _refuse(out, str(error))
    except Exception as error:
        out.write("error", message=f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    finally:
        faulthandler.cancel_dump_traceback_later()
    return 0


def setting(options: argparse.Namespace) -> trial.Setting:
    """Return the setting given by the options. The default form is the accelerator's fastest."""
    form = model.fastest(options.device)
    if options.layout:
        form = replace(form, channels_last=options.layout == "channels_last")
    if options.compile_backend:
        form = replace(form, byte_masks=False)
    given = {**vars(options), "form": form, "ipex": options.extension == "ipex"}
    return trial.Setting(**{field.name: given[field.name] for field in fields(trial.Setting)})


def variables(pairs: Sequence[str]) -> Dict[str, str]:
    """Parse ``NAME=VALUE`` pairs. An empty value means that the variable is to be removed."""
    changes = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        changes[name] = value
    return changes


def started(original: Sequence[str], shown: Sequence[str]) -> List[str]:
    """Return the command that starts this program again, without the program's own arguments.

    ``original`` is ``sys.orig_argv``, or empty before Python 3.10. ``shown`` is ``sys.argv``.
    """
    if not original:
        return [sys.executable, shown[0]]
    return [sys.executable, *original[1 : len(original) - len(shown) + 1]]


def without_set(arguments: Sequence[str]) -> List[str]:
    """Return the arguments without ``--set``, ``--promise`` or their values.

    Both ``--set VALUE`` and ``--set=VALUE`` are recognized.
    """
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
    out.write("error", message=message)
    return EXIT_USAGE


# ---- the survey; it needs no torch


def survey() -> Dict[str, Any]:
    """Return the facts that determine which settings are worth a trial, as seen by this process."""
    limits = threads.fetch()
    preload = os.environ.get("LD_PRELOAD", "")
    return {
        "threads": {
            **asdict(limits),
            "decided": threads.decide(limits),
            "used": threads.chosen_by_user(os.environ.get("OMP_NUM_THREADS")),
        },
        "allocator": facts.allocator(),
        "allocators": find_allocators(folders(preload)),
        # Other preloaded libraries are kept.
        "preload": [path for path in re.split("[: ]+", preload) if path and not is_allocator(path)],
        "glibc": platform.libc_ver()[0] == "glibc",
        "wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def folders(preload: str) -> List[Path]:
    """Return the folders in which to search for allocators.

    They are the folders of the preloaded files, the payload, the environment's libraries and the
    system's libraries. ``preload`` is the value of ``LD_PRELOAD``.
    """
    named = [Path(path).parent for path in re.split("[: ]+", preload) if "/" in path]
    machine = f"{platform.machine()}-linux-gnu"
    system = [*map(Path, SYSTEM_FOLDERS)]
    prefixes = [Path(sys.argv[0]).resolve().parent, Path(sys.prefix) / "lib"]
    return [*named, *prefixes, *(folder / machine for folder in system), *system]


def find_allocators(places: Iterable[Path]) -> Dict[str, str]:
    """Map each allocator found to the path of its library.

    If several of ``places`` contain an allocator, the first one counts.
    """
    libraries: Dict[str, str] = {}
    for place in places:
        for name, patterns in ALLOCATORS.items():
            path = _first(place, patterns)
            if path is not None:
                libraries.setdefault(name, str(path))
    return libraries


def is_allocator(path: str) -> bool:
    """Return whether a library's file name is that of a known allocator."""
    return any(Path(path).name.startswith(f"lib{name}") for name in ALLOCATORS)


def _first(place: Path, patterns: Iterable[str]) -> Optional[Path]:
    for pattern in patterns:
        try:
            files = sorted(path for path in place.glob(pattern) if path.is_file())
        except OSError:
            files = []
        # A name without a version is for the linker; it may be a text file.
        versioned = [path for path in files if re.search(r"\.so\.[0-9]", path.name)]
        if versioned or files:
            # Resolved, as /proc/self/maps will name it.
            return (versioned or files)[0].resolve()
    return None
