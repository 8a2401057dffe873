"""How fast the command line starts, against `python -c "import click"`, alternating, medians.

    python benchmarks/startup.py [ROUNDS [PROJECT]]

With PROJECT, a folder whose environment of the profile `cpu` is built as a venv, also what
`envbuilder run` adds to a command, and how long `check` takes there. Variables such as
ENVBUILDER_DATA_DIR say where that environment is.

Goals: `--help` within 1.05×, `render` within 2.5×, `run` within 0.12 s.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
COMMANDS = {
    "import click": [sys.executable, "-c", "import click"],
    "envbuilder --help": [ENVBUILDER, "--help"],
    "envbuilder render": [ENVBUILDER, "render", "--profile", "cpu"],
    "envbuilder detect": [ENVBUILDER, "detect"],
}
IN_PROJECT = {
    "true": ["true"],
    "envbuilder run": [ENVBUILDER, "run", "--profile", "cpu", "--backend", "venv", "--", "true"],
    "envbuilder check": [ENVBUILDER, "check"],
}


def seconds(command: list[str], folder: str) -> float:
    """Wall time of one run."""
    # An installed package has its bytecode; a checkout shall have it, too.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        cwd=folder,
        env=environment,
    )
    return time.perf_counter() - started


def main(rounds: int, project: str) -> None:
    """Print the median of each command, its ratio to the first, and what `run` adds."""
    with TemporaryDirectory() as elsewhere:
        folders = dict.fromkeys(COMMANDS, elsewhere)
        commands = {**COMMANDS}
        if project:
            folders |= dict.fromkeys(IN_PROJECT, project)
            commands |= IN_PROJECT
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for name, command in commands.items():
            seconds(command, folders[name])
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(seconds(command, folders[name]))
    base = statistics.median(taken["import click"])
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:<20} {1000 * middle:6.1f} ms   {middle / base:4.2f}×")
    if project:
        pairs = zip(taken["envbuilder run"], taken["true"], strict=True)
        print(f"run adds {statistics.median(run - alone for run, alone in pairs):.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 21, sys.argv[2] if len(sys.argv) > 2 else "")
