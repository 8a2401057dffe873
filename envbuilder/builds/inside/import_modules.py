"""Import modules, each in its own process, and print the results as JSON.

Runs in an environment's Python, isolated; the processes run like the environment's commands. Its
argument is JSON: `modules`, `packages` (one module of each is imported, too), and `seconds`, the
limit for each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

_AT_ONCE = 4
"""Maximum number of processes: each may import a whole framework."""
_LONGEST = 8000
"""Maximum characters of a module's output."""
_MODULE = re.compile(r"(?!(benchmarks|docs|examples|scripts|tests?|tools)\b)[A-Za-z][\w.]*")
"""Matches modules, except those left beside a package's own."""


def modules_of(package: str) -> list[str]:
    """Return the modules in an installed package's RECORD, top-level ones first."""
    names: set[str] = set()
    for file in metadata.files(package) or ():
        if file.name == "__init__.py":
            names.add(".".join(file.parts[:-1]))
        elif file.suffix in (".py", ".so") and len(file.parts) == 1:
            names.add(file.name.partition(".")[0])
    return sorted(filter(_MODULE.fullmatch, names), key=lambda name: (name.count("."), name))


def tried(module: str, package: str, seconds: float) -> dict[str, object]:
    """Import a module in a process, without waiting for threads that it leaves behind."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import os, {module}; os._exit(0)"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
        code = done.returncode
        errors = done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        code = 1
        errors = f"TimeoutError: it did not end within {seconds:g} s"
    return {"module": module, "package": package, "code": code, "errors": errors[-_LONGEST:]}


def main(text: str) -> None:
    """Import the modules that the argument names, and print the results."""
    asked = json.loads(text)
    packages = dict.fromkeys(asked["modules"], "")
    for package in asked["packages"]:
        names = modules_of(package)
        used = [name for name in names if name in packages]
        packages.update(dict.fromkeys(used or names[:1], package))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = [*pool.map(lambda m: tried(m, packages[m], asked["seconds"]), packages)]
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
