"""Native environments for other benchmarks: built where one is missing, and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENVBUILDER = str(Path(sys.executable).with_name("envbuilder"))


def build(profile: str = "cpu") -> Path:
    """The environment's folder."""
    argv = [ENVBUILDER, "build", "--profile", profile, "--backend", "venv", "--json"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return Path(json.loads(done.stdout)["artifact"]["ref"])


def allocator(prefix: Path) -> str:
    """The library that the profile preloads."""
    return str(prefix / "lib" / "envbuilder" / "libtcmalloc_minimal.so.4")


def report(prefix: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Any:
    """What the payload reports at its end, run with these arguments and further variables."""
    done = subprocess.run(
        [str(prefix / "bin" / "python"), str(prefix / "lib/envbuilder/payload.pyz"), *arguments],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])["report"]
