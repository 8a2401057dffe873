"""Inspect everything besides the host itself that a diagnosis needs to know.

This includes the disks, interpreters, programs, user and container engine. The code starts
processes, but makes no network requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from envbuilder.containers.engine import cdi
from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.settings import Settings
from envbuilder.host.model import Host
from envbuilder.packages import store
from envbuilder.packages.interpreters import require_interpreter
from envbuilder.packages.store import Disk, Room, disks, download_room, existing, unpacked
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File, Lock
from envbuilder.profiles.profile import Profile


class Around(Struct, frozen=True, kw_only=True):
    """The observed surroundings of the host. The default values mean that nothing was inspected."""

    looked: bool = False
    """Whether the machine that envbuilder runs on was inspected."""
    user: str = ""
    joined: frozenset[str] = frozenset()
    """Groups that the user has joined, but that are not yet active in this session."""
    has: Callable[[str], object] = lambda program: False
    """A function that returns whether a program is installed."""
    variables: Mapping[str, str] = {}
    """The environment variables of this process."""
    shadowing: tuple[str, ...] = ()
    """Sentences about variables and folders whose files take precedence over the environment's
    files."""
    devices: frozenset[str] = frozenset()
    """Devices of the Container Device Interface, such as "nvidia.com/gpu=0"."""
    rooms: tuple[Disk, ...] = ()
    closed: tuple[str, ...] = ()
    """Folders of envbuilder's that this user cannot write to."""
    shared_store: str = ""
    """The reason why the shared store cannot be used. Empty if it can be used, or if there is
    none."""
    altered: tuple[str, ...] = ()
    """Sentences about environments in which files shared with other environments were changed."""
    backends: tuple[str, ...] = ()
    """The backends of the requested profile."""
    python: str = ""
    """The reason why no interpreter is suitable. Empty if one is suitable, or if none was searched
    for."""
    python_fix: str = ""
    engine: str = ""
    """The reason why the container engine cannot be used. Empty if it can be used, or if there is
    none."""
    engine_fix: str = ""


class Case(Struct, frozen=True, kw_only=True):
    """The input of a diagnosis, which all checks share."""

    host: Host
    around: Around = Around()
    candidates: Sequence[Profile] = ()
    locks: Mapping[str, Lock | None] = {}
    requested: Profile | None = None
    """The profile to diagnose, or None to diagnose the profiles that fit best."""
    advice: Callable[[Profile, Host], str] = lambda profile, host: ""
    """A function that returns a sentence about a release that would work better on a host than the
    profile's release, or "" if there is no such release."""


def look(profile: Profile | None, lock: Lock | None, host: Host, settings: Settings) -> Around:
    """Return the surroundings of this process that are relevant to building `profile`."""
    python, python_fix = _python(profile, lock, host)
    engine, engine_fix = _engine(host)
    user = _user(root=os.geteuid() == 0)
    return Around(
        looked=True,
        user=user,
        joined=_joined(user),
        has=process.which,
        variables=dict(os.environ),
        devices=cdi.devices(cdi.FOLDERS),
        rooms=_rooms(profile, lock, host, settings),
        closed=tuple(
            str(folder)
            for folder in (settings.cache_dir, settings.data_dir)
            if not os.access(existing(folder), os.W_OK)
        ),
        shared_store=_shared_store(settings),
        backends=tuple(profile.backends) if profile else (),
        python=python,
        python_fix=python_fix,
        engine=engine,
        engine_fix=engine_fix,
    )


def _user(*, root: bool) -> str:
    """Return the user's name or, under sudo, the name of the user who called sudo.

    Return "" for a user id without a name.
    """
    import pwd

    # Only for sudo to root: `sudo -u other` also sets the variable.
    caller = os.environ.get("SUDO_USER", "") if root else ""
    try:
        if caller:
            return pwd.getpwnam(caller).pw_name
        return pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, ValueError):
        return ""


def _joined(user: str) -> frozenset[str]:
    import grp

    if not user:
        return frozenset()
    now = {os.getegid(), *os.getgroups()}
    return frozenset(g.gr_name for g in grp.getgrall() if user in g.gr_mem and g.gr_gid not in now)


def _python(profile: Profile | None, lock: Lock | None, host: Host) -> tuple[str, str]:
    """Return the reason why no interpreter suits a native environment, and the fix for it.

    Both are empty if an interpreter is suitable, or if none is needed.
    """
    if profile is None or lock is None:
        return "", ""
    versions = profile_lock.pythons(lock, host.platform, profile.python.default)
    if not versions or "venv" not in profile.backends:
        return "", ""
    from envbuilder.host import interpreters

    target = profile_lock.select(lock, str(host.platform), versions[0])
    try:
        if profile.python.managed:
            require_interpreter(profile, target)
        elif not target.interpreter:
            interpreters.find(None, versions, host.machine)
    except EnvbuilderError as error:
        return error.message, error.hint
    return "", ""


def _engine(host: Host) -> tuple[str, str]:
    """Return the reason why the running container engine cannot build images, and the fix.

    Both are empty if the engine can build images, or if no engine is running.
    """
    if not host.containers.has_engine:
        return "", ""
    from envbuilder.containers.engine import connection

    try:
        with connection.connect() as engine:
            engine.require_builder()
    except EnvbuilderError as error:
        return error.message, error.hint
    return "", ""


def _rooms(
    profile: Profile | None, lock: Lock | None, host: Host, settings: Settings
) -> tuple[Disk, ...]:
    """Return the disks for the store and the environments, with the space needed on each disk.

    The needed space includes both the downloaded and the unpacked files of the lock.
    """
    files = _files(profile, lock, host)
    environment = Room(folder=str(settings.envs_dir), bytes=unpacked(files))
    return disks((download_room(files, settings), environment))


def _shared_store(settings: Settings) -> str:
    if settings.shared_store:
        return store.objection(settings.shared_store)
    return ""


def _files(profile: Profile | None, lock: Lock | None, host: Host) -> tuple[File, ...]:
    """Return the lock's files for this host, including the tools that install them."""
    target = profile_lock.first(lock, host.platform)
    if lock is None or host.platform is None or target is None:
        return ()
    managed = profile is not None and profile.python.managed
    return (*target.fetched(managed=managed), *filter(None, [lock.tools.get(host.platform)]))
