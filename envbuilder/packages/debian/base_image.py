"""Read which packages a base image has, from an OCI layout, the engine or the registry."""

from __future__ import annotations

import contextlib
import io
import tarfile
from typing import TYPE_CHECKING, Any

from envbuilder.containers.engine import client as engine
from envbuilder.containers.engine import podman
from envbuilder.containers.oci import archive, reference, rootfs
from envbuilder.containers.oci import image_names as places
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.oci.members import READ_LIMIT
from envbuilder.containers.registry import base_images as bases
from envbuilder.core import console
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError
from envbuilder.core.settings import require_writable
from envbuilder.packages.debian import status as dpkg_status
from envbuilder.packages.debian import suite as debian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    return of_engine(engine.connect(), ref, platform) if engine.configured() else None


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


def of_engine(client: Any, ref: str, platform: words.Platform) -> Status | None:
    """Return the status in an image that Docker has; None if it lacks it for this platform.

    A container is created, read and removed, but never started. Raise `ToolError` if the engine
    fails, `InvalidError` for an image without a status.
    """
    if isinstance(client, podman.Podman):
        return None  # podman's client can only copy whole folders out
    from docker.errors import APIError, ImageNotFound
    from requests import RequestException

    try:
        about = client.api.inspect_image(ref)
        if f"{about.get('Os')}/{about.get('Architecture')}" != platform:
            return None
        made = client.api.create_container(about["Id"], command=["none"], network_disabled=True)
        try:
            found = {
                path: data
                for wanted in dpkg_status.PATHS
                for path, data in _copied(client, made["Id"], wanted)
            }
        finally:
            with contextlib.suppress(APIError, RequestException):
                client.api.remove_container(made["Id"], force=True, v=True)
    except ImageNotFound:
        return None
    except (APIError, RequestException, OSError) as error:
        raise ToolError(f"the engine does not answer: {engine.short(error)}") from error
    return _parsed(found, platform, ref)


def _copied(client: Any, container: str, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Yield a file of a container, or the files of a folder, by path below the root."""
    from docker.errors import NotFound

    try:
        pieces, _ = client.api.get_archive(container, f"/{wanted}")
    except NotFound:
        return
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > READ_LIMIT:
            raise InvalidError(f"/{wanted}: more than {READ_LIMIT} bytes; not read")
    above = wanted.rstrip("/").rpartition("/")[0]
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is not None:
                yield f"{above}/{member.name}", stream.read()


def _parsed(found: dict[str, bytes], platform: words.Platform, where: str) -> Status:
    status = dpkg_status.parse(found, debian.ARCHITECTURES[platform])
    if status is None:
        raise InvalidError(f"{where}: no Debian system: it has no {dpkg_status.FILE}")
    return status
