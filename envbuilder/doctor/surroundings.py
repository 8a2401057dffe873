"""Inspect what surrounds a build: disks, interpreters, programs, the user, indexes and registries.

This starts processes, and asks the indexes, mirrors and registries that builds use.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.containers.oci import reference
from envbuilder.containers.registry import base_images
from envbuilder.core import process, types
from envbuilder.core.errors import EnvbuilderError, InvalidError, ToolError
from envbuilder.core.http import host_of, open_session, reason, request
from envbuilder.doctor.problem import Problem
from envbuilder.host.accelerators import of_gpus
from envbuilder.packages import fetch, store
from envbuilder.packages.interpreters import require_interpreter
from envbuilder.packages.python import indexes
from envbuilder.packages.store import Disk, Room, disks, download_room, existing, unpacked
from envbuilder.profiles import lock as profile_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import requests

    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.http import Session
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.packages.fetch import Place
    from envbuilder.profiles.lock import File, Lock, Target
    from envbuilder.profiles.profile import Profile

TIMEOUT_SECONDS = (3.0, 4.0)
"""Timeout to connect, and between two reads."""
PATIENCE_SECONDS = 6.0
"""The longest wait for all responses together: name servers have timeouts of their own."""
_USUAL_PAGE = "pip/"
"""The page to request of an index of which the profile needs nothing."""
_PROGRAMS = ("nvidia-ctk", "g++", "c++", "clang++")
_VARIABLES = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class Source(Struct, frozen=True, kw_only=True):
    """A server that builds download from."""

    kind: Literal["index", "mirror", "registry"]
    name: str
    """As the configuration and locks call it."""
    url: str
    """What is requested; may hold credentials."""
    must_have: bool = False
    """Whether any status but success means that the source lacks what is needed."""
    rest: str = ""
    """What works, and what does not, while it is out of reach."""
    reason: str = ""
    """Why it does not answer as it should."""


def silent_sources(
    profile: Profile | None,
    lock: Lock | None,
    host: Host,
    settings: Settings,
) -> tuple[Source, ...]:
    """Ask all sources that builds of the profile use, side by side; return those that fail."""
    try:
        listed = fetch.places()
    except ToolError:  # uv does not work, which other checks report
        listed = ()
    target = profile_lock.first(lock, host.platform)
    files = [f for f in _files(profile, lock, host) if f.kind in {"wheel", "python", "tool"}]
    sources = [
        *_indexes(profile, files, settings, listed),
        *_registries(profile, target, host, settings),
    ]
    return silences(sources)


def silences(sources: Sequence[Source], patience: float = PATIENCE_SECONDS) -> tuple[Source, ...]:
    """Return the sources that do not answer, or not in time, with their reasons."""
    reasons: dict[Source, str] = {}

    # With the user's proxies and certificates; no proxy for this machine itself.
    sessions = {direct: open_session(direct=direct) for direct in (False, True)}

    def note(source: Source) -> None:
        reasons[source] = ask(source, sessions[reference.is_loopback(host_of(source.url))])

    # Daemons: resolving a name cannot be interrupted, and must not delay the exit.
    threads = [threading.Thread(target=note, args=(s,), daemon=True) for s in sources]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"timed out after {patience:g} s"
    answered = (replace(source, reason=reasons.get(source, late)) for source in sources)
    return tuple(source for source in answered if source.reason)


def ask(source: Source, session: Session) -> str:
    """Return why a source does not answer; empty if it does."""
    import requests

    try:
        with request(session, "GET", source.url, timeout=TIMEOUT_SECONDS) as response:
            return _objection(source, response)
    except (requests.RequestException, ValueError, OSError) as error:
        return reason(error)


def _objection(source: Source, response: requests.Response) -> str:
    """Return the status if it means that the source does not work."""
    status = response.status_code
    missing = source.kind != "index" and status == 404  # every registry answers at /v2/
    if status >= 500 or missing or (source.must_have and status >= 400):
        return f"HTTP {status} {response.reason or ''}".strip()
    return ""


def _indexes(
    profile: Profile | None, files: Sequence[File], settings: Settings, listed: Sequence[Place]
) -> Iterator[Source]:
    """Yield the user's own indexes, those that the lock's files come from, and configured ones."""
    page = {
        f.source: f.file if f.kind == "python" else f"{types.canonical(f.name)}/"
        for f in reversed(files)
        if not f.recipe
    }
    usual = page.pop(indexes.DEFAULT, _USUAL_PAGE)
    for place in listed:
        if place.url.startswith(("http://", "https://")):
            url = place.url if place.flat else f"{place.url.rstrip('/')}/{usual}"
            yield Source(
                kind="index",
                name=indexes.DEFAULT,
                url=url,
                rest=_stock(profile, files, indexes.DEFAULT, settings),
            )
    for name, project in page.items():
        yield Source(
            kind="index",
            name=name,
            url=f"{indexes.url(name, settings)}/{project}",
            must_have=True,
            rest=_stock(profile, files, name, settings),
        )
    for name in settings.configuration.indexes:
        if name not in page:
            url = indexes.url(name, settings)
            if url.startswith(("http://", "https://")):
                yield Source(kind="index", name=name, url=f"{url}/")


def _stock(profile: Profile | None, locked: Sequence[File], source: str, settings: Settings) -> str:
    """Return how many of the files that a profile takes from a source are on this machine."""
    files = [f for f in locked if f.source == source]
    if profile is None or not files:
        return ""
    local = store.Store.of(settings)
    folders = fetch.find_links()
    missing = [
        f
        for f in files
        if not local.has(f.sha256) and not any((d / f.basename).is_file() for d in folders)
    ]
    if missing:
        count = f"{len(missing)} of the {len(files)} files"
        return f"{count} that {profile.name} takes from it are not here yet"
    return f"{profile.name} can be built, since its files are here"


def _registries(
    profile: Profile | None, target: Target | None, host: Host, settings: Settings
) -> Iterator[Source]:
    """Yield configured mirrors, and the registry of the profile's base image if it has none."""
    mirrors = settings.configuration.mirrors
    for registry, place in mirrors.items():
        yield Source(kind="mirror", name=registry, url=_root(place.partition("/")[0], settings))
    if profile is None or target is None or target.base is None or not profile.makes_images:
        return
    locked = target.base
    named = settings.configuration.base_images.get(locked.ref, locked.ref)
    ref = os.environ.get("ENVBUILDER_BASE_IMAGE") or named
    if reference.is_on_disk(ref) or not locked.digest:
        return
    try:
        registry = reference.parse(ref).host
    except InvalidError:
        return
    if registry in mirrors:
        return
    stored = base_images.is_present(locked.digest, target.platform, settings)
    pulled = _asked(host, lambda engine: engine.image(ref))
    rest = f"the base image {ref} cannot be pulled; native environments need none"
    if (ref == locked.ref and stored) or not isinstance(pulled, EnvbuilderError | None):
        rest = f"the base image {ref} is here, so images can be built"
    yield Source(kind="registry", name=registry, url=_root(registry, settings), rest=rest)


