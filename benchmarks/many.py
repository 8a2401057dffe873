"""Two profiles in one command, against each of them alone: images of the builder `layers`.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/many.py [ROUNDS] [--profiles cpu,zendnn]

`rebuild`: every layer is made (`--rebuild`). `cached`: the layers are in the cache, the images are
not in the engine. The files are in the store: a round that is not counted goes first. Each round
builds the first profile alone, the others alone, and all in one command, in turns; the one that
begins changes every round. Seconds are wall time of the whole command, "own CPU" is that of
envbuilder and its programs, without the engine's. Ratios are those of a round, to the first profile
alone; medians. Needs an engine with the base image. Records and attestations go into a folder of
its own; the images are removed in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

BASE = os.environ.get("ENVBUILDER_BASE_IMAGE", "")
MODES = {"rebuild": ("--rebuild",), "cached": ()}


def forget(refs: set[str]) -> None:
    """Remove images from the engine."""
    for ref in sorted(refs):
        subprocess.run(
            ["docker", "image", "rm", "--no-prune", ref], capture_output=True, check=False
        )


def build(profiles: str, *options: str) -> tuple[float, float, set[str]]:
    """Build some profiles: seconds, seconds of CPU, and the names of the images."""
    words = ("build", "--profile", profiles, "--backend", "docker", "--builder", "layers", "--json")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "envbuilder", *words, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{profiles}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    refs = {b["artifact"]["ref"] for b in answer.get("builds", [answer])}
    latest = {f"{ref.rpartition(':')[0]}:latest" for ref in refs}
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, refs | latest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--profiles", default="cpu,zendnn")
    given = parser.parse_args()
    if not BASE:
        sys.exit("ENVBUILDER_BASE_IMAGE names no base image")
    ways = (*given.profiles.split(","), given.profiles)
    with tempfile.TemporaryDirectory() as data:
        os.environ["ENVBUILDER_DATA_DIR"] = data
        every = set[str]()
        for mode, options in MODES.items():
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            cpu: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(given.rounds + 1):
                first = number % len(ways)
                for way in (*ways[first:], *ways[:first]):
                    if not options:
                        forget(every)
                    took, worked, refs = build(way, *options)
                    every |= refs
                    if number:
                        seconds[way].append(took)
                        cpu[way].append(worked)
            load = os.getloadavg()[0]
            print(f"{mode}: {given.rounds} rounds, load {load:.1f}")
            for way in ways:
                ratios = [a / b for a, b in zip(seconds[way], seconds[ways[0]], strict=True)]
                works = [a / b for a, b in zip(cpu[way], cpu[ways[0]], strict=True)]
                print(
                    f"  {way:<22}{statistics.median(seconds[way]):7.1f} s"
                    f"  {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
                    f"   own CPU {statistics.median(cpu[way]):5.1f} s"
                    f"  {statistics.median(works):.2f}x"
                )
        forget(every)


if __name__ == "__main__":
    main()
