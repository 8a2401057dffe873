"""Change the code that trust rests on, and report the changes that neither a test nor mypy notices.

    tools/mutants.py                                  all modules of [tool.mutmut] in pyproject.toml
    tools/mutants.py 'envbuilder.packages.store.*'    the mutants whose names match
    tools/mutants.py --sample 1000 --seed 7           that many of them, drawn at random

mutmut makes the mutants below `mutants/` and runs, for each, the tests that reach its function;
results are kept there until the function changes. Prints a table and writes the changes that
survived to `build/mutants.diff`. Exit code 1: fewer than `--least` percent were noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

MUTANTS = Path("mutants")
SURVIVORS = Path("build/mutants.diff")
LEAST_PERCENT = 90
COLUMNS = ("mutants", "killed", "refused", "survived", "untested")
_COLUMN = {
    "killed": "killed",
    "timeout": "killed",
    "segfault": "killed",
    "suspicious": "killed",
    "caught by type check": "refused",
    "survived": "survived",
    "no tests": "untested",
}
_NONE = "no mutant has this name"


def run(names: list[str]) -> None:
    """Have mutmut make all mutants and run those with the given names, all if there are none."""
    subprocess.run(["mutmut", "run", *names], env=environment(), check=not names)


def environment() -> dict[str, str]:
    """Return variables with which mutmut and mypy are found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path}


def results() -> dict[str, str]:
    """Return each mutant's result in mutmut's words, by name."""
    from mutmut.stats import status_by_exit_code  # of the development environment only

    return {
        name: status_by_exit_code[code]
        for file in sorted(MUTANTS.rglob("*.meta"))
        for name, code in json.loads(file.read_bytes())["exit_code_by_key"].items()
    }


def table(statuses: dict[str, str]) -> list[str]:
    """Return the lines of a table with a row for each module, and one for all."""
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, status in statuses.items():
        module = name.rpartition(".")[0].removeprefix("envbuilder.")
        for row in (module, "all"):
            rows[row].update(["mutants", _COLUMN.get(status, status)])
    total = rows.pop("all", Counter())
    lines = [f"{'module':38}" + "".join(f"{column:>9}" for column in COLUMNS)]
    for name, counts in [*sorted(rows.items()), ("all", total)]:
        lines.append(f"{name:38}" + "".join(f"{counts[column]:9}" for column in COLUMNS))
    return lines


def noticed_percent(statuses: dict[str, str]) -> float:
    """Return the share of mutants that a test killed or mypy refused, 0 without mutants."""
    noticed = sum(_COLUMN.get(status) in {"killed", "refused"} for status in statuses.values())
    return 100 * noticed / len(statuses) if statuses else 0.0


def difference(name: str) -> str:
    """Return a mutant as a diff."""
    command = ["mutmut", "show", name]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return shown.stdout


def main() -> int:
    """Run the mutants that the command line selects; return the exit code."""
    layout = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=LEAST_PERCENT, metavar="PERCENT")
    options = parser.parse_args()
    if options.patterns or options.sample:
        run([_NONE])
        patterns = options.patterns or ["*"]
        names = [n for n in sorted(results()) if any(fnmatchcase(n, p) for p in patterns)]
        if options.sample and options.sample < len(names):
            chosen = random.Random(options.seed)  # noqa: S311  # mutants are no secret
            names = chosen.sample(names, options.sample)
        if not names:
            parser.error("no mutant has a name that matches")
        run(names)
        statuses = {name: status for name, status in results().items() if name in set(names)}
    else:
        run([])
        statuses = results()
    if pending := [name for name, status in statuses.items() if status not in _COLUMN]:
        sys.exit(f"{len(pending)} of {len(statuses)} mutants were not run: mutmut says why, above")
    print(*table(statuses), sep="\n")
    left = [n for n, status in statuses.items() if _COLUMN.get(status) not in {"killed", "refused"}]
    SURVIVORS.parent.mkdir(exist_ok=True)
    SURVIVORS.write_text("\n".join(f"# {name}\n{difference(name)}" for name in left))
    percent = noticed_percent(statuses)
    print(f"{percent:.1f} % noticed; the others are in {SURVIVORS}")
    return int(percent < options.least)


if __name__ == "__main__":
    raise SystemExit(main())
