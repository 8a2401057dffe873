"""One MNIST epoch in the `cpu` environment, with and without the preloaded allocator, in turns.

    python benchmarks/epoch.py [ROUNDS]

Builds the native environment if it is missing. Medians of `seconds` as reports define it: the
training pass without evaluation.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from envbuilder import console, mnist, settings

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))


def seconds(prefix: Path, data: Path, environment: dict[str, str]) -> float:
    """Training seconds of one epoch, from the payload's report."""
    done = subprocess.run(
        [
            *(prefix / "bin" / "python", prefix / "lib/envbuilder/payload.pyz", "verify"),
            *("--device", "cpu", "--data", data),
        ],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])["report"]
    assert report["status"] == "passed"
    value: float = report["training"]["epochs"][0]["seconds"]
    return value


def main(rounds: int) -> None:
    """Alternate the two and print medians."""
    built = subprocess.run(
        [ENVBUILDER, "build", "--profile", "cpu", "--backend", "venv", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    prefix = Path(json.loads(built.stdout)["artifact"]["ref"])
    data = mnist.obtain(settings.load(), console.PlainProgress()).folder
    library = str(prefix / "lib/envbuilder/libtcmalloc_minimal.so.4")
    ways = {"libc": {"LD_PRELOAD": ""}, "tcmalloc (the profile)": {"LD_PRELOAD": library}}
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