def _root(registry: str, settings: Settings) -> str:
    """Return the URL at which a registry confirms that it is one."""
    plain = registry in settings.configuration.plain_http
    return f"{reference.parse(f'{registry}/any/image').root(plain_http=plain)}/v2/"


def problems(silent: Sequence[Source]) -> list[Problem]:
    """Return a problem for each source that does not answer."""
    return [
        Problem(
            severity="limits",
            code=f"{source.kind}-silent",
            text=_source_text(source),
            fix=_source_fix(source),
        )
        for source in silent
    ]


def _source_text(source: Source) -> str:
    name = {
        "index": f"index {source.name}",
        "mirror": f"the mirror of {source.name}",
        "registry": f"the registry {source.name}",
    }[source.kind]
    if source.name == indexes.DEFAULT:
        name = "your package index"
    how = f"does not answer ({source.reason})"
    if source.reason.startswith("HTTP "):
        how = f"answers {source.reason}"
    text = f"{name} ({host_of(source.url)}) {how}"
    if source.rest:
        text += f": {source.rest}"
    return text


def _source_fix(source: Source) -> str:
    if source.kind == "mirror":
        return f"Check mirrors: {source.name}: in envbuilder.yaml, or remove it."
    if source.kind == "registry":
        return (
            "Use an image you have: ENVBUILDER_BASE_IMAGE=REF, or a mirror:"
            f" mirrors: {{{source.name}: …}} in envbuilder.yaml (docs/guides/mirrors.md)."
        )
    return (
        "Check the network, and HTTPS_PROXY if there is a proxy. A mirror:"
        f" {indexes.mirror_setting(source.name)}. Wheels in a folder: PIP_FIND_LINKS."
    )


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
    """Why the shared store cannot be used; empty if it can, or if there is none."""
    backends: tuple[str, ...] = ()
    """The backends of the profile in question."""
    python: str = ""
    """Why no interpreter fits; empty if one does, or if none was searched for."""
    python_fix: str = ""
    engine: str = ""
    """Why the engine cannot be used; empty if it can, or if there is none."""
    engine_fix: str = ""
    silent: tuple[Source, ...] = ()
    """Sources of packages and images that do not answer."""


