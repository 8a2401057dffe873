"""What a base image has installed, wherever the image is: an OCI layout or the engine."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder import debian, dpkg_status, engine, podman
from envbuilder.errors import EnvbuilderError, InvalidError, ToolError
from envbuilder.oci import rootfs
from envbuilder.oci.layout import Layout
from envbuilder.oci.members import READ_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder import words
    from envbuilder.dpkg_status import Status


def read(ref: str, platform: words.Platform, on_progress: Callable[[str], None]) -> Status | None:
    """The dpkg status of a base image; None, and a note, where it cannot be read.

    `ref` is a folder with an OCI layout, or an image of the engine. Nothing is pulled.
    """
    try:
        if Path(ref).is_absolute():
            return of_layout(Layout.open(Path(ref)), platform)
        if not engine.configured():
            on_progress(f"{ref}: not read: no container engine was found")
            return None
        found = of_engine(engine.connect(), ref, platform)
    except EnvbuilderError as error:
        on_progress(f"{ref}: not read: {error.message}")
        return None
    if found is None:
        on_progress(f"{ref}: not read: the engine does not have it for {platform}")
    return found


def of_layout(layout: Layout, platform: words.Platform) -> Status:
    """The status in an image of an OCI layout; `InvalidError` where it has none."""
    found = rootfs.read(layout, layout.manifest(platform)).contents
    status = {p: d for p, d in found.items() if p.startswith(dpkg_status.PATHS)}
    return _parsed(status, platform, str(layout.folder))


def of_engine(client: Any, ref: str, platform: words.Platform) -> Status | None:
    """The status in an image that Docker has; None where it does not have it for this platform.

    A container is made, never started, read and removed. Raises `ToolError` where the engine fails,
    `InvalidError` for an image without a status.
    """
    if isinstance(client, podman.Podman):
        return None  # podman's client only copies whole folders out
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
    """A file of a container, or the files of a folder, by path below the root."""
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
