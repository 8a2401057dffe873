"""CPU time of `init` with this machine's lock, and of `lock`, beside `uv pip compile`.

    python benchmarks/door.py [--runs 5] [--profile cuda] [--profile mps]

For each project, a list of requirements: `uv pip compile` once for each target that the locks hold
(platform and Python), which builds what has no wheel where it finds none without; then `init` in an
empty folder with that list, which locks for this machine, then `lock` for the given profiles,
without earlier locks. Warm: a first round does not count. User and system time of all processes,
medians; what may be is 1.3 times uv's sum, and one second.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

PROJECTS = {
    "transformers": ("transformers", "datasets", "torch"),
    "diffusers": ("diffusers", "accelerate", "peft", "safetensors", "gradio", "torch"),
    "unsloth": ("unsloth", "vllm"),
    "jax": ("jax", "flax", "optax", "orbax-checkpoint", "tqdm"),
    "lightning": ("lightning", "torchmetrics", "hydra-core==1.1.0", "pandas", "scikit-learn"),
}
ENVBUILDER = (sys.executable, "-m", "envbuilder")
UV_PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_28",
    "linux/arm64": "aarch64-manylinux_2_28",
    "macos/arm64": "aarch64-apple-darwin",
}


def seconds(argv: tuple[str, ...], folder: Path) -> tuple[float, int]:
    """Run a program; return the CPU seconds that it took, and its exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=folder, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return took, done.returncode


def targets(folder: Path) -> list[tuple[str, str]]:
    """Return the targets of all locks of a project, and remove the locks."""
    locked: list[tuple[str, str]] = []
    for path in sorted(folder.glob("envbuilder.lock/*.json")):
        every = json.loads(path.read_text())["targets"]
        locked += ((target["platform"], target["python"]) for target in every)
        path.unlink()
    return locked


def of_uv(folder: Path, asked: list[tuple[str, str]]) -> float:
    """Return what `uv pip compile` takes for locks of all targets.

    A refusal is no lock: what has no wheel is then built for its metadata, as uv does by default.
    """
    total = 0.0
    for platform, python in asked:
        target = ("--python-platform", UV_PLATFORMS[platform], "--python-version", python)
        argv = ("uv", "pip", "compile", "-q", "requirements.txt", *target)
        took, code = seconds((*argv, "--only-binary", ":all:"), folder)
        if code:
            took, code = seconds(argv, folder)
        if code:
            raise SystemExit(f"uv locks no {platform} with Python {python}")
        total += took
    return total


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="append", help="what is locked; cuda and mps")
    parser.add_argument("--only", help="one of the projects")
    chosen = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    print(
        f"{'project':<14} {'init':>8} {'uv':>6} {'may be':>7}   {'lock':>6} {'uv':>6} {'may be':>7}"
    )
    for name, lines in PROJECTS.items():
        if chosen.only not in (None, name):
            continue
        profiles = chosen.profile or (["jax-cuda"] if name == "jax" else ["cuda", "mps"])
        rounds = []
        with tempfile.TemporaryDirectory(prefix="door-") as temporary:
            folder = Path(temporary)
            (folder / "requirements.txt").write_text("\n".join(lines) + "\n")
            for _ in range(chosen.runs + 1):
                (folder / "envbuilder.yaml").unlink(missing_ok=True)
                init, code = seconds((*ENVBUILDER, "init"), folder)
                of_init = targets(folder)
                lock = 0.0
                for profile in profiles:
                    lock += seconds((*ENVBUILDER, "lock", "--profile", profile), folder)[0]
                of_lock = targets(folder)
                rounds.append((init, of_uv(folder, of_init), lock, of_uv(folder, of_lock)))
        init, uv_init, lock, uv_lock = (median(column) for column in zip(*rounds[1:], strict=True))
        print(
            f"{name:<14} {init:8.2f} {uv_init:6.2f} {1.3 * uv_init + 1:7.2f}"
            f"   {lock:6.2f} {uv_lock:6.2f} {1.3 * uv_lock + len(profiles):7.2f}"
            f"   {len(of_init)} and {len(of_lock)} targets, exit {code}",
            flush=True,
        )


if __name__ == "__main__":
    main()
