"""Inspect what surrounds a build: disks, interpreters, programs, the user. Starts processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError
from envbuilder.doctor import network
from envbuilder.packages import space, store
from envbuilder.packages.space import Disk, disks, downloads, existing
from envbuilder.profiles import lock as profile_lock

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import File, Lock
    from envbuilder.profiles.profile import Profile

_PROGRAMS = ("nvidia-ctk", "g++", "c++", "clang++")
GFX_OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
"""Makes ROCm take AMD GPUs for others, 10.3.0 for gfx1030; with a suffix such as _0, one GPU."""
_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class Around(Struct, frozen=True, kw_only=True):
    """What a diagnosis needs in addition to the host; by default, nothing was inspected."""

    looked: bool = False
    """Whether the machine that envbuilder runs on was inspected."""
    user: str = ""
    joined: frozenset[str] = frozenset()
    """Groups that the user has joined, but this session does not have yet."""
    programs: frozenset[str] = frozenset()
    variables: dict[str, str] = {}
    rooms: tuple[Disk, ...] = ()
    closed: tuple[str, ...] = ()
    """Folders of envbuilder that are not writable."""
    shared_store: str = ""
    """Why the shared store cannot be used, or which of its files is damaged; empty if neither."""
    backends: tuple[str, ...] = ()
    """The backends of the profile in question."""
    python: str = ""
    """Why no interpreter fits; empty if one does, or if none was searched for."""
    python_fix: str = ""
    engine: str = ""
    """Why the engine cannot be used; empty if it can, or if there is none."""
    engine_fix: str = ""
    silent: tuple[network.Silence, ...] = ()
    """Sources of packages and images that do not answer."""


def look(profile: Profile | None, lock: Lock | None, host: Host, settings: Settings) -> Around:
    """Inspect the surroundings of this process, for building `profile`."""
    python, python_fix = _python(profile, lock, host)
    engine, engine_fix = _engine(host)
    user = _user(root=os.geteuid() == 0)
    return Around(
        looked=True,
        user=user,
        joined=_joined(user),
        programs=frozenset(p for p in _PROGRAMS if process.which(p)),
        variables={
            name: value
            for name, value in os.environ.items()
            if name in _VARIABLES or name.startswith(GFX_OVERRIDE)
        },
        rooms=_rooms(lock, host, settings),
        closed=tuple(
            str(folder)
            for folder in (settings.cache_dir, settings.data_dir)
            if not os.access(existing(folder), os.W_OK)
        ),
        shared_store=_shared_store(lock, host, settings),
        backends=tuple(profile.backends) if profile else (),
        python=python,
        python_fix=python_fix,
        engine=engine,
        engine_fix=engine_fix,
        silent=network.look(profile, lock, host, settings),
    )


def _user(*, root: bool) -> str:
    """Return the user's name: under sudo, the caller's. Empty for a uid without a name."""
    import pwd

    # Only for sudo to root: `sudo -u other` also sets the variable.
    caller = os.environ.get("SUDO_USER", "") if root else ""
    try:
        return pwd.getpwnam(caller).pw_name if caller else pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, ValueError):
        return ""


def _joined(user: str) -> frozenset[str]:
    import grp

    if not user:
        return frozenset()
    now = {os.getegid(), *os.getgroups()}
    return frozenset(g.gr_name for g in grp.getgrall() if user in g.gr_mem and g.gr_gid not in now)


def _python(profile: Profile | None, lock: Lock | None, host: Host) -> tuple[str, str]:
    """Return why no interpreter fits the native environment, and the fix; empty if one does."""
    if profile is None or lock is None:
        return "", ""
    versions = profile_lock.pythons(lock, host.platform, profile.python.default)
    if not versions or "venv" not in profile.backends:
        return "", ""
    from envbuilder.host import interpreters

    try:
        interpreters.find(None, versions, host.machine)
    except EnvbuilderError as error:
        return error.message, error.hint
    return "", ""


def _engine(host: Host) -> tuple[str, str]:
    """Return why the running engine cannot build, and the fix; empty if it can."""
    if not any(e.state == "usable" for e in host.containers.engines):
        return "", ""
    from envbuilder.containers.engine import connection

    try:
        with connection.connect() as engine:
            engine.require_builder()
    except EnvbuilderError as error:
        return error.message, error.hint
    return "", ""


def _rooms(lock: Lock | None, host: Host, settings: Settings) -> tuple[Disk, ...]:
    """Return the disks of the store and of environments, with the space the lock's files need."""
    files = _files(lock, host)
    environment = space.Room(folder=str(settings.envs_dir), bytes=space.unpacked(files))
    return disks((downloads(files, settings), environment))


def _shared_store(lock: Lock | None, host: Host, settings: Settings) -> str:
    if settings.shared_store is None:
        return ""
    why = store.objection(settings.shared_store)
    return why or store.damage(_files(lock, host), settings)


def _files(lock: Lock | None, host: Host) -> tuple[File, ...]:
    """Return the lock's files for this host, and the tools that install them."""
    target = profile_lock.first(lock, host.platform)
    tools = [f for p, f in lock.tools.items() if p == host.platform] if lock else []
    return (*target.files, *tools) if target else ()


CDI_FILE = "/etc/cdi/nvidia.yaml"
"""The path passed to `nvidia-ctk` for its specification."""
