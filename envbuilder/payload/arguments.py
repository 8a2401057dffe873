"""Command-line options and their allowed values."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, FrozenSet

from . import start
from .frameworks import FRAMEWORKS
from .machine import facts
from .machine.accelerators import ACCELERATORS
from .numerics.compilers import BACKENDS
from .numerics.numerics import GRADIENT_TOLERANCE
from .parallel import shares
from .training.train import BATCH

TRIAL_STEPS = 150
TRIAL_WARM_UP = 30
"""Steps of batch 64; other batch sizes use as many images."""

TRIAL_SECONDS = 900
"""A trial takes seconds, with a compiler a minute."""

PARALLEL_SECONDS = 600
"""For each device alone, and for all together; most of it is room for slow starts."""


def parser() -> argparse.ArgumentParser:
    """Build the parser, which rejects abbreviated options so that new options break no script."""
    top = argparse.ArgumentParser(
        prog="payload", description="Prove that this environment trains.", allow_abbrev=False
    )
    top.add_argument(
        "--promise",
        dest="start",
        type=start.parse,
        default=start.AS_FOUND,
        help=argparse.SUPPRESS,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    count = commands.add_parser("count", help="print how many devices torch sees")
    count.add_argument("--device", required=True, choices=ACCELERATORS)
    commands.add_parser("exec", help="exec -- CMD: set OMP_NUM_THREADS for this host, become CMD")
    _add_verify(commands)
    _add_trial(commands)
    _add_parallel(commands)
    return top


def _add_verify(commands: Any) -> None:
    add = commands.add_parser(
        "verify", help="train MNIST and check", allow_abbrev=False
    ).add_argument
    add("--device", required=True, choices=ACCELERATORS)
    add("--data", required=True, type=Path, help="folder with the four IDX files, raw or .gz")
    add("--dataset-name", help="the name in the report; by default from the files' hashes")
    add("--run-id", default="", help="returned with the report")
    add("--questions", type=Path, help="folder in which the images of a blind test will appear")
    add("--record", type=Path, help="folder for what goes into chosen steps, and comes out")
    add(
        "--record-steps",
        dest="recorded",
        type=_numbers,
        default=frozenset(),
        help="their numbers, from 0: 0,1,47",
    )
    add("--images", type=positive, help="train on the first ones only")
    add("--epochs", type=positive, help="default: 1, or 3 on a subset")
    add(
        "--quick",
        action="store_true",
        help="part of the data, measures briefly, compiles nothing",
    )
    add("--seed", type=int, default=1)
    add("--precision", choices=tuple(GRADIENT_TOLERANCE), default="float32")
    add("--framework", choices=FRAMEWORKS, default="torch")
    version_help = "exact; with a local part (+cpu) that must match too"
    add("--framework-version", dest="version", help=version_help)
    listed = partial(add, action="append", default=[])
    listed("--require-kernels", metavar="PREFIX")
    listed("--compile-backend", dest="compile_backends", choices=BACKENDS)
    listed("--extension", dest="extensions", choices=sorted(facts.EXTENSIONS))
    add("--index", type=index, default=0, help="index of the device to use")


def _add_trial(commands: Any) -> None:
    add = commands.add_parser("trial", help="time a setting", allow_abbrev=False).add_argument
    add("--survey", action="store_true", help="report what could be tried, then exit")
    add("--device", default="cpu", choices=ACCELERATORS)
    add("--data", type=Path, help="folder with the four IDX files, raw or .gz")
    add("--steps", type=positive, default=TRIAL_STEPS, help="steps that are timed, at batch 64")
    add("--warm-up", type=positive, default=TRIAL_WARM_UP, help="steps before them")
    add("--seed", type=int, default=1)
    add("--batch", type=positive, default=BATCH)
    add("--layout", choices=("contiguous", "channels_last"))
    add("--bfloat16", action="store_true", help="autocast to bfloat16")
    add("--compile", dest="compile_backend", choices=BACKENDS)
    add("--check-compile", action="store_true", help="check the backend's gradients instead")
    add("--extension", choices=("ipex", "zentorch"))
    add("--set", dest="variables", action="append", default=[], metavar="NAME=VALUE")
    add("--limit", type=positive, default=TRIAL_SECONDS, help="time limit in seconds")


def _add_parallel(commands: Any) -> None:
    parallel = commands.add_parser(
        "parallel", help="train on each device alone, then on all together", allow_abbrev=False
    )
    parallel.add_argument("--devices", type=shares.parse, help="all (the default), or 0,1,…")
    parallel.add_argument("--run-id", default="", help="returned with the report")
    parallel.add_argument("--quick", action="store_true", help="fewer steps on the CPU")
    rank = commands.add_parser("parallel-rank", help="one process of parallel", allow_abbrev=False)
    add = rank.add_argument
    add(
        "--folder", required=True, type=Path, help="where it writes; its starter holds a lock there"
    )
    add("--shares", required=True, type=positive, help="parts of the CPU's cores")
    add("--index", type=index, help="the part to take; by default the rank's number")
    add("--seed", type=int, default=1)
    for command in (parallel, rank):
        add = command.add_argument
        add("--device", required=True, choices=ACCELERATORS)
        add("--data", required=True, type=Path)
        add("--steps", type=positive, help="timed steps on each rank")
        add("--limit", type=positive, default=PARALLEL_SECONDS, help="seconds per part")


def index(text: str) -> int:
    """Parse a device number, which counts from 0. Raise ArgumentTypeError if it is negative."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def positive(text: str) -> int:
    """Parse a positive integer. Raise ArgumentTypeError if it is less than 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _numbers(text: str) -> FrozenSet[int]:
    return frozenset(map(int, text.split(",")))
