#!/usr/bin/env python3
"""Set up envbuilder from a checkout with nothing but Python 3.11 or newer, then do the main job.

    python3 bootstrap.py               detect this machine, build its environment, verify it
    python3 bootstrap.py test [ARG…]   set up and run the tests (ARG… goes to pytest)
    python3 bootstrap.py test --all    the slow ones, too: what CI runs
    python3 bootstrap.py setup         only set up .venv

Everything goes into `.venv` beside this file; a second run reuses it.
"""

# An older Python must get as far as starting a newer one: Python 3.6 can read this file.
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
STAMP = VENV / "envbuilder-setup"


def main(arguments: "list[str]") -> int:
    """Set up, then run what was asked for; returns its exit code."""
    if sys.version_info < OLDEST:
        return _with_newer_python(arguments)
    job = arguments[0] if arguments else "verify"
    if job not in {"verify", "test", "setup"}:
        asked = job in {"-h", "--help"}
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    problem = _set_up("test" if job == "test" else "")
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 4
    envbuilder = VENV / "bin" / "envbuilder"
    if job == "setup":
        print(f"ready: {envbuilder}")
        return 0
    if job == "test":
        return subprocess.call([PYTHON, "-m", "pytest", *arguments[1:]], cwd=ROOT)
    subprocess.call([envbuilder, "detect"])
    return subprocess.call([envbuilder, "verify", "--backend", "venv", *arguments[1:]])


def _with_newer_python(arguments: "list[str]") -> int:
    for minor in range(20, OLDEST[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        # Executed, not just found: pyenv's shims are on PATH for versions that are not active.
        if newer and _quiet(newer, "-c", "") == 0:
            return subprocess.call([newer, __file__, *arguments])
    print(
        "error: envbuilder needs Python 3.11 or newer, and none was found on PATH (this is"
        f" {sys.version_info[0]}.{sys.version_info[1]}).\n"
        "Start it with one: /path/to/python3.11 bootstrap.py",
        file=sys.stderr,
    )
    return 4


def _set_up(extra: str) -> str:
    """Make `.venv` and install this checkout into it; returns what went wrong, if anything did."""
    # Scripts and the editable install hold full paths: a checkout that was moved needs new ones.
    facts = (ROOT / "pyproject.toml").read_bytes() + os.fsencode(ROOT)
    wanted = f"{hashlib.sha256(facts).hexdigest()} {extra}"
    done = STAMP.read_text().splitlines() if STAMP.exists() else []
    works = _quiet(PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))") == 0
    if works and wanted in done:
        return ""
    if not works and os.path.lexists(PYTHON):
        # Its Python is gone or too old. What we made is made anew; what somebody else made is not.
        if not STAMP.exists():
            return f"{PYTHON}: no working Python 3.11 or newer; remove {VENV}, then run this again"
        shutil.rmtree(VENV)
    # A killed run may have left an interpreter without pip.
    if not works or _quiet(PYTHON, "-c", "import pip") != 0:
        problem = _make_venv()
        if problem:
            return problem
        done = []
    print("· install envbuilder into .venv", file=sys.stderr)
    what = f"{ROOT}[{extra}]" if extra else str(ROOT)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    installed = subprocess.call(
        [PYTHON, "-m", "pip", "install", "--quiet", "--editable", what], env=environment
    )
    if installed != 0:
        return "pip could not install envbuilder; its message is above"
    STAMP.write_text("\n".join([*done, wanted]) + "\n")
    return ""


def _make_venv() -> str:
    """Make `.venv`, with whatever can; returns what went wrong, if anything did.

    Debian's Python has no ensurepip without python3-venv; virtualenv and uv do without it.
    """
    print("· make .venv", file=sys.stderr)
    before = VENV.exists()
    ways = [
        [sys.executable, "-m", "venv", VENV],
        [sys.executable, "-m", "virtualenv", "--quiet", VENV],
        ["uv", "venv", "--quiet", "--seed", "--allow-existing", "--python", sys.executable, VENV],
    ]
    said = ""
    for way in ways:
        if shutil.which(way[0]) is None:
            continue
        made = subprocess.run(way, capture_output=True, text=True, check=False)
        if made.returncode == 0 and _quiet(PYTHON, "-c", "import pip") == 0:
            return ""
        said = said or f"{made.stdout}{made.stderr}".strip()
        if not before:
            shutil.rmtree(VENV, ignore_errors=True)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        f"{sys.executable} cannot make virtual environments:\n{said}\n"
        f"On Debian and Ubuntu: sudo apt install python{version}-venv. Elsewhere, install"
        " virtualenv or uv, and run this again."
    )


def _quiet(*command: object) -> int:
    """Run a command for its exit code alone; 127 where it cannot be run at all."""
    try:
        return subprocess.call(
            [str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return 127


if __name__ == "__main__":
    try:
        CODE = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nerror: interrupted; run it again to go on", file=sys.stderr)
        CODE = 130
    raise SystemExit(CODE)
