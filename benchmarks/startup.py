"""How fast the command line starts, against `python -c "import click"`, alternating, medians.

    python benchmarks/startup.py [ROUNDS]

Goals: `--help` within 1.1×, `render` within 2.9×.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
COMMANDS = {
    "import click": [sys.executable, "-c", "import click"],
    "envbuilder --help": [ENVBUILDER, "--help"],
    "envbuilder render": [ENVBUILDER, "render", "--profile", "cpu"],
    "envbuilder detect": [ENVBUILDER, "detect"],
}


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    # An installed package has its bytecode; a checkout shall have it, too.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - started


def main(rounds: int) -> None:
    """Print the median of each command and its ratio to the first."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        seconds(command)
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    base = statistics.median(taken["import click"])
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:<20} {1000 * middle:6.1f} ms   {middle / base:4.2f}×")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
