#!/usr/bin/env python3
"""Set up envbuilder from a checkout with nothing but Python 3.11 or newer, then do the main job.

    python3 bootstrap.py               detect this machine, build its environment, verify it
                                       (minutes on two cores)
    python3 bootstrap.py test [ARG…]   set up and run the tests (ARG… goes to pytest)
    python3 bootstrap.py test --all    the slow ones, too: what CI runs
    python3 bootstrap.py setup [SET]   only set up .venv; SET: run (the default), test or dev

Everything goes into `.venv` beside this file; a second run reuses it. What is installed is locked
by hash in `requirements/SET.txt`. pip's settings for indexes, mirrors, find-links and proxies hold.
"""

# An older Python must get as far as starting a newer one: Python 3.6 can read this file.
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 14)  # what requirements/ is locked for
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "envbuilder-setup"
SETS = ("run", "test", "dev")  # each holds all of those before it
# Where packages come from, and how they are reached. Nothing else of pip's settings is handed on:
# a target folder, a constraint or another interpreter would put other things in other places.
PIP_SETTINGS = (
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "cert"),
    *("client-cert", "keyring-provider", "timeout", "default-timeout", "retries", "cache-dir"),
    *("no-cache-dir", "no-input", "use-feature", "use-deprecated"),
)


def main(arguments: "list[str]") -> int:
    """Set up, then run what was asked for; returns its exit code."""
    version = sys.version_info[:2]
    other = "" if OLDEST <= version <= NEWEST else _other_python(version)
    if other:
        return subprocess.call([other, __file__, *arguments])
    if version < OLDEST:
        return _fail(
            "envbuilder needs Python 3.11 or newer, and none was found on PATH (this is"
            f" {version[0]}.{version[1]}).\n"
            "Start it with one: /path/to/python3.11 bootstrap.py"
        )
    job, more = (arguments[0], arguments[1:]) if arguments else ("verify", [])
    requirement_set = {"verify": "run", "test": "test", "setup": " ".join(more) or "run"}.get(job)
    if requirement_set not in SETS:
        asked = job in {"-h", "--help"}
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    problem = _set_up(requirement_set)
    if problem:
        return _fail(problem)
    return _run(job, more)


