"""What honest trainings reach, and the gates that follow from it.

    python benchmarks/gates.py run       train what docs/evidence/gates.jsonl lacks
    python benchmarks/gates.py report    rewrite the tables of docs/evidence/gates.md

`run` may be stopped and started again at any time: each finished training is one line of the file,
and none is repeated. It builds the environments that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gates_report
import native
from envbuilder.core import console, resources
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import mnist
from faulty_steps import FAULTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/evidence/gates.jsonl"
PAGE = RESULTS.with_suffix(".md")
PROFILES = {"torch": "cpu", "jax": "jax-cpu", "tensorflow": "tensorflow-cpu"}
KEYS = ("framework", "kind", "data", "seed", "threads", "form", "fault")
"""What makes two runs the same."""

Run = dict[str, Any]


def plan() -> list[Run]:
    """All runs, in such an order that those of a `run` that is stopped early are worth the most."""
    rows = (
        ("torch", "quick", 200, 1, 0.0),
        ("jax", "quick", 60, 2001, 0.0),
        ("tensorflow", "quick", 60, 3001, 0.0),
        ("torch", "full", 20, 1001, 0.3),
        ("jax", "full", 5, 1101, 0.5),
        ("tensorflow", "full", 5, 1201, 0.5),
    )
    runs = [
        (starts + number / count, one(framework, kind, number, first + number))
        for framework, kind, count, first, starts in rows
        for number in range(count)
    ]
    for fault in FAULTS:
        for number, data in enumerate(("subset", "mnist") * 2):
            run = one("torch", "quick", 0, 4001 + number)
            runs.append((0.5 + number / 4, {**run, "data": data, "fault": fault}))
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]


def one(framework: str, kind: str, number: int, seed: int) -> Run:
    """A run: its data, threads and form change with its number, so that each pair occurs."""
    forms = ("cpu", "cpu", "gpu", "cpu", "published") if framework == "torch" else ("cpu",)
    threads = 2 if number % 7 == 3 else 4 if number % 17 == 5 else 1
    return {
        "framework": framework,
        "kind": kind,
        "data": "mnist" if kind == "full" or number % 2 else "subset",
        "seed": seed,
        "threads": threads,
        "form": forms[number % len(forms)],
    }


def key(run: Run) -> tuple[Any, ...]:
    """What identifies a run."""
    return tuple(run.get(name) for name in KEYS)


def results(path: Path) -> list[Run]:
    """The finished runs; a line that was cut off, when the machine went down, is none."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            runs.append(json.loads(line))
        except ValueError:
            print(f"{path}: passes over {line[:40]!r}", file=sys.stderr)
    return runs


def portions(runs: list[Run]) -> Iterator[list[Run]]:
    """Runs that one process trains: equal framework, kind and threads, so that imports are rare."""
    waiting: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        group = (run["framework"], run["kind"], run["threads"])
        portion = waiting.setdefault(group, [])
        portion.append(run)
        if len(portion) == (10 if run["kind"] == "quick" else 2):
            yield waiting.pop(group)
    yield from waiting.values()


class Trainings:
    """Trains portions side by side and appends what comes back to the file."""

    def __init__(self, path: Path, folders: dict[str, str]) -> None:
        self._path = path
        self._folders = folders
        self._prefixes: dict[str, Path] = {}
        self._lock = threading.Lock()

    def work(self, waiting: Iterator[list[Run]]) -> None:
        """Train portions until none is left."""
        while True:
            with self._lock:
                portion = next(waiting, None)
                if portion is None:
                    return
                framework = portion[0]["framework"]
                if framework not in self._prefixes:
                    self._prefixes[framework] = native.build(PROFILES[framework])
            self._train(portion)

    def _train(self, portion: list[Run]) -> None:
        framework = portion[0]["framework"]
        threads = portion[0]["threads"]
        python = self._prefixes[framework] / "bin" / "python"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(threads),
            # Several of these share the processor's cores.
            "OMP_WAIT_POLICY": "passive",
        }
        asked = {
            "framework": framework,
            "threads": threads,
            "folders": self._folders,
            "runs": portion,
        }
        with subprocess.Popen(
            [str(python), str(ROOT / "benchmarks/honest_runs.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(asked))
            child.stdin.close()
            for line in child.stdout:
                self._append(line)
        if child.returncode:
            print(f"{framework}: ended with exit code {child.returncode}", file=sys.stderr)

    def _append(self, line: str) -> None:
        compact = json.dumps(json.loads(line), separators=(",", ":"))
        with self._lock, self._path.open("a+b") as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                # The end of a line that was cut off.
                if stream.read(1) != b"\n":
                    stream.write(b"\n")
            stream.write(f"{compact}\n".encode())
            stream.flush()
            os.fsync(stream.fileno())


def run(path: Path, at_once: int) -> None:
    """Train what is missing."""
    done = {key(finished) for finished in results(path)}
    missing = [asked for asked in plan() if key(asked) not in done]
    full = mnist.obtain(load_settings(), console.PlainProgress())
    assert not full.subset
    folders = {"mnist": str(full.folder), "subset": str(resources.mnist_subset_dir())}
    print(f"{len(missing)} of {len(plan())} runs are missing", flush=True)
    trainings = Trainings(path, folders)
    waiting = portions(missing)
    threads = [threading.Thread(target=trainings.work, args=(waiting,)) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    if options.command == "run":
        run(options.results, options.at_once)
    else:
        gates_report.write(PAGE, results(options.results))


if __name__ == "__main__":
    main()
