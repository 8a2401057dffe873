"""Where a container keeps what programs download: a volume per project, which outlasts containers.

Programs run what they find there: compiled kernels, code of hubs. So no project writes another's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from envbuilder.containers.engine.container import Volume
from envbuilder.core import files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

_FOLDER = "/tmp/.cache"  # noqa: S108 (where programs look whose home is /tmp)
_VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "XDG_CACHE_HOME": _FOLDER,
        "HF_HOME": f"{_FOLDER}/huggingface",
        "TORCH_HOME": f"{_FOLDER}/torch",
        "TRITON_CACHE_DIR": f"{_FOLDER}/triton",
    }
)
"""Variables by which programs find their cache, wherever HOME is."""


def variables(stated: Collection[str]) -> dict[str, str]:
    """Return the variables to set, but for those that are stated otherwise."""
    return {name: value for name, value in _VARIABLES.items() if name not in stated}


def with_cache(volumes: Iterable[Volume], uid: int, project: Path | None) -> tuple[Volume, ...]:
    """Return the volumes and the project's cache, unless one of them takes its place.

    Without a project, the cache is that of all commands of the user outside of projects.
    """
    volumes = tuple(volumes)
    if any(volume.target == _FOLDER for volume in volumes):
        return volumes
    ending = f"-{files.folder_identity(project)[:12]}" if project else ""
    return (*volumes, Volume(source=f"envbuilder-cache-{uid}{ending}", target=_FOLDER))
