"""CPU time of `verify --quick` outside of its epochs, of two versions of envbuilder in turns.

    python benchmarks/quick.py [--rounds 2] BEFORE AFTER

Both are paths of the program `envbuilder`, such as .venv/bin/envbuilder of two checkouts. Each
verifies an environment of its own with numpy; what builds it is not counted, nor a first round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

PROJECT = 'profiles: [cpu]\nrequirements: [numpy]\npython: "3.11"\n'


def outside(program: str, folder: Path) -> float:
    """Return the CPU seconds of a verification in a project, without those of its epochs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = (program, "verify", "--quick", "--json")
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted = json.loads(done.stdout)["contention"]
    epochs = sum(row["cpu_seconds"] for name, row in counted.items() if name.startswith("epoch"))
    user = after.ru_utime - before.ru_utime
    return float(user + after.ru_stime - before.ru_stime - epochs)


def main() -> None:
    """Measure both, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("programs", nargs=2, type=Path, metavar="PROGRAM")
    asked = parser.parse_args()
    # As for users: Python writes bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    programs = [str(path.absolute()) for path in asked.programs]
    seconds: dict[str, list[float]] = {program: [] for program in programs}
    with tempfile.TemporaryDirectory(prefix="quick-") as name:
        os.environ["ENVBUILDER_DATA_DIR"] = f"{name}/data"
        project = Path(name, "project")
        project.mkdir()
        (project / "envbuilder.yaml").write_text(PROJECT)
        for program in programs:
            for words in (["lock"], ["run", "true"]):
                subprocess.run([program, *words], cwd=project, check=True, capture_output=True)
        for number in range(asked.rounds + 1):
            for program in programs:
                took = outside(program, project)
                print(f"{program}: {took:.1f} s", flush=True)
                if number:
                    seconds[program].append(took)
    before, after = map(statistics.median, seconds.values())
    print(f"{before:.1f} s, {after:.1f} s: {after / before:.2f} x")


if __name__ == "__main__":
    main()
