"""A store that an administrator fills and other users build from, on a machine without a network.

The users are other uids on this machine, so that file modes, owners and the kernel's protection of
links are real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import envbuilder
from tests.conftest import exited, missing, succeeded
from tests.integration.conftest import lay_tiny, start_with_umask

pytestmark = pytest.mark.network
USERS = (54321, 54322)
FOLDERS = ("CACHE", "DATA", "CONFIG")
BUILD = ("build", "--profile", "tiny", "--backend", "venv", "--json")
NO_NETWORK = {
    "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
    "UV_HTTP_RETRIES": "0",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "NO_PROXY": "127.0.0.1",
}


ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    # The interpreter of this environment may be below root's home folder, as uv's often are.
    "PYTHONPATH": f"{Path(envbuilder.__file__).parents[1]}:{Path(msgspec.__file__).parents[1]}",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def as_user(uid: int, argv: list[str], environment: dict[str, str], folder: Path) -> Any:
    """Run a program as a user who is in no group but their own."""
    return subprocess.run(
        argv,
        env=environment,
        cwd=folder,
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )


def usable(python: str) -> bool:
    """Whether another user can run envbuilder with this interpreter."""
    argv = [python, "-c", "import envbuilder.cli, msgspec"]
    try:
        return as_user(USERS[0], argv, ENVIRONMENT, Path("/")).returncode == 0
    except OSError:
        return False


class Machine:
    """A folder that every user can reach, with a project and an administrator's cache."""

    def __init__(self, root: Path, python: str, environment: dict[str, str]) -> None:
        self.root = root
        self.project = root / "project"
        self.cache = root / "srv"
        self._python = python
        self._environment = environment

    def home(self, uid: int) -> Path:
        return self.root / f"home-{uid}"

    def admin(self, *arguments: str, umask: int = 0o022, **variables: str) -> Any:
        folders = {"CACHE": self.cache, "DATA": self.root / "data"}
        environment = {**self._environment, **variables}
        environment |= {f"ENVBUILDER_{name}_DIR": str(path) for name, path in folders.items()}
        return start_with_umask(arguments, environment, umask, self.project)

    def user(self, uid: int, *arguments: str, **variables: str) -> Any:
        home = self.home(uid)
        if not home.exists():
            home.mkdir(mode=0o755)
            os.chown(home, uid, uid)
        folders = {
            f"ENVBUILDER_{n}_DIR": str(home / n.lower()) for n in ("CACHE", "DATA", "CONFIG")
        }
        argv = [self._python, "-m", "envbuilder", *arguments]
        environment = {**ENVIRONMENT, **NO_NETWORK, **folders, "HOME": str(home), **variables}
        return as_user(uid, argv, environment, self.project)

    def open(self) -> None:
        """Open the store as the guide says."""
        folders = (self.cache / name for name in ("store", "datasets", "bases"))
        present = [str(folder) for folder in folders if folder.exists()]
        subprocess.run(["chmod", "-R", "a+rX", *present], check=True)

    def snapshot(self) -> dict[str, tuple[int, ...]]:
        """What writing to, linking from or reopening anything in the cache would change."""
        status = {str(p): p.lstat() for p in (self.cache, *self.cache.rglob("*"))}
        return {n: (s.st_mode, s.st_uid, s.st_nlink, s.st_mtime_ns) for n, s in status.items()}