def look(profile: Profile | None, lock: Lock | None, host: Host, settings: Settings) -> Around:
    """Inspect the surroundings of this process, for building `profile`."""
    python, python_fix = _python(profile, lock, host)
    engine, engine_fix = _engine(host)
    user = _user(root=os.geteuid() == 0)
    disguises = tuple(row.disguise for row in of_gpus() if row.disguise)
    return Around(
        looked=True,
        user=user,
        joined=_joined(user),
        programs=frozenset(p for p in _PROGRAMS if process.which(p)),
        variables={
            name: value
            for name, value in os.environ.items()
            if name in _VARIABLES or name.startswith(disguises)
        },
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
        silent=silent_sources(profile, lock, host, settings),
    )


def _user(*, root: bool) -> str:
    """Return the user's name: under sudo, the caller's. Empty for a uid without a name."""
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
    """Return why no interpreter fits the native environment, and the fix; empty if one does."""
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
    """Return why the running engine cannot build, and the fix; empty if it can."""
    error = _asked(host, lambda engine: engine.require_builder())
    if isinstance(error, EnvbuilderError):
        return (error.message, error.hint)
    return ("", "")


def _asked(host: Host, question: Callable[[Engine], object]) -> object:
    """Return what the running engine answers, or its error; None without an engine."""
    if not host.containers.has_engine:
        return None
    from envbuilder.containers.engine import connection

    try:
        with connection.connect() as engine:
            return question(engine)
    except EnvbuilderError as error:
        return error


def _rooms(
    profile: Profile | None, lock: Lock | None, host: Host, settings: Settings
) -> tuple[Disk, ...]:
    """Return the disks of the store and of environments, with the space the lock's files need."""
    files = _files(profile, lock, host)
    environment = Room(folder=str(settings.envs_dir), bytes=unpacked(files))
    return disks((download_room(files, settings), environment))


def _shared_store(settings: Settings) -> str:
    if settings.shared_store:
        return store.objection(settings.shared_store)
    return ""


def _files(profile: Profile | None, lock: Lock | None, host: Host) -> tuple[File, ...]:
    """Return the lock's files for this host, and the tools that install them."""
    target = profile_lock.first(lock, host.platform)
    if lock is None or host.platform is None or target is None:
        return ()
    managed = profile is not None and profile.python.managed
    tool = lock.tools.get(host.platform)
    return (*target.fetched(managed=managed), *filter(None, [tool]))
