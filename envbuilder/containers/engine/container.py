"""Describe a container to run to its end, independent of the engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from envbuilder.core.errors import InvalidError


class Devices(Struct, frozen=True, kw_only=True):
    """What a container needs to reach its device."""

    gpus: str = ""
    """NVIDIA GPUs as in `--gpus`; empty for none."""
    nodes: tuple[str, ...] = ()
    """Device files, or folders of them."""
    groups: tuple[int, ...] = ()
    """Ids of the host's groups that may open the nodes."""
    volumes: tuple[str, ...] = ()
    """Folders mounted read-only at the same path."""
    shm_size: str


class Container(Struct, frozen=True, kw_only=True):
    """A container without network and with a read-only root filesystem."""

    image: str
    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    platform: str = ""
    """Empty for the image's own."""
    user: str = ""
    """Empty for the image's own."""
    variables: Mapping[str, str] = {}
    home: str = ""
    """Working folder, a file system in memory like /tmp; empty for neither."""
    home_owner: int = 0
    """User and group id of the working folder, if the engine can set it."""
    mounts: Mapping[str, str] = {}
    """Folders of the host → paths inside, read-only."""
    devices: Devices | None = None


def bound(source: str, target: str) -> str:
    """Return the value of `--mount` for a read-only folder."""
    if "," in source:
        raise InvalidError(f"{source}: a folder with ',' in its name cannot be mounted")
    return f"type=bind,source={source},target={target},readonly"
