"""Honest quick verifications: how far their steps and answers are from float64, and false alarms.

    python benchmarks/honest.py [--runs 200] [--busy 6] [--csv FILE] torch=PYTHON jax=PYTHON …

Each run has a seed of its own, one to four threads, and for torch one of the instruction sets that
this CPU has (`ATEN_CPU_CAPABILITY`, `ONEDNN_MAX_CPU_ISA`); the frameworks take turns. With
`--busy`, every second run is beside as many processes that compute without a pause. It is `verify
--quick` without the seal and the project's imports: the payload starts in the given interpreter,
everything outside judges it. A row is appended to the CSV after each run; the summary has every row
of the file.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuilder.builds import mnist
from envbuilder.builds.payload import TIMEOUT_SECONDS, payload_pyz
from envbuilder.core import console, process
from envbuilder.core.errors import VerifyError
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles.profile import Expected
from envbuilder.verify import run

ACCURACY = 0.85
LEVELS = (("", ""), ("default", "SSE41"), ("avx2", "AVX2"), ("avx512", "AVX512_CORE"))
"""Of ATen, and of oneDNN; what a CPU lacks, both leave out."""
ERRORS = ("largest", "median", "loss", "answers")
"""Of a run: the largest and the median step's, a loss's, and that of the answers."""
FIELDS = (
    "framework",
    "seed",
    "threads",
    "level",
    "busy",
    "load",
    "status",
    "reasons",
    "epochs",
    "accuracy",
    *ERRORS,
)


def verification(
    framework: str, python: str, seed: int, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Verify an interpreter; return what there is to know of it."""
    expects = Expected(device="cpu", framework=framework, accuracy=ACCURACY)
    job = run.Job(expects=expects, dataset=mnist.subset(), epochs=None, quick=True)
    with tempfile.TemporaryDirectory(prefix="honest-") as name:
        program = Path(name, "payload.pyz")
        program.write_bytes(payload_pyz())

        def start(
            arguments: Callable[[Mapping[str, str]], Sequence[str]],
            folders: Mapping[str, Path],
            on_line: Callable[[str], None],
        ) -> process.Completed:
            paths = {each: str(folder) for each, folder in folders.items()}
            return process.run(
                [python, "-I", str(program), *arguments(paths)],
                env=variables,
                timeout=TIMEOUT_SECONDS,
                on_stdout=on_line,
            )

        silent = console.PlainProgress(lambda _: None)
        log = Path(name, "log")
        try:
            return run.examine(job, ("--seed", str(seed)), start, load_settings(), silent, log)
        except VerifyError as error:
            return {"status": "failed", "reasons": [error.message]}


def row(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report's errors."""
    steps = report.get("steps") or ()
    if not steps:
        return {"status": report["status"], "reasons": "; ".join(report["reasons"])}
    errors = [step["error"] for step in steps]
    return {
        "status": report["status"],
        "reasons": "; ".join(report["reasons"]),
        "epochs": len(report["training"]["epochs"]),
        "accuracy": report["blind_test"]["accuracy"],
        "largest": max(errors),
        "median": statistics.median_low(errors),
        "loss": max(step["loss_error"] for step in steps),
        "answers": report["blind_test"]["error"],
    }


def summary(path: Path) -> None:
    """Print, for each framework, the runs, those that failed, and mean and deviation of errors."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for framework in sorted({each["framework"] for each in rows}):
        own = [each for each in rows if each["framework"] == framework]
        failed = [each["reasons"] for each in own if each["status"] != "passed"]
        print(f"{framework}: {len(own)} runs, {len(failed)} failed {failed or ''}")
        for field in ERRORS:
            values = [float(each[field]) for each in own if each[field]]
            # Errors differ by factors: their logarithms are nearer to normal.
            logs = [math.log(max(value, 1e-12)) for value in values]
            spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
            print(
                f"  {field:8} median {statistics.median(values):.1e}, largest {max(values):.1e},"
                f" log's deviation {spread:.2f}"
            )


def main() -> None:
    """Verify, and print the summary."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=Path("honest.csv"))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("pythons", nargs="+")
    asked = parser.parse_args()
    pythons = [each.split("=", 1) for each in asked.pythons]
    new = not asked.csv.exists()
    with asked.csv.open("a", newline="") as file:
        table = csv.DictWriter(file, FIELDS)
        if new:
            table.writeheader()
        for seed in range(asked.first, asked.first + asked.runs):
            framework, python = pythons[seed % len(pythons)]
            threads = 1 + seed // len(pythons) % 4
            aten, onednn = LEVELS[seed // (4 * len(pythons)) % len(LEVELS)]
            busy = asked.busy * (seed % 2)
            variables = {"OMP_NUM_THREADS": str(threads)}
            # TensorFlow 2.21's bfloat16 product ends by signal 11 with them.
            is_limited = framework == "torch" and bool(aten)
            if is_limited:
                variables |= {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn}
            others = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)
            ]
            try:
                report = verification(framework, python, seed, variables)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            facts = {
                "framework": framework,
                "seed": seed,
                "threads": threads,
                "level": aten if is_limited else "",
                "busy": busy,
                "load": f"{os.getloadavg()[0]:.1f}",
            }
            table.writerow({**facts, **row(report)})
            file.flush()
    summary(asked.csv)


if __name__ == "__main__":
    main()
