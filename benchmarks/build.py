"""The image of `cpu`: ours against a hand-written `pip install torch` Dockerfile, in turns.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/build.py [ROUNDS]

Both start from the same base image and the same wheels (bind-mounted, not copied), use no cache and
end with an image that the engine can run. Seconds are wall time, medians; archives are `docker
save`. Needs an engine and a warm store (the first round is not counted).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from envbuilder import lockfile, profiles, resources, settings
from envbuilder.store import Store

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
BASE = os.environ.get("ENVBUILDER_BASE_IMAGE", "")
NAIVE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN --mount=type=bind,from=wheels,target=/wheels \\
    python3 -m venv /opt/env && /opt/env/bin/pip install --no-index --find-links /wheels torch
ENV PATH=/opt/env/bin:$PATH
"""


def naive(wheels: Path, folder: Path) -> str:
    """Build the hand-written Dockerfile; returns the image's tag."""
    (folder / "Dockerfile").write_text(NAIVE)
    tag = "envbuilder-benchmark/naive:1"
    command = [
        *("docker", "buildx", "build", "--no-cache", "--load", "--tag", tag),
        *("--build-arg", f"BASE_IMAGE={BASE}", "--build-context", f"wheels={wheels}", str(folder)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return tag


def ours() -> str:
    """Build through the command line; returns the image's tag."""
    command = [ENVBUILDER, "build", "--profile", "cpu", "--backend", "docker", "--rebuild"]
    done = subprocess.run(
        [*command, "--base-image", BASE, "--json"], check=True, capture_output=True, text=True
    )
    ref: str = json.loads(done.stdout)["artifact"]["ref"]
    return ref


def archive_bytes(tag: str) -> int:
    """Size of `docker save`."""
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        size = 0
        while chunk := saving.stdout.read(1 << 20):
            size += len(chunk)
    return size


def main(rounds: int) -> None:
    """Alternate the two and print medians and ratios."""
    if not BASE:
        sys.exit("set ENVBUILDER_BASE_IMAGE to a base image with Python 3.11")
    lock = lockfile.load(resources.profiles_dir() / "locks" / "cpu.json")
    python = profiles.load("cpu", (resources.profiles_dir(),)).python.default
    target = lockfile.select(lock, "linux/amd64", python)
    taken: dict[str, list[float]] = {"naive": [], "envbuilder": []}
    tags = {"envbuilder": ours()}
    with tempfile.TemporaryDirectory() as scratch:
        wheels, folder = Path(scratch, "wheels"), Path(scratch, "naive")
        wheels.mkdir()
        folder.mkdir()
        store = Store(settings.load().store_dir)
        for file in target.of_kind("wheel"):
            store.link(file, wheels)
        tags["naive"] = naive(wheels, folder)
        for _ in range(rounds):
            started = time.perf_counter()
            naive(wheels, folder)
            middle = time.perf_counter()
            ours()
            taken["naive"].append(middle - started)
            taken["envbuilder"].append(time.perf_counter() - middle)
    sizes = {name: archive_bytes(tag) for name, tag in tags.items()}
    for name, values in taken.items():
        seconds = statistics.median(values)
        print(
            f"{name:<11} {seconds:6.1f} s ({seconds / statistics.median(taken['naive']):4.2f}×)"
            f"   {sizes[name] / 1e6:6.0f} MB ({sizes[name] / sizes['naive']:4.2f}×)"
            f"   rounds: {', '.join(f'{v:.1f}' for v in values)}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
