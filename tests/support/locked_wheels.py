"""The wheels that are locked for the tests, envbuilder's own dependencies among them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import missing

FILE = Path(__file__).resolve().parents[2] / "requirements/test.txt"


def fetched(cache: Path) -> Path:
    """Return a folder with all of them, from the user's package index, once."""
    digest = hashlib.sha256(FILE.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache / "bootstrap" / digest
    if not folder.is_dir():
        part = folder.with_suffix(f".{os.getpid()}.part")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--dest",
                part,
                "--requirement",
                FILE,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            missing("network", f"the locked wheels cannot be fetched: {done.stderr[-800:]}")
        try:
            part.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(part)
    return folder
