"""Volumes of Docker that belong to a container's user.

A new volume belongs to root, and a container of ours can change no owner. So its folder is written
by the engine itself, from an archive, through a container that is never started.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, NotFound
from docker.types import Mount
from requests import RequestException

from envbuilder.containers.engine.interface import VOLUME_LABEL, StoredVolume, short
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = "volume"


def labelled(api: Any) -> tuple[StoredVolume, ...]:
    """Return the volumes that carry envbuilder's label."""
    listed = api.volumes(filters={"label": [VOLUME_LABEL]}).get("Volumes") or ()
    stored = (StoredVolume(name=v["Name"], labels=dict(v.get("Labels") or {})) for v in listed)
    return tuple(sorted(stored, key=lambda volume: volume.name))


def make(
    api: Any, name: str, labels: Mapping[str, str], image: str, *, user: str, userns: str | None
) -> None:
    """Make a volume that belongs to `user` (uid:gid), unless it exists.

    `image` and `userns` are those of the container that will use it.
    """
    with contextlib.suppress(NotFound):
        api.inspect_volume(name)
        return
    api.create_volume(name, labels=dict(labels))
    try:
        mount = Mount(f"/{_FOLDER}", name, type="volume")
        config = api.create_host_config(mounts=[mount], userns_mode=userns)
        container = api.create_container(
            image, command=["none"], host_config=config, network_disabled=True
        )
        try:
            api.put_archive(container["Id"], "/", _folder(user))
        finally:
            api.remove_container(container["Id"], force=True)
    except BaseException:
        with contextlib.suppress(APIError, RequestException):
            api.remove_volume(name)
        raise


def _folder(user: str) -> bytes:
    """Return an archive that holds the volume's folder as its user's own."""
    uid, _, gid = user.partition(":")
    member = tarfile.TarInfo(_FOLDER)
    member.type, member.mode = tarfile.DIRTYPE, 0o700
    member.uid, member.gid = int(uid), int(gid)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
    return data.getvalue()


def remove(api: Any, name: str) -> None:
    """Remove a volume; raise `BuildError` if it is in use or the engine fails."""
    try:
        api.remove_volume(name)
    except (APIError, RequestException) as error:
        reason = getattr(error, "explanation", None) or short(error)
        raise BuildError(
            f"{name}: cannot be removed: {reason}",
            "Stop the containers that use it, then try again.",
        ) from error