@pytest.fixture
def machine(session_environment: dict[str, str], tiny_lock: str) -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("root", "other users' processes cannot be started")
    python = next(filter(usable, (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        missing("root", "other users may not read this checkout or any fitting Python")
    # pytest's own folders are closed to other users.
    root = Path(tempfile.mkdtemp(prefix="envbuilder-shared-"))
    root.chmod(0o755)
    made = Machine(root, python, session_environment)
    try:
        made.project.mkdir()
        made.cache.mkdir(mode=0o755)
        lay_tiny(made.project)
        (made.project / "profiles/locks/tiny.json").write_text(tiny_lock)
        yield made
    finally:
        shutil.rmtree(root)


@pytest.fixture
def filled(machine: Machine) -> Machine:
    """The administrator built once, and opened the store as the guide says."""
    succeeded(machine.admin(*BUILD))
    machine.open()
    return machine


@pytest.mark.slow
def test_two_users_build_from_it_and_nothing_of_it_changes(filled: Machine) -> None:
    before = filled.snapshot()
    for uid in USERS:
        done = succeeded(filled.user(uid, *BUILD, ENVBUILDER_SHARED_STORE=str(filled.cache)))
        assert json.loads(done.stdout)["artifact"]["ref"].startswith(str(filled.home(uid)))
        script = "import setuptools; print(setuptools.__version__)"
        asked = (
            "run",
            "--profile",
            "tiny",
            "--backend",
            "venv",
            "--",
            "python",
            "-I",
            "-c",
            script,
        )
        ran = filled.user(uid, *asked, ENVBUILDER_SHARED_STORE=str(filled.cache))
        assert (ran.returncode, ran.stdout) == (0, "80.9.0\n"), ran.stderr
        own = [p for p in (filled.home(uid) / "cache").rglob("*") if p.stat().st_size > 100_000]
        assert own == [], "the user has a copy of their own"
    assert filled.snapshot() == before
    without = exited(1, filled.user(USERS[0], *BUILD, "--rebuild", ENVBUILDER_SHARED_STORE=""))
    assert "cannot find" in without.stderr


@pytest.mark.slow
def test_a_line_in_the_configuration_is_enough(filled: Machine) -> None:
    (filled.project / "envbuilder.yaml").write_text(f"shared_store: {filled.cache}\n")
    succeeded(filled.user(USERS[0], *BUILD))


@pytest.mark.slow
def test_wrong_bytes_in_it_are_refused(filled: Machine) -> None:
    wheel = max((filled.cache / "store/sha256").glob("*/*"), key=lambda p: p.stat().st_size)
    content = wheel.read_bytes()
    wheel.write_bytes(b"X" + content[1:])
    shared = {"ENVBUILDER_SHARED_STORE": str(filled.cache)}
    done = exited(1, filled.user(USERS[0], *BUILD, **shared))
    assert f"damaged in the shared store ({wheel})" in done.stderr
    assert not list((filled.home(USERS[0]) / "data/envs").glob("tiny*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "closed",
    ["srv", *(pytest.param(f, marks=pytest.mark.soak) for f in ("srv/store", "srv/store/sha256"))],
)
def test_one_that_is_closed_or_missing_is_named_and_not_needed(
    filled: Machine, closed: str
) -> None:
    (filled.root / closed).chmod(0o700)
    user = ("--profile", "tiny", "--json")
    for path in (filled.cache, filled.root / "not-mounted"):
        shared = {"ENVBUILDER_SHARED_STORE": str(path)}
        asked = filled.user(USERS[0], "doctor", *user, **shared)
        problems = {p["code"]: p for p in json.loads(asked.stdout)["problems"]}
        assert "the shared store cannot be used" in problems["shared-store"]["text"]
        done = filled.user(USERS[0], *BUILD, **shared)
        assert "because the shared store cannot be used" in done.stderr
        assert done.returncode == 1  # this user has no network
        assert "unexpected" not in done.stderr


@pytest.mark.slow
def test_the_cache_of_another_user_is_no_cache_of_ours(filled: Machine) -> None:
    """Neither is it used nor does it end in a defect, however it is reached."""
    first, second = USERS
    shared = {"ENVBUILDER_SHARED_STORE": str(filled.cache)}
    assert filled.user(first, *BUILD, **shared).returncode == 0
    theirs = filled.home(first)
    for mode in (0o700, 0o755, 0o777):
        for path in (theirs, theirs / "cache", theirs / "data"):
            path.chmod(mode)
        named = {f"ENVBUILDER_{n.upper()}_DIR": str(theirs / n) for n in ("cache", "data")}
        for arguments in (BUILD, (*BUILD, "--rebuild"), ("doctor",), ("clean", "--dry-run")):
            done = filled.user(second, *arguments, **shared, **named)
            assert "unexpected" not in done.stderr
            assert "defect" not in done.stderr
            if arguments[0] == "build":
                assert done.returncode in {1, 2}, done.stdout
                assert str(theirs) in done.stderr
    done = exited(2, filled.user(second, *BUILD, **shared, **named))
    assert f"belongs to uid {first}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("umask", [pytest.param(0o002, marks=pytest.mark.soak), 0o077])
def test_the_umask_of_the_administrator_does_not_matter(machine: Machine, umask: int) -> None:
    assert machine.admin(*BUILD, umask=umask).returncode == 0
    before = machine.user(USERS[0], *BUILD, ENVBUILDER_SHARED_STORE=str(machine.cache))
    assert before.returncode == 1, "folders of ours are closed"
    machine.open()
    succeeded(machine.user(USERS[0], *BUILD, ENVBUILDER_SHARED_STORE=str(machine.cache)))


@pytest.mark.slow
def test_folders_that_a_run_as_root_left_end_in_a_sentence(filled: Machine) -> None:
    (first, _), shared = USERS, {"ENVBUILDER_SHARED_STORE": str(filled.cache)}
    assert filled.user(first, *BUILD, **shared).returncode == 0
    home = filled.home(first)
    (home / "cache/store").mkdir(exist_ok=True)
    places = [home / n for n in ("cache", "data", "cache/store", "cache/logs", "data/envs")]
    for place in places:
        status = place.stat()
        os.chown(place, 0, 0)
        place.chmod(0o755)
        done = filled.user(first, *BUILD, "--rebuild", **shared)
        os.chown(place, first, first)
        place.chmod(status.st_mode & 0o777)
        assert "unexpected" not in done.stderr
        assert done.returncode in {0, 1, 2}, done.stderr
        if done.returncode:
            assert str(place) in done.stderr
            assert "ENVBUILDER_CACHE_DIR" in done.stderr or "permission" in done.stderr.lower()
    assert filled.user(first, *BUILD, "--rebuild", **shared).returncode == 0
