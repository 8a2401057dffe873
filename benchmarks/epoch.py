"""One MNIST epoch in the `cpu` environment, with and without the preloaded allocator, in turns.

    python benchmarks/epoch.py [ROUNDS]

Builds the native environment if it is missing. Medians of `seconds` as reports define it: the
training pass without evaluation.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import native
from envbuilder.core import console
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import mnist


def seconds(prefix: Path, data: Path, environment: dict[str, str]) -> float:
    """Training seconds of one epoch, from the payload's report."""
    arguments = ("verify", "--device", "cpu", "--data", str(data))
    report = native.report(prefix, arguments, environment)
    assert report["status"] == "passed"
    value: float = report["training"]["epochs"][0]["seconds"]
    return value


def main(rounds: int) -> None:
    """Alternate the two and print medians."""
    prefix = native.build()
    data = mnist.obtain(load_settings(), console.PlainProgress()).folder
    preloaded = {"libc": "", "tcmalloc (the profile)": native.allocator(prefix)}
    ways = {name: {"LD_PRELOAD": library} for name, library in preloaded.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, environment in ways.items():
            taken[name].append(seconds(prefix, data, environment))
    base = statistics.median(taken["libc"])
    for name, values in taken.items():
        middle = statistics.median(values)
        rest = ", ".join(f"{v:.1f}" for v in values)
        print(f"{name:<24} {middle:5.1f} s  {middle / base:4.2f}×   rounds: {rest}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
