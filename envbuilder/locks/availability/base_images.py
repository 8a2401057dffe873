"""Check that the base images that locks name by digest are still in their registries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.containers.engine import connection as engines
from envbuilder.containers.oci import reference
from envbuilder.containers.oci.descriptor import INDEXES, MANIFESTS
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import base_images as bases
from envbuilder.containers.registry import transfer as registry
from envbuilder.containers.registry.responses import BrokenOffError
from envbuilder.core import types as words
from envbuilder.core.errors import EnvbuilderError, ToolError
from envbuilder.locks.availability.files import PARALLEL
from envbuilder.locks.availability.findings import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.containers.oci.reference import Reference
    from envbuilder.containers.registry.connection import Connection
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock

    Connect = Callable[[Reference, Settings], Connection]

_THERE, _GONE = 200, frozenset({404, 410})


class BasePin(Struct, frozen=True, kw_only=True):
    """A base image that locks name, by digest."""

    ref: str
    digest: words.Digest
    platforms: tuple[words.Platform, ...]
    profiles: tuple[str, ...]


def pins(locks: Iterable[Lock]) -> tuple[BasePin, ...]:
    """Return the digest-pinned base images of some locks, each once.

    Bases made of locked packages are left out.
    """
    found: dict[tuple[str, str], tuple[list[words.Platform], list[str]]] = {}
    for lock in locks:
        for target in lock.targets:
            if target.base is not None and target.base.digest and not target.base.suite:
                key = (target.base.ref, target.base.digest)
                platforms, profiles = found.setdefault(key, ([], []))
                platforms.append(target.platform)
                profiles.append(lock.profile)
    return tuple(
        BasePin(
            ref=ref,
            digest=digest,
            platforms=tuple(dict.fromkeys(platforms)),
            profiles=tuple(dict.fromkeys(profiles)),
        )
        for (ref, digest), (platforms, profiles) in found.items()
    )


def check(
    wanted: Sequence[BasePin],
    settings: Settings,
    progress: Progress,
    bundles: Mapping[str, frozenset[str]],
    connect: Connect = registry.connect,
) -> tuple[Finding, ...]:
    """Return the availability of each base image; nothing is downloaded.

    `bundles` is as in `files.check`.
    """

    def one(pin: BasePin) -> Finding:
        status, detail = _ask(pin, settings, connect)
        sha256 = pin.digest.removeprefix("sha256:")
        return Finding(
            name=pin.ref,
            version="",
            file=f"{pin.ref}@{pin.digest}",
            sha256=sha256,
            source=reference.parse(pin.ref).host,
            profiles=pin.profiles,
            status=status,
            detail=detail,
            elsewhere=() if status == "fine" else _elsewhere(pin, sha256, settings, bundles),
        )

    if not wanted:
        return ()
    with (
        progress.task(f"ask for {len(wanted)} base images", len(wanted)),
        ThreadPoolExecutor(PARALLEL) as pool,
    ):
        return tuple(pool.map(one, wanted))


def _ask(pin: BasePin, settings: Settings, connect: Connect) -> tuple[Status, str]:
    """Return the status of a manifest in its registry; a digest that exists proves the bytes."""
    where = reference.parse(pin.ref)
    try:
        connection = connect(where, settings)
        answer = connection.ask(
            "HEAD",
            connection.url(f"manifests/{pin.digest}"),
            pin.digest,
            accept=(_THERE, *_GONE),
            headers={"Accept": ", ".join(sorted(INDEXES | MANIFESTS))},
            retry=False,
        )
    except EnvbuilderError as error:
        return "unknown", error.message
    except BrokenOffError as error:
        return "unknown", str(error) if where.host in str(error) else f"{where.host}: {error}"
    if answer.status in _GONE:
        return "vanished", f"{where.host} has it no more"
    return "fine", ""


def _elsewhere(
    pin: BasePin, sha256: str, settings: Settings, bundles: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    kept = [p for p in pin.platforms if _is_kept(pin.digest, p, settings)]
    found = [f"the base images kept here ({', '.join(kept)})"] if kept else []
    try:
        with engines.connect() as engine:
            if engine.image(f"{pin.ref}@{pin.digest}"):
                found.append("the engine")
    except ToolError:
        pass
    return (*found, *(f"the bundle {name}" for name, held in bundles.items() if sha256 in held))


def _is_kept(digest: words.Digest, platform: words.Platform, settings: Settings) -> bool:
    """Return whether the image is on this disk and all its blobs have the right bytes."""
    try:
        layout = Layout.open(bases.folder(digest, platform, settings))
        manifest = layout.read_manifest(layout.find(platform))
        for blob in (manifest.config, *manifest.layers):
            layout.checked(blob)
    except EnvbuilderError:
        return False
    return True
