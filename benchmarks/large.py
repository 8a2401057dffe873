"""The image of `cuda` (2.9 GB of wheels) by `layers`, by `buildkit` and by pip: time and memory.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/large.py [--profile NAME] [ROUNDS]

All start from the same base image and the wheels in the store, which a build of the profile leaves
there. As in `build.py`, `naive` is pip in a Dockerfile, nothing is cached, and each
round of ours has another date in its lock. Seconds are wall time; the ratio is to `naive` of the
same run, medians of ROUNDS (1). "Peak" is the largest resident set of a process that the command
started, without the engine's; "own CPU" is what those processes used, "other CPU" what everything
else on the machine used meanwhile, which is the engine on a machine that does nothing else. For
`layers` it also prints when each layer was complete, and its size: a gap is where the time goes.
Needs an engine with the base image and some 25 GB of its disk. Each image is removed at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from build import BASE, forget, naive as naive_image, names, redate, run
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile


class Row(Struct, frozen=True):
    """One build."""

    seconds: float
    peak: int
    own: float
    other: float


def busy_seconds() -> float:
    """Return the CPU time that this machine has used since it started."""
    with Path("/proc/stat").open() as stream:
        user, nice, system, _, _, irq, softirq, *_ = map(int, stream.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], object]) -> Row:
    """Run something in a child process and return what it took."""
    os.sync()  # a row does not pay for what the one before it has left to write
    busy = busy_seconds()
    started = time.perf_counter()
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (the child must not go on as the parent)
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit("a build failed")
    own = used.ru_utime + used.ru_stime
    return Row(
        time.perf_counter() - started,
        used.ru_maxrss << 10,
        own,
        max(busy_seconds() - busy - own, 0.0),
    )


def ours(folder: Path, profile: str, builder: str, python: str) -> None:
    """Build through the command line, with a cache of its own; its result goes to a file."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "envbuilder",
            "build",
            "--profile",
            profile,
            "--json",
            "--backend",
            "docker",
            "--builder",
            builder,
            "--base-image",
            BASE,
            "--python-version",
            python,
        ],
        env={**os.environ, "ENVBUILDER_CACHE_DIR": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    (folder / f"{builder}.json").write_text(done.stdout)


def remove(ref: str) -> None:
    """Remove an image by all of its names."""
    run("docker", "rmi", "--force", *names([ref]))


def layers(folder: Path, began: float) -> str:
    """Return when each layer in the cache was complete."""
    blobs = (folder / "cache" / "layers" / "blobs" / "sha256").glob("*")
    times = sorted((p.stat().st_mtime - began, p.stat().st_size) for p in blobs)
    return "".join(f"  {at:7.1f} s {size / 1e6:9.1f} MB\n" for at, size in times if at > 0)


def main(profile: str, python: str, rounds: int) -> None:
    """Build alternately, and print medians, ratios and memory."""
    if not BASE:
        sys.exit("set ENVBUILDER_BASE_IMAGE to a base image with the profile's Python")
    store = Store(load_settings().store_dir)
    first = int(time.time()) % 20_000
    rows: dict[str, list[Row]] = {"naive": [], "buildkit": [], "layers": []}
    loads = [os.getloadavg()[0]]
    timeline = ""
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=store.root.parent) as scratch:
            folder = Path(scratch)
            lock = redate(profile, date(first + number))
            target = lockfile.select(lock, "linux/amd64", python)
            project(folder, profile, lock, store)
            wheels = folder / "wheels"
            wheels.mkdir()
            for file in (*target.of_kind("wheel"), lock.tool(target.platform)):
                store.link(file, wheels)
            rows["naive"].append(measured(partial(naive_image, wheels, folder / "naive")))
            # Each result goes before the next one: few disks have room for all.
            remove("envbuilder-benchmark/naive:1")
            forget("--find-links /wheels torch")
            for builder in ("buildkit", "layers"):
                began = time.time()
                rows[builder].append(measured(partial(ours, folder, profile, builder, python)))
                loads.append(os.getloadavg()[0])
                remove(json.loads((folder / f"{builder}.json").read_text())["artifact"]["ref"])
            timeline = layers(folder, began)
    middle = {name: statistics.median(r.seconds for r in of) for name, of in rows.items()}
    for name, of in rows.items():
        print(
            f"{name:<10}{middle[name]:8.1f} s ({middle[name] / middle['naive']:.3f}×)"
            f"   peak {max(r.peak for r in of) >> 20:5} MiB"
            f"   own CPU {statistics.median(r.own for r in of):7.1f} s"
            f"   other CPU {statistics.median(r.other for r in of):7.1f} s"
            f"   rounds: {', '.join(f'{r.seconds:.1f}' for r in of)}"
        )
    print(f"layers of `layers`, each when it was complete:\n{timeline}", end="")
    print(f"load of the machine meanwhile: {min(loads):.1f} to {max(loads):.1f}")


def date(number: int) -> str:
    """Return a date that no earlier round had."""
    return time.strftime("%Y-%m-%d", time.gmtime(946_684_800 + number * 86_400))


def project(folder: Path, profile: str, lock: lockfile.Lock, store: Store) -> None:
    """Lay out a project with the lock, and a cache that has the user's files but no layers."""
    (folder / "envbuilder.yaml").write_text("")
    locks = folder / "profiles" / "locks"
    locks.mkdir(parents=True)
    (locks / f"{profile}.json").write_text(lockfile.dump(lock))
    (folder / "cache").mkdir()
    (folder / "cache" / store.root.name).symlink_to(store.root)


if __name__ == "__main__":
    if shutil.which("docker") is None:
        sys.exit("docker is not installed")
    arguments = argparse.ArgumentParser(description="A large image, built in several ways")
    arguments.add_argument("rounds", metavar="ROUNDS", type=int, nargs="?", default=1)
    arguments.add_argument("--profile", default="cuda")
    arguments.add_argument("--python-version", default="3.11")
    given = arguments.parse_args()
    main(given.profile, given.python_version, given.rounds)
