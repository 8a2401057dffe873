"""Two profiles in one command, against each of them alone.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/many.py [ROUNDS] [--profiles cpu,zendnn] [--modes …]

`venv`: environments that do not exist; the other modes are images of the builder `layers`. `made`:
every layer is made (`--rebuild`). `cached`: the layers are in the cache, and the engine has neither
the images nor their layers above the base. `loaded`: the engine has those layers, as part of images
of another name. The files are in the store: a round that is not counted goes first.

Each round builds the first profile alone, the others alone, and all in one command, in turns; the
one that begins changes every round. Seconds are wall time of the whole command, "own CPU" is that
of envbuilder and its programs, without the engine's. Ratios are those of a round, to the first
profile alone; medians. Needs an engine with the base image. Environments and records go into a
folder of its own; the images are removed in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from build import BASE, layers, run

IMAGES = ("--backend", "docker", "--builder", "layers")
MODES = {
    "venv": ("--backend", "venv"),
    "made": (*IMAGES, "--rebuild"),
    "cached": IMAGES,
    "loaded": IMAGES,
}
PAUSE_SECONDS = 3.0
"""How long the engine may take to remove the layers of images that were removed before."""
KEPT = "envbuilder-benchmark:kept-{}"


def forget(refs: set[str]) -> None:
    """Remove images from the engine."""
    for ref in sorted(refs):
        subprocess.run(
            ["docker", "image", "rm", "--no-prune", ref], capture_output=True, check=False
        )


def require_none_left(made: set[str]) -> None:
    """Exit if an image of the engine still has one of these layers, the lowest of the profiles."""
    for image in sorted({*run("docker", "image", "ls", "-q").stdout.split()}):
        if made.intersection(layers(image)):
            sys.exit(
                f"the engine has layers of these profiles in the image {image}: remove it first"
            )


def build(profiles: str, *options: str) -> tuple[float, float, set[str]]:
    """Build some profiles: seconds, seconds of CPU, and the names of the images."""
    words = ("build", "--profile", profiles, "--json")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "envbuilder", *words, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
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
    parser.add_argument("--modes", default=",".join(MODES))
    given = parser.parse_args()
    if not BASE:
        sys.exit("ENVBUILDER_BASE_IMAGE names no base image")
    ways = (*given.profiles.split(","), given.profiles)
    with tempfile.TemporaryDirectory() as data:
        os.environ["ENVBUILDER_DATA_DIR"] = data
        *_, every = build(given.profiles, *IMAGES)
        made = {layers(ref)[len(layers(BASE))] for ref in every}
        kept = {KEPT.format(number): ref for number, ref in enumerate(sorted(every))}
        try:
            for mode in given.modes.split(","):
                if mode == "loaded":
                    build(given.profiles, *IMAGES)
                    for name, ref in kept.items():
                        run("docker", "tag", ref, name)
                measure(mode, MODES[mode], ways, every, made, given.rounds)
        finally:
            forget(every | kept.keys())


def measure(
    mode: str,
    options: tuple[str, ...],
    ways: tuple[str, ...],
    every: set[str],
    made: set[str],
    rounds: int,
) -> None:
    """Build in turns, and print medians."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            if mode == "venv":
                shutil.rmtree(Path(os.environ["ENVBUILDER_DATA_DIR"]) / "envs", ignore_errors=True)
            if options == IMAGES:
                forget(every)
            if mode == "cached":
                require_none_left(made)
            os.sync()
            time.sleep(PAUSE_SECONDS)
            took, worked, _ = build(way, *options)
            if number:
                seconds[way].append(took)
                cpu[way].append(worked)
    print(f"{mode}: {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for way in ways:
        ratios = [a / b for a, b in zip(seconds[way], seconds[ways[0]], strict=True)]
        works = [a / b for a, b in zip(cpu[way], cpu[ways[0]], strict=True)]
        print(
            f"  {way:<22}{statistics.median(seconds[way]):7.1f} s"
            f"  {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            f"   own CPU {statistics.median(cpu[way]):5.1f} s"
            f"  {statistics.median(works):.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
