"""Bytecode of the modules that an environment imports, kept between the tests of its faults.

A verification compiles all that it imports, into a folder of its own: half of the time that a fault
takes. As a script this is envbuilder, whose verifications find that folder filled. Python compares
the time and size of each module, so what a fault changes is compiled anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLACES = "ENVBUILDER_TEST_BYTECODE"
"""The variable with the kept bytecode, the environment that it is of, and the one with a fault."""


def keep(prefix: Path, modules: str, folder: Path) -> Path:
    """Import modules in an environment; return the folder of their bytecode."""
    python = (prefix / "bin/python", "-I", "-X", f"pycache_prefix={folder}")
    subprocess.run([*python, "-c", f"import {modules}"], check=True, capture_output=True)
    return folder


def lay(folder: Path, kept: Path, prefix: Path, overlay: Path) -> None:
    """Fill a bytecode folder of an overlay over `prefix`, by hard links."""
    shutil.copytree(kept, folder, copy_function=os.link)
    place = folder / overlay.relative_to("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    (folder / prefix.relative_to("/")).rename(place)


def main() -> None:
    """Run envbuilder."""
    from envbuilder import cli
    from envbuilder.builds import isolation

    places = [Path(place) for place in os.environ.pop(PLACES).split(os.pathsep)]
    python = isolation.python

    def warm(executable: str, bytecode: str) -> tuple[str, ...]:
        if not Path(bytecode).exists():
            lay(Path(bytecode), *places)
        return python(executable, bytecode)

    isolation.python = warm
    cli.main()


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    main()
