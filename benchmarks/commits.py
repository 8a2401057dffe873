"""Two checkouts of envbuilder side by side: is the newer one slower anywhere?

    python benchmarks/commits.py OLD NEW [PAIRS] [--most PAIRS] [--wall] [--json FILE] [--only WORD]

OLD and NEW are checkouts that were set up (`python3 bootstrap.py setup`), each with its own locked
tools. Each has its own cache and data folder below a temporary one, so that neither profits from
the other. PAIRS (9) alternating pairs of each command, after a pair that is not counted, and up to
`--most` (60) until the interval lies below 1.10 or above 1.05; the order within a pair changes from
pair to pair. A ratio is NEW's CPU time (user and system, with that of its processes) over OLD's of
one pair; with `--wall`, its wall time, which counts what an engine does, too. Shown are the median
of the ratios and the order statistics that enclose it with 95 % confidence (for nine pairs the
second and the second last). The archives of `cpu` and the digests of its wheel layers are compared
as well. Images need an engine and ENVBUILDER_BASE_IMAGE. `lock` makes the first lock of a project,
with uv's answers in its cache from the pair that is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CPU = ("--profile", "cpu")
LAYERS = (*CPU, "--backend", "docker", "--builder", "layers")
BUILDKIT = (*CPU, "--backend", "docker", "--builder", "buildkit")
PROJECTS = {
    "lock": "numpy\npandas\ntransformers\n",
    "lock cpu": "numpy\npandas\ntransformers\n",
    "lock tensorflow": "tensorflow\n",
    "lock torch==2.4.1": "torch==2.4.1\n",
}
"""What the projects require whose first locks are made, by the command's name."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "--help": ("--help",),
    "render": ("render", *CPU),
    "detect": ("detect",),
    "unchanged build": ("build", *CPU, "--backend", "venv"),
    "run -- true": ("run", *CPU, "--backend", "venv", "--", "true"),
    "verify --quick": ("verify", *CPU, "--backend", "venv", "--quick"),
    **dict.fromkeys(PROJECTS, ("lock",)),
    "lock cpu": ("lock", *CPU),
    "cpu by layers": ("build", *LAYERS, "--rebuild"),
    "cpu by buildkit": ("build", *BUILDKIT, "--rebuild"),
}
CONFIDENCE = 0.95
SLOWER, TOO_SLOW = 1.05, 1.10
"""A median may reach the first, the upper end of its interval the second."""


def cpu_seconds() -> float:
    """Return the CPU seconds, user and system, of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(
    checkout: Path,
    folder: Path,
    arguments: tuple[str, ...],
    requirements: str = "",
    clock: Callable[[], float] = cpu_seconds,
) -> float:
    """Return the seconds of one command, in a new project if any; it must succeed."""
    if requirements:
        write_project(folder / "project", requirements)
    # An installed package has its bytecode; both checkouts shall have it, too.
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "ENVBUILDER_CACHE_DIR": str(folder / "cache"),
        "ENVBUILDER_DATA_DIR": str(folder / "data"),
        "ENVBUILDER_CONFIG_DIR": str(folder / "config"),
    }
    started = clock()
    done = subprocess.run(
        [checkout / ".venv" / "bin" / "envbuilder", *arguments],
        env=environment,
        cwd=folder / "project" if requirements else folder,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = clock() - started
    if done.returncode != 0:
        sys.exit(f"{checkout}: envbuilder {' '.join(arguments)}: {done.stderr}")
    return seconds


def write_project(folder: Path, requirements: str) -> None:
    """Write a project without locks into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "envbuilder.yaml").write_text("requirements_from: [requirements.txt]\n")
    (folder / "requirements.txt").write_text(requirements)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the order statistics that enclose the median with the stated confidence."""
    ordered, count = sorted(ratios), len(ratios)
    skipped, outside = 0, 0.0
    while True:
        outside += math.comb(count, skipped) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        skipped += 1
    first = max(skipped - 1, 0)
    return ordered[first], ordered[count - 1 - first]


def compare(
    checkouts: dict[str, Path],
    folders: dict[str, Path],
    name: str,
    options: argparse.Namespace,
) -> tuple[dict[str, list[float]], tuple[float, float]]:
    """Return the seconds of both sides, pair by pair, and the interval of the ratios' median."""
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for number in range(max(options.pairs, options.most) + 1):
        for side in ("old", "new") if number % 2 else ("new", "old"):
            requirements = PROJECTS.get(name, "")
            clock = time.perf_counter if options.wall else cpu_seconds
            taken = run(checkouts[side], folders[side], COMMANDS[name], requirements, clock)
            if number:
                seconds[side].append(taken)
        if number >= options.pairs:
            ratios = [n / o for o, n in zip(seconds["old"], seconds["new"], strict=True)]
            low, high = interval(ratios)
            if high <= TOO_SLOW or low > SLOWER:
                break
    return seconds, interval(ratios)


def wheel_layers(archive: Path) -> dict[str, str]:
    """Return the digests of an OCI layout's layers of wheels, by what is in them."""

    def blob(digest: str) -> dict[str, object]:
        text = (archive / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_text()
        content: dict[str, object] = json.loads(text)
        return content

    index = json.loads((archive / "index.json").read_text())
    manifest = blob(index["manifests"][0]["digest"])
    config = blob(manifest["config"]["digest"])  # type: ignore[index]
    history = [h for h in config["history"] if not h.get("empty_layer")]  # type: ignore[attr-defined]
    pairs = zip(history, manifest["layers"], strict=True)  # type: ignore[call-overload]
    named = {str(h.get("created_by")): layer["digest"] for h, layer in pairs}
    # The layers on top hold the system packages, the environment's frame and the payload.
    ours = [name for name in named if name.startswith("envbuilder: ")]
    return {name: named[name] for name in ours[:-2]}


def main() -> None:
    """Measure, print a table, and write the numbers where they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("pairs", type=int, nargs="?", default=9)
    parser.add_argument("--most", type=int, default=60, metavar="PAIRS")
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": options.new.resolve()}
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {side: Path(scratch) / side for side in checkouts}
        for folder in folders.values():
            folder.mkdir()
        for name in COMMANDS:
            if options.only not in name:
                continue
            seconds, (low, high) = compare(checkouts, folders, name, options)
            ratios = [n / o for o, n in zip(seconds["old"], seconds["new"], strict=True)]
            median = statistics.median(ratios)
            results[name] = {"ratios": ratios, "seconds": seconds, "interval": [low, high]}
            print(
                f"{name:16} {statistics.median(seconds['old']):8.2f} s"
                f" {statistics.median(seconds['new']):8.2f} s"
                f"   {median:.3f} ({low:.3f} to {high:.3f}), {len(ratios)} pairs",
                flush=True,
            )
        if not options.only:
            sizes, layers = {}, {}
            for side, checkout in checkouts.items():
                for place in ("oci:image", "image.tar"):
                    run(checkout, folders[side], ("build", *LAYERS, "--output", place))
                sizes[side] = (folders[side] / "image.tar").stat().st_size
                layers[side] = wheel_layers(folders[side] / "image")
            same = layers["old"] == layers["new"]
            results["archive bytes"], results["wheel layers"] = sizes, layers
            print(f"archive: {sizes['old']} and {sizes['new']} bytes")
            print(f"{len(layers['new'])} layers of wheels: {'the same' if same else 'different'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
