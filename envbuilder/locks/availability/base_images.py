"""Check that the base images that locks name by digest are still in their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.containers.engine import connection
from envbuilder.containers.oci import reference
from envbuilder.containers.oci.descriptor import INDEXES, MANIFESTS
from envbuilder.containers.registry import base_images, transfer
from envbuilder.containers.registry.responses import BrokenOffError
from envbuilder.core import types
from envbuilder.core.errors import EnvbuilderError, ToolError
from envbuilder.locks.availability.files import Finding, Status, each

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
    digest: types.Digest
    platforms: tuple[types.Platform, ...]
    profiles: tuple[str, ...]


def pins(locks: Iterable[Lock]) -> tuple[BasePin, ...]:
    """Return the digest-pinned base images of some locks, each once.

    Bases made of locked packages are left out.
    """
    users: dict[tuple[str, types.Digest], list[tuple[types.Platform, str]]] = {}
    for lock in locks:
        for target in lock.targets:
            base = target.base
            if base is not None and base.digest and not base.suite:
                users.setdefault((base.ref, base.digest), []).append(
                    (target.platform, lock.profile)
                )
    return tuple(
        BasePin(
            ref=ref,
            digest=digest,
            platforms=tuple(dict.fromkeys(platform for platform, _ in pairs)),
            profiles=tuple(dict.fromkeys(profile for _, profile in pairs)),
        )
        for (ref, digest), pairs in users.items()
    )


def check(
    pinned: Sequence[BasePin],
    settings: Settings,
    progress: Progress,
    bundles: Mapping[str, frozenset[str]],
    connect: Connect = transfer.connect,
) -> tuple[Finding, ...]:
    """Return the availability of each base image; nothing is downloaded.

    `bundles` is as in `files.check`.
    """

    def finding(pin: BasePin) -> Finding:
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

    task = f"check {len(pinned)} base images"
    return tuple(each(task, finding, pinned, progress)) if pinned else ()


def _ask(pin: BasePin, settings: Settings, connect: Connect) -> tuple[Status, str]:
    """Return the status of a manifest in its registry; a digest that exists proves the bytes."""
    where = reference.parse(pin.ref)
    try:
        registry = connect(where, settings)
        answer = registry.ask(
            "HEAD",
            registry.url(f"manifests/{pin.digest}"),
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
        return "vanished", f"{where.host} no longer has it"
    return "fine", ""


def _elsewhere(
    pin: BasePin, sha256: str, settings: Settings, bundles: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    platforms = [p for p in pin.platforms if base_images.intact(pin.digest, p, settings)]
    names = [f"the base images on this machine ({', '.join(platforms)})"] if platforms else []
    try:
        with connection.connect() as engine:
            if engine.image(f"{pin.ref}@{pin.digest}"):
                names.append("the engine")
    except ToolError:
        pass
    return (*names, *(f"the bundle {name}" for name, held in bundles.items() if sha256 in held))
