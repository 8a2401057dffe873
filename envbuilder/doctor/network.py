"""Find out which indexes, mirrors and registries do not answer, and what works without them."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.containers.oci import reference
from envbuilder.containers.registry import base_images
from envbuilder.core.errors import EnvbuilderError, InvalidError, ToolError
from envbuilder.core.http import host_of, open_session, reason, request
from envbuilder.doctor.problem import Problem
from envbuilder.packages import fetch
from envbuilder.packages.python import indexes
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as profile_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import requests

    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.packages.fetch import Place
    from envbuilder.profiles.lock import File, Lock, Target
    from envbuilder.profiles.profile import Profile

TIMEOUT_SECONDS = (3.0, 4.0)
"""Timeout to connect, and between two reads."""
PATIENCE_SECONDS = 6.0
"""The longest wait for all responses together: name servers have timeouts of their own."""
_USUAL_PROJECT = "pip"
"""The page to request of an index of which the profile needs nothing."""


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


class Silence(Struct, frozen=True, kw_only=True):
    """A source that does not answer as it should."""

    source: Source
    reason: str


def look(
    profile: Profile | None,
    lock: Lock | None,
    host: Host,
    settings: Settings,
    ask: Callable[[Source], str] | None = None,
) -> tuple[Silence, ...]:
    """Ask all sources that builds of the profile use, side by side; return those that fail.

    `ask` returns why a source does not answer; empty if it does.
    """
    try:
        listed = fetch.places()
    except ToolError:  # uv does not work, which other checks report
        listed = ()
    target = profile_lock.first(lock, host.platform)
    wheels = target.of_kind("wheel") if target else ()
    tools = [f for p, f in lock.tools.items() if p == host.platform] if lock else []
    sources = [
        *_indexes(profile, (*wheels, *tools), settings, listed),
        *_registries(profile, target, host, settings),
    ]
    return silences(sources, ask or Http().ask)


def silences(
    sources: Sequence[Source],
    ask: Callable[[Source], str],
    patience: float = PATIENCE_SECONDS,
) -> tuple[Silence, ...]:
    """Return the sources that `ask` has a reason for, or for which it does not return in time."""
    reasons: dict[Source, str] = {}

    def note(source: Source) -> None:
        reasons[source] = ask(source)

    # Daemons: resolving a name cannot be interrupted, and must not delay the exit.
    threads = [threading.Thread(target=note, args=(s,), daemon=True) for s in sources]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"timed out after {patience:g} s"
    why = ((source, reasons.get(source, late)) for source in sources)
    return tuple(Silence(source=source, reason=text) for source, text in why if text)


class Http:
    """Requests with the user's proxies and certificates."""

    def __init__(self) -> None:
        self._session = open_session()
        self._direct = open_session(direct=True)

    def ask(self, source: Source) -> str:
        """Return why a source does not answer; empty if it does."""
        import requests

        local = reference.is_loopback(host_of(source.url))
        session = self._direct if local else self._session
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
    page = {file.source: indexes.canonical(file.name) for file in reversed(files)}
    usual = page.pop(indexes.DEFAULT, _USUAL_PROJECT)
    for place in listed:
        if place.url.startswith(("http://", "https://")):
            url = place.url if place.flat else f"{place.url.rstrip('/')}/{usual}/"
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
            url=f"{indexes.url(name, settings)}/{project}/",
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
    store, folders = Store.of(settings), fetch.find_links()
    missing = [
        f
        for f in files
        if not store.has(f.sha256) and not any((d / f.basename).is_file() for d in folders)
    ]
    if missing:
        count = f"{len(missing)} of the {len(files)} files"
        return f"{count} that {profile.name} takes from it are not here yet"
    return f"{profile.name} can be built, since its files are here, but not locked again"


def _registries(
    profile: Profile | None, target: Target | None, host: Host, settings: Settings
) -> Iterator[Source]:
    """Yield configured mirrors, and the registry of the profile's base image if it has none."""
    mirrors = settings.configuration.mirrors
    for registry, place in mirrors.items():
        yield Source(kind="mirror", name=registry, url=_root(place.partition("/")[0], settings))
    locked = target.base if target else None
    if profile is None or target is None or locked is None or not profile.makes_images:
        return
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
    pulled = ref == locked.ref and stored
    present = pulled or _in_engine(host, ref)
    yield Source(
        kind="registry",
        name=registry,
        url=_root(registry, settings),
        rest=f"the base image {ref} is here, so images can be built"
        if present
        else f"the base image {ref} cannot be pulled; native environments need none",
    )


def _root(registry: str, settings: Settings) -> str:
    """Return the URL at which a registry confirms that it is one."""
    plain = registry in settings.configuration.plain_http
    return f"{reference.parse(f'{registry}/any/image').root(plain_http=plain)}/v2/"


def _in_engine(host: Host, ref: str) -> bool:
    if not any(e.state == "usable" for e in host.containers.engines):
        return False
    from envbuilder.containers.engine import connection

    try:
        with connection.connect() as engine:
            return engine.image(ref) is not None
    except EnvbuilderError:
        return False


def problems(silent: Sequence[Silence]) -> list[Problem]:
    """Return a problem for each source that does not answer."""
    return [
        Problem(
            severity="limits",
            code=f"{silence.source.kind}-silent",
            text=_text(silence),
            fix=_fix(silence.source),
        )
        for silence in silent
    ]


def _text(silence: Silence) -> str:
    source, host = silence.source, host_of(silence.source.url)
    name = {
        "index": "your package index" if source.name == indexes.DEFAULT else f"index {source.name}",
        "mirror": f"the mirror of {source.name}",
        "registry": f"the registry {source.name}",
    }[source.kind]
    answers = silence.reason.startswith("HTTP ")
    how = f"answers {silence.reason}" if answers else f"does not answer ({silence.reason})"
    return f"{name} ({host}) {how}{f': {source.rest}' if source.rest else ''}"


def _fix(source: Source) -> str:
    if source.kind == "mirror":
        return f"Check mirrors: {source.name}: in envbuilder.yaml, or remove it."
    if source.kind == "registry":
        return (
            f"Use an image you have: --base-image REF, or a mirror: mirrors: {{{source.name}: …}}"
            " in envbuilder.yaml (docs/guides/mirrors.md)."
        )
    return (
        "Check the network, and HTTPS_PROXY if there is a proxy. A mirror:"
        f" {indexes.mirror_setting(source.name)}. Wheels in a folder: PIP_FIND_LINKS."
    )
