"""Command-line options and their allowed values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import FrozenSet

from . import start
from .frameworks import FRAMEWORKS
from .machine import facts
from .machine.accelerators import ACCELERATORS
from .numerics.compilers import BACKENDS
from .numerics.numerics import GRADIENT_TOLERANCE
from .parallel.command import add_parallel, index
from .tuning.command import add_trial


def parser() -> argparse.ArgumentParser:
    """Build the parser. It allows no abbreviations: a new option must not change an old script."""
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
    commands.add_parser("probe", help="print facts about Python and torch as JSON")
    commands.add_parser("exec", help="exec -- CMD: set OMP_NUM_THREADS for this host, become CMD")
    add_trial(commands)
    add_parallel(commands)
    verify = commands.add_parser("verify", help="train MNIST and check", allow_abbrev=False)
    add = verify.add_argument
    add("--device", required=True, choices=ACCELERATORS)
    add("--data", required=True, type=Path, help="folder with the four IDX files, raw or .gz")
    add("--dataset-name", help="the name in the report; by default from the files' hashes")
    add("--run-id", default="", help="returned with the report")
    add("--questions", type=Path, help="folder in which the images of a blind test will appear")
    add("--record", type=Path, help="folder for what goes into chosen steps, and comes out")
    add("--record-steps", type=_numbers, default=frozenset(), help="their numbers, from 0: 0,1,47")
    add("--images", type=_positive, help="train on the first ones only")
    add("--epochs", type=_positive, help="default: 1, or 3 on a subset")
    add(
        "--quick",
        action="store_true",
        help="part of the data, measures briefly, compiles nothing",
    )
    add("--seed", type=int, default=1)
    add("--min-accuracy", type=_fraction, help="default: what honest trainings reach")
    add("--precision", choices=tuple(GRADIENT_TOLERANCE), default="float32")
    add("--framework", choices=FRAMEWORKS, default="torch")
    add("--framework-version", help="exact; with a local part (+cpu) that must match too")
    add("--require-kernels", action="append", default=[], metavar="PREFIX")
    add("--compile-backend", action="append", default=[], choices=BACKENDS)
    add("--extension", action="append", default=[], choices=sorted(facts.EXTENSIONS))
    add("--no-baseline", action="store_true", help="do not train on the CPU for comparison")
    add("--index", type=index, default=0, help="index of the device to use")
    return top


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _numbers(text: str) -> FrozenSet[int]:
    return frozenset(int(number) for number in text.split(","))


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a fraction between 0 and 1")
    return number
