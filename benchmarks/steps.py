#!/usr/bin/env python3
"""Measure how far repeated training steps are from float64: honest ones, and those of faults.

    benchmarks/steps.py run OUT.jsonl PYTHON [--framework F] [--threads N] [--seeds A-B] [--full]
                                             [--fault FILE]…
    benchmarks/steps.py table OUT.jsonl…

`run` trains by the payload in any interpreter with the framework, records 24 steps of each
training, repeats them as `envbuilder verify` does, and adds one line for each training to a file;
trainings that the file has are left out, so a run that was stopped goes on. A fault is a module of
tests/integration/torch/sabotage, imported after torch. `table` prints docs/evidence/steps.md's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
RECORDED = 24
EPOCHS = 3

TRAINING = """\
import importlib.util, json, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {root!r})
from envbuilder.payload import frameworks
from envbuilder.payload.training import dataset, outside, train
framework = frameworks.load({framework!r}, "cpu", {threads})
framework.state_precision("float32")
for fault in {faults!r}:
    spec = importlib.util.spec_from_file_location("fault", fault)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
data = dataset.load(Path({data!r})).train.first({images})
tensors = framework.hold(data)
job = framework.job({seed})
recorder = outside.Recorder(framework, Path({folder!r}), frozenset({numbers!r}))
for epoch in range(1, {epochs} + 1):
    train.epoch(job, tensors, lambda *_: None, recorder.step)
    recorder.write(job, epoch)
"""


class Quiet:
    """Progress that is not shown."""

    def task(self, name: str) -> Quiet:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, *_: object) -> None:
        pass


def run(options: argparse.Namespace) -> None:
    from envbuilder.core import resources
    from envbuilder.payload.training import dataset
    from envbuilder.payload.training.train import steps_of
    from envbuilder.verify import step

    first, _, last = options.seeds.partition("-")
    have = {(e["what"], e["seed"]) for e in map(json.loads, lines(options.out))}
    folder = options.data or resources.mnist_subset_dir()
    split = dataset.load(folder).train.first(60_000 if options.full else dataset.QUICK_TRAIN)
    epochs = 1 if options.full else EPOCHS
    every = steps_of(split.count) * epochs
    parts = [options.framework, f"{options.threads or 'all'} threads", "full" * options.full]
    what = " ".join([*filter(None, parts), *(fault.stem for fault in options.fault)])
    for seed in range(int(first), int(last or first) + 1):
        if (what, seed) in have:
            continue
        drawn = random.Random(seed).sample(range(2, every), RECORDED - 2)
        numbers = sorted({0, 1, *drawn})
        with tempfile.TemporaryDirectory() as place:
            text = TRAINING.format(
                root=str(ROOT),
                framework=options.framework,
                threads=options.threads,
                faults=[str(f.resolve()) for f in options.fault],
                data=str(folder),
                images=split.count,
                seed=seed,
                folder=place,
                numbers=numbers,
                epochs=epochs,
            )
            subprocess.run([options.python, "-c", text], check=True, stderr=subprocess.DEVNULL)
            proof = step.prove(Path(place), numbers, split, options.framework, Quiet())
        entry = {
            "what": what,
            "seed": seed,
            "problem": proof.problem,
            "errors": [float(f"{each.error:.2e}") for each in proof.steps],
            "losses": [float(f"{each.loss_error:.1e}") for each in proof.steps],
        }
        with options.out.open("a") as stream:
            stream.write(json.dumps(entry) + "\n")
        print(what, seed, proof.summary, "|", proof.problem, flush=True)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def table(options: argparse.Namespace) -> None:
    entries = [json.loads(line) for path in options.out for line in lines(path)]
    print("| training | steps | median | 99 % | largest | largest of a median | loss |")
    print("|---|---|---|---|---|---|---|")
    for what in dict.fromkeys(e["what"] for e in entries):
        mine = [e for e in entries if e["what"] == what]
        errors = sorted(error for e in mine for error in e["errors"])
        medians = [statistics.median(e["errors"]) for e in mine]
        losses = max(loss for e in mine for loss in e["losses"])
        figures = (statistics.median(errors), errors[int(0.99 * len(errors))], errors[-1])
        cells = (*figures, max(medians), losses)
        print(f"| {what} | {len(errors)} | " + " | ".join(f"{c:.1e}" for c in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("run").add_argument
    add("out", type=Path)
    add("python")
    add("--framework", default="torch")
    add("--threads", type=int)
    add("--seeds", default="1-8", help="first and last")
    add("--full", action="store_true", help="one epoch of 60,000 images, with --data")
    add("--data", type=Path)
    add("--fault", type=Path, action="append", default=[])
    commands.add_parser("table").add_argument("out", type=Path, nargs="+")
    options = parser.parse_args()
    {"run": run, "table": table}[options.command](options)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT))
    main()
