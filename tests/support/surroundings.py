"""What surrounds a build and must not be seen in its image: caches, user, locale, clock …"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from envbuilder.core import process
from tests.conftest import missing

TURKISH = ("tr_TR", "ISO-8859-9")
"""A locale whose text is not UTF-8, and in which the capital of `i` is not `I`."""


_CLOCK = """\
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static const long long shift = %dLL;
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed)
        now->tv_sec += shift;
    return failed;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
"""


class Surrounding(Struct, frozen=True, kw_only=True):
    """What is different for one build; the defaults are how it is on this machine."""

    name: str
    warm: bool = False
    """With the caches of the build before it."""
    copied: bool = False
    """The store's files are copies, elsewhere and newer; else they are the store's own."""
    user: str = ""
    umask: int = 0o022
    clock: str = ""
    """The day (UTC) that the build's programs are told; the kernel keeps its own for files."""
    variables: dict[str, str] = {}


FIVE = (
    Surrounding(name="cold caches"),
    Surrounding(name="warm caches, another working folder", warm=True),
    Surrounding(
        name="files copied, umask 077, locale C, UTC+13, clock of 1970",
        copied=True,
        umask=0o077,
        clock="1970-01-03",
        variables={"TZ": "Pacific/Auckland", "LC_ALL": "C"},
    ),
    Surrounding(
        name="another user, files copied, umask 002, UTC-11",
        copied=True,
        user="nobody",
        umask=0o002,
        variables={"TZ": "XYZ+11", "LC_ALL": "C.UTF-8"},
    ),
    Surrounding(
        name="clock of 2041, a Turkish locale that is not UTF-8",
        clock="2041-02-03",
        variables={"TZ": "Europe/Istanbul", "LC_ALL": ".".join(TURKISH)},
    ),
)
TWO = (
    FIVE[0],
    Surrounding(
        name="all at once",
        copied=True,
        user="nobody",
        umask=0o077,
        clock="2041-02-03",
        variables={"TZ": "Pacific/Auckland", "LC_ALL": ".".join(TURKISH)},
    ),
)


class Place:
    """Folders for one build: where it starts, its caches and what it keeps of its own.

    A warm one has the caches of another place.
    """

    def __init__(self, folder: Path, caches: Path | None = None) -> None:
        self.home = folder
        self.caches = caches or folder / "caches"
        folder.mkdir()
        # Not the folder that builds start in: above the home folder no project is looked for.
        self.user_home = folder / "home"
        self.user_home.mkdir()

    @property
    def cache(self) -> Path:
        """envbuilder's own."""
        return self.caches / "envbuilder"

    def lay(self, store: Path, *, copied: bool) -> None:
        """Caches that hold nothing but the store."""
        self.cache.mkdir(parents=True)
        if copied:
            shutil.copytree(store, self.cache / "store", copy_function=shutil.copyfile)
        else:
            (self.cache / "store").symlink_to(store)

    def variables(self, around: Surrounding, locales: Path) -> dict[str, str]:
        """What a build here is told, besides what this process is."""
        decided = ("LC_", "ENVBUILDER_CACHE_DIR", "ENVBUILDER_DATA_DIR")
        own = {
            **{k: v for k, v in os.environ.items() if not k.startswith(decided)},
            "XDG_CACHE_HOME": str(self.caches),
            "XDG_DATA_HOME": str(self.home / "data"),
            "LOCPATH": str(locales),
        }
        return {**own, **({"HOME": str(self.user_home)} if around.user else {}), **around.variables}


def make_locale(folder: Path) -> Path:
    """Compile the Turkish locale into `folder`; its sources are Debian's package `locales`."""
    folder.mkdir()
    name, characters = TURKISH
    command = ["localedef", "-i", name, "-f", characters, str(folder / ".".join(TURKISH))]
    if shutil.which("localedef") is None or subprocess.run(command, check=False).returncode:
        missing("locales", "a locale cannot be compiled: apt-get install locales")
    return folder


def starting(around: Surrounding, above: Path, home: Path) -> list[str]:
    """What starts a program in a surrounding: as its user, with its clock."""
    clock = with_clock(around.clock, above) if around.clock else []
    return [*(as_user(around.user, above, home) if around.user else []), *clock]


def with_clock(day: str, folder: Path) -> list[str]:
    """What starts a program that reads another clock, as do all programs that it starts.

    A library before the C library answers Python and uv; programs that ask the kernel themselves,
    as Go's do (docker, buildx, the engine), it does not reach. Debian 12's faketime would be the
    same, but with it Python either hangs (`Event.wait`) or fails (`time.sleep`).
    """
    compiler = shutil.which("cc")
    if compiler is None:
        missing("compiler", "another clock takes a C compiler: apt-get install gcc libc6-dev")
    noon = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    source = folder / "clock.c"
    library = folder / f"clock-{day}.so"  # no space above it
    source.write_text(_CLOCK % int(noon - time.time()))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return ["env", f"LD_PRELOAD={library}"]


def require_clock(start: Sequence[str], day: str, variables: Mapping[str, str], at: Path) -> None:
    """Fails unless Python and uv read that day. uv writes a bill of materials, which has a date."""
    project = at / "project"
    project.mkdir()
    project.chmod(0o1777)  # uv writes a lock there, as whoever it is
    (project / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    ask_uv = [process.uv_path(), "export", "--quiet", "--offline", "--no-config", "--no-cache"]
    ask_uv += ["--format", "cyclonedx1.5", "--python", sys.executable]
    code = (
        "import json, subprocess, sys, time;"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True);"
        "print(time.strftime('%Y-%m-%d', time.gmtime()));"
        "print(json.loads(done.stdout)['metadata']['timestamp'][:10])"
    )
    done = subprocess.run(
        [*start, sys.executable, "-c", code, *ask_uv],
        env=variables,
        cwd=project,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.stdout.split() == [day, day], done.stderr
    shutil.rmtree(project)


def as_user(name: str, above: Path, home: Path) -> list[str]:
    """What starts a program as another user, who may speak to the engine and owns `home`.

    It may read what only root can: the interpreter of the tests may lie in root's home.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        missing("root", "only root (and setpriv) can start a program as another user")
    user = pwd.getpwnam(name)
    for path in (above, *above.parents[:3]):
        path.chmod(path.stat().st_mode | 0o011)
    for path in (home, *home.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    group = Path("/var/run/docker.sock").stat().st_gid
    reads = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={name}", f"--regid={user.pw_gid}", f"--groups={group}", *reads]