def _run(job: str, more: "list[str]") -> int:
    """Do a job in `.venv`; returns its exit code."""
    envbuilder = VENV / "bin" / "envbuilder"
    if job == "setup":
        print(f"ready: {envbuilder}")
        return 0
    if job == "test":
        # Three at a time: many tests wait for a child or an engine, or use one core.
        workers = ("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
        # They start envbuilder a thousand times: without bytecode a start takes twice as long.
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.call([PYTHON, "-m", "pytest", *workers, *more], cwd=ROOT, env=environ)
    subprocess.call([envbuilder, "detect"])
    return subprocess.call([envbuilder, "verify", "--backend", "venv", *more])


def _fail(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return 4


def _other_python(version: "tuple[int, ...]") -> str:
    """Return a Python on PATH that the requirements are locked for, or one newer than too old."""
    minors = list(range(NEWEST[1], OLDEST[1] - 1, -1))
    if version < OLDEST:
        minors += range(21, NEWEST[1], -1)
    for minor in minors:
        other = shutil.which(f"python3.{minor}")
        # Executed, not just found: pyenv's shims are on PATH for versions that are not active.
        if other and _quiet(other, "-c", "") == 0:
            return other
    return ""


def _set_up(requirement_set: str) -> str:
    """Make `.venv` and install this checkout into it; returns what went wrong, if anything did."""
    locked = {name: ROOT / "requirements" / f"{name}.txt" for name in SETS}
    # Scripts and the editable install hold full paths: a checkout that was moved needs new ones.
    state = hashlib.sha256(os.fsencode(ROOT))
    for file in (ROOT / "pyproject.toml", *locked.values()):
        if not file.is_file():
            return f"{file}: not found: this is no complete checkout of envbuilder"
        state.update(hashlib.sha256(file.read_bytes()).digest())
    installed = STAMP.read_text().split() if STAMP.exists() else []
    newest = max(NEWEST, sys.version_info[:2])
    fits = f"import sys; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {newest})"
    works = _quiet(PYTHON, "-c", fits) == 0
    if works and installed[:1] == [state.hexdigest()] and requirement_set in installed:
        return ""
    problem = _provide_venv(works) or _install(locked[requirement_set])
    if not problem:
        held = SETS[: SETS.index(requirement_set) + 1]
        STAMP.write_text(" ".join((state.hexdigest(), *held)) + "\n")
    return problem


def _provide_venv(works: bool) -> str:
    """Make `.venv` unless it has a Python that works, and pip; returns what went wrong."""
    if not works and os.path.lexists(PYTHON):
        # Its Python is gone, too old or too new. What we made is made again; no other folder is.
        if not STAMP.exists():
            return f"{PYTHON}: no working Python that fits; remove {VENV}, then run this again"
        shutil.rmtree(VENV)
    # A killed run may have left an interpreter without pip.
    if works and _quiet(PYTHON, "-c", "import pip") == 0:
        return ""
    return _make_venv()


def _install(locked: Path) -> str:
    """Install what is locked, then this checkout; returns what went wrong, if anything did."""
    if STAMP.exists():
        STAMP.write_text("")  # what an interrupted run leaves is neither the old nor the new state
    print("· install envbuilder into .venv", file=sys.stderr)
    code, messages = _pip("--require-hashes", "--only-binary", ":all:", "--requirement", locked)
    if code != 0:
        return f"pip could not install {locked.relative_to(ROOT)}: {_advice(messages)}"
    # The build backend is among what was just installed: nothing is fetched.
    itself = ("--no-index", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    if _pip(*itself)[0] != 0:
        return (
            "pip could not install envbuilder itself; its message is above.\nIf that is about"
            f" something else in {VENV}, remove that folder and run this again."
        )
    return ""


def _pip(*arguments: object) -> "tuple[int, str]":
    """Run `pip install` in `.venv`; returns its exit code and what it wrote to stderr."""
    # Compiling everything takes longer than installing it; Python compiles what is imported.
    command = [PYTHON, "-I", "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    with subprocess.Popen(
        [str(c) for c in command],
        env=_pip_environment(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        messages = []
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                messages.append(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode, "".join(messages)


def _pip_environment() -> "dict[str, str]":
    """Return variables with PIP_SETTINGS, from pip's files and variables alike, and no others."""
    from envbuilder.core import pip

    options = pip.merged(os.environ, pip.texts(os.environ, prefix=VENV))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    for name in PIP_SETTINGS:
        if options.get(name):
            environment["PIP_" + name.upper().replace("-", "_")] = options[name]
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return environment


def _advice(messages: str) -> str:
    """Say what pip's messages mean and what to do about it."""
    if "DO NOT MATCH THE HASHES" in messages:
        return (
            "a file is not the one that is locked; pip's message above names it and its source.\n"
            "Nothing was installed. The package index, mirror or find-links folder has other bytes"
            " under that name: have it corrected, or use another"
            " (pip config set global.index-url URL)."
        )
    if "No space left on device" in messages:
        return "the disk is full. Make room, then run this again."
    if "Retrying (" in messages or "(from versions: none)" in messages:
        return (
            "the package index cannot be reached, or lacks that package.\nCheck the network, the"
            " proxy (HTTPS_PROXY) and the index that pip is set up with (pip config list), then"
            " run this again."
        )
    if "No matching distribution" in messages:
        oldest, newest = ("{}.{}".format(*version) for version in (OLDEST, NEWEST))
        return (
            "the package index has no wheel of that version that fits here.\nA mirror may lack it:"
            " pip config list shows which index is used. The versions are locked for Python"
            f" {oldest} to {newest} on Linux (x86-64, arm64) and macOS (arm64); with another"
            " Python or platform, try `pip install .` in an environment of your own."
        )
    return "its message is above. Run this again when that is mended."


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
            if not before:
                STAMP.write_text("")  # ours, with nothing installed yet
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


def _drop_python_settings() -> None:
    """Remove variables that are meant for the caller's Python and change what runs in ours."""
    for name in [n for n in os.environ if n.startswith("PYTHON")]:
        del os.environ[name]


if __name__ == "__main__":
    _drop_python_settings()
    try:
        CODE = main(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nerror: interrupted; run it again to go on", file=sys.stderr)
        CODE = 130
    raise SystemExit(CODE)
