#!/usr/bin/env python3
"""Set up envbuilder from a checkout with nothing but Python 3.11 or newer, then do the main job.

    python3 bootstrap.py               detect this machine, build its environment, verify it
    python3 bootstrap.py test [ARG…]   set up and run the tests (ARG… goes to pytest)
    python3 bootstrap.py setup         only set up .venv

Everything goes into `.venv` beside this file; a second run reuses it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def main(arguments: list[str]) -> int:
    """Set up, then run what was asked for; returns its exit code."""
    if sys.version_info < OLDEST:
        return _with_newer_python(arguments)
    job = arguments[0] if arguments else "verify"
    if job not in {"verify", "test", "setup"}:
        print(__doc__)
        return 2
    problem = _set_up("test" if job == "test" else "")
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 4
    if job == "setup":
        print(f"ready: {VENV / 'bin' / 'envbuilder'}")
        return 0
    if job == "test":
        return subprocess.call([PYTHON, "-m", "pytest", *arguments[1:]], cwd=ROOT)
    envbuilder = VENV / "bin" / "envbuilder"
    subprocess.call([envbuilder, "detect"])
    return subprocess.call([envbuilder, "verify", "--backend", "venv", *arguments[1:]])


def _with_newer_python(arguments: list[str]) -> int:
    for minor in range(20, OLDEST[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer and subprocess.call([newer, "-c", ""]) == 0:
            return subprocess.call([newer, __file__, *arguments])
    print("error: envbuilder needs Python 3.11 or newer; none was found on PATH", file=sys.stderr)
    return 4


def _set_up(extra: str) -> str:
    """Make `.venv` and install this checkout into it; returns what went wrong, if anything did."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + f" {extra}"
    stamp = VENV / "envbuilder-setup"
    done = stamp.read_text().splitlines() if stamp.exists() else []
    if wanted in done:
        return ""
    if not PYTHON.exists():
        print("· make .venv", file=sys.stderr)
        made = subprocess.run(
            [sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            return (
                f"this Python cannot make virtual environments:\n{made.stdout}{made.stderr}"
                "On Debian and Ubuntu: sudo apt install python3-venv"
            )
    print("· install envbuilder into .venv", file=sys.stderr)
    what = f"{ROOT}[{extra}]" if extra else str(ROOT)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    installed = subprocess.call(
        [PYTHON, "-m", "pip", "install", "--quiet", "--editable", what], env=environment
    )
    if installed != 0:
        return "pip could not install envbuilder; its message is above"
    stamp.write_text("\n".join([*done, wanted]) + "\n")
    return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
