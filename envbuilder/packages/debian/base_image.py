"""Read which packages a base image has, from an OCI layout, the engine or the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.containers.engine import connection
from envbuilder.containers.oci import archive, reference, rootfs
from envbuilder.containers.oci import image_names as places
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.oci.members import READ_LIMIT
from envbuilder.containers.registry import base_images as bases
from envbuilder.core import console
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError
from envbuilder.core.settings import require_writable
from envbuilder.packages.debian import status as dpkg_status
from envbuilder.packages.debian import suite as debian

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core import types as words
    from envbuilder.core.settings import Settings
    from envbuilder.packages.debian.status import Status
    from envbuilder.profiles.lock import Target

_silent: set[str] = set()
"""Failed registries, not tried again: locks name many images, and each wait takes seconds."""


def read(
    ref: str,
    platform: words.Platform,
    settings: Settings,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Status | None:
    """Return the dpkg status of a base image; None, and a note, if it cannot be read.

    `ref` may name an image on disk. Otherwise the sources are, in this order: the images fetched
    earlier, the engine, and the registry; the last only for a reference with a digest.
    """
    problems = []
    ways = (_on_disk,) if places.on_disk(ref) else (_fetched, _in_engine, _in_registry)
    for way in ways:
        try:
            found = way(ref, platform, settings)
        except EnvbuilderError as error:
            problems.append(error.message)
            continue
        if found is not None:
            return found
    why = f" ({'; '.join(problems)})" if problems else ""
    on_progress(f"{ref}: cannot be read for {platform}{why}; any minimal system is assumed")
    return None


def unlike(target: Target, ref: str, settings: Settings) -> str:
    """Return a warning if the .debs of a target were chosen for another base than `ref`.

    Empty if they were not, if they fit any base, or if this base cannot be read.
    """
    locked = target.base
    if locked is None or locked.status is None or ref == f"{locked.ref}@{locked.digest}":
        return ""
    found = read(ref, target.platform, settings)
    if found is None or found.digest == locked.status:
        return ""
    return (
        f"the system packages of the lock were chosen for another base than {ref}: if something is"
        f" missing there, lock for it: envbuilder lock --upgrade --base-image {ref}"
    )


def _on_disk(ref: str, platform: words.Platform, settings: Settings) -> Status | None:
    layout = archive.opened(places.path(ref), require_writable(settings.bases_dir))
    return of_layout(layout, platform)


def _fetched(ref: str, platform: words.Platform, settings: Settings) -> Status | None:
    _, _, digest = ref.partition("@")
    folder = bases.folder(digest, platform, settings)
    if not digest or not folder.is_dir():
        return None
    return of_layout(Layout.open(folder), platform)


def _in_engine(ref: str, platform: words.Platform, settings: Settings) -> Status | None:
    del settings
    if not connection.configured():
        return None
    with connection.connect() as engine:
        return of_engine(engine, ref, platform)


def _in_registry(ref: str, platform: words.Platform, settings: Settings) -> Status | None:
    name, _, digest = ref.partition("@")
    if not digest:
        return None
    host = reference.parse(name).host
    if host in _silent:
        raise BuildError(f"{host} gave no image before")
    quiet = console.PlainProgress(lambda _: None)
    try:
        layout = bases.obtain(name, digest, platform, settings, quiet)
    except BuildError:
        _silent.add(host)
        raise
    return of_layout(layout, platform)


def of_layout(layout: Layout, platform: words.Platform) -> Status:
    """Return the status in an image of an OCI layout; raise `InvalidError` if it has none."""
    found = rootfs.read(layout, layout.manifest(platform))
    return of_contents(found.contents, platform, str(layout.folder))


def of_contents(contents: dict[str, bytes], platform: words.Platform, where: str) -> Status:
    """Return the status from files read from an image; raise `InvalidError` naming `where`."""
    status = {p: d for p, d in contents.items() if p.startswith(dpkg_status.PATHS)}
    return _parsed(status, platform, where)


def of_engine(engine: Engine, ref: str, platform: words.Platform) -> Status | None:
    """Return the status in an image of the engine; None if it cannot show it for this platform.

    Raise `ToolError` if the engine fails, `InvalidError` for an image without a status.
    """
    files = engine.files(ref, platform, dpkg_status.PATHS, READ_LIMIT)
    return None if files is None else _parsed(files, platform, ref)


def _parsed(found: dict[str, bytes], platform: words.Platform, where: str) -> Status:
    status = dpkg_status.parse(found, debian.ARCHITECTURES[platform])
    if status is None:
        raise InvalidError(f"{where}: no Debian system: it has no {dpkg_status.FILE}")
    return status
