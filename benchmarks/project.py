"""A project's daily commands: locking and building one package more, and `run` against none.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/project.py [--run-only] [ROUNDS]

The project is `examples/script`. Each round adds one small package of pure Python that nobody has
ever seen: `lock` for `cpu` and for all profiles, then the image by `layers`, all with a warm cache,
and says which layers of the image differ. Then `run -- true` on both backends, each time beside the
same without envbuilder: `true` itself, and `docker run` of the same image; the one that begins
changes every round. Wall time; medians of ROUNDS (5) after one that is not counted, and of the
differences and ratios of each round. Needs an engine with the base image and what `examples` needs
from the package index. Its images are removed.
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
from pathlib import Path

from build import BASE, layers, names, packed_wheel, run

NAME = "envbuilder_benchmark"
PROJECT = Path(__file__).resolve().parents[1] / "examples" / "script"
ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))
CPU = ("--profile", "cpu")
IMAGE = (*CPU, "--backend", "docker")
Taken = dict[str, list[float]]


def timed(taken: Taken, name: str, *argv: str, cwd: Path) -> str:
    """Run a command to its end, note its wall time, and return its output."""
    started = time.perf_counter()
    output = run(*argv, cwd=cwd).stdout
    taken.setdefault(name, []).append(time.perf_counter() - started)
    return output


def image(output: str) -> str:
    """The reference that `build --json` printed."""
    ref: str = json.loads(output)["artifact"]["ref"]
    return ref


def torch_files(project: Path) -> set[str]:
    """The digests of PyTorch's wheels in all locks."""
    locks = [json.loads(p.read_text()) for p in (project / "envbuilder.lock").glob("*.json")]
    files = (f for lock in locks for target in lock["targets"] for f in target["files"])
    return {f["sha256"] for f in files if f["name"] == "torch"}


def one_more(taken: Taken, folder: Path, wheels: Path, version: str, before: list[str]) -> str:
    """Lock and build with one package more; return the image's reference."""
    project = folder / version
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns(".envbuilder"))
    torch = torch_files(project)
    file, content = packed_wheel(NAME, version)
    (wheels / file).write_bytes(content)
    with (project / "requirements.txt").open("a") as stream:
        stream.write(f"{NAME}=={version}\n")
    timed(taken, "lock --profile cpu", ENVBUILDER, "lock", *CPU, cwd=project)
    timed(taken, "lock, all profiles", ENVBUILDER, "lock", cwd=project)
    command = (ENVBUILDER, "build", *IMAGE, "--builder", "layers", "--json")
    ref = image(timed(taken, "image by layers", *command, cwd=project))
    after = layers(ref)
    changed = [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
    kept = "unchanged" if torch_files(project) == torch else "CHANGED"
    print(f"torch in the locks: {kept}; of {len(after)} layers differ: {changed}")
    return ref


def runs(taken: Taken, number: int, project: Path, ref: str) -> None:
    """`run -- true` on both backends, each beside the same without envbuilder."""
    direct = ("docker", "run", "--rm", "--volume", f"{project}:/work", ref, "true")
    for name, plain, options in (
        ("venv", ("true",), (*CPU, "--backend", "venv")),
        ("docker", direct, IMAGE),
    ):
        pair = [
            (f"{name}: without", plain),
            (f"{name}: run", (ENVBUILDER, "run", *options, "--", "true")),
        ]
        for label, argv in reversed(pair) if number % 2 else pair:
            timed(taken, label, *argv, cwd=project)


def summary(taken: Taken) -> None:
    """Print the medians, and of pairs also those of differences and ratios."""
    for name, values in taken.items():
        listed = ", ".join(f"{v:.2f}" for v in values)
        print(f"{name:<20}{statistics.median(values):7.2f} s   rounds: {listed}")
    for name in ("venv", "docker"):
        pairs = list(zip(taken[f"{name}: run"], taken[f"{name}: without"], strict=True))
        over = statistics.median(a - b for a, b in pairs)
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"run over none, {name}: {over:+.2f} s, {ratio:.2f}x")
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


def main(rounds: int, *, run_only: bool) -> None:
    """Measure, and print the medians."""
    if not BASE:
        sys.exit("set ENVBUILDER_BASE_IMAGE to a base image with Python 3.11")
    # An installed package has its bytecode; a checkout shall have it, too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    taken: Taken = {}
    tags = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheels = folder / "wheels"
        wheels.mkdir()
        links = filter(None, (os.environ.get("PIP_FIND_LINKS"), str(wheels)))
        os.environ["PIP_FIND_LINKS"] = " ".join(links)
        plain = folder / "plain"
        shutil.copytree(PROJECT, plain, ignore=shutil.ignore_patterns(".envbuilder"))
        run(ENVBUILDER, "build", *CPU, "--backend", "venv", cwd=plain)
        ref = image(
            run(ENVBUILDER, "build", *IMAGE, "--builder", "layers", "--json", cwd=plain).stdout
        )
        tags.append(ref)
        before = layers(ref)
        try:
            for number in range(rounds + 1):
                if not run_only:
                    version = f"1.{int(time.time())}.{number}"
                    tags.append(one_more(taken, folder, wheels, version, before))
                runs(taken, number, plain, ref)
                if number == 0 and rounds:
                    taken.clear()
        finally:
            removal = ["docker", "rmi", "--force", "--no-prune", *names(tags)]
            subprocess.run(removal, stdout=subprocess.DEVNULL, check=False)
    summary(taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A project's daily commands")
    parser.add_argument("rounds", metavar="ROUNDS", type=int, nargs="?", default=5)
    parser.add_argument("--run-only", action="store_true", help="measure `run` alone")
    arguments = parser.parse_args()
    main(arguments.rounds, run_only=arguments.run_only)
