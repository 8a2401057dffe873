"""The engine's volumes that `envbuilder clean` may remove: those that this user's commands made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.commands.inventory import Kept
from envbuilder.containers.engine.interface import VOLUME_LABEL
from envbuilder.core.errors import BuildError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.containers.engine.interface import Engine

STAYS = "caches and data of commands in containers (--volumes removes them)"


def names(engine: Engine | None, uid: int) -> tuple[str, ...]:
    """Return the volumes that commands of a user made; an engine that does not answer has none."""
    try:
        volumes = engine.volumes() if engine else ()
    except ToolError:
        return ()
    return tuple(v.name for v in volumes if v.labels.get(VOLUME_LABEL) == str(uid))


def remove(engine: Engine | None, volumes: Iterable[str]) -> tuple[list[str], list[Kept]]:
    """Remove volumes; return the names of what is gone, and what could not be removed."""
    removed, failed = list[str](), list[Kept]()
    for name in volumes:
        assert engine is not None, "volumes are found in an engine"
        try:
            engine.remove_volume(name)
            removed.append(name)
        except BuildError as error:
            failed.append(Kept(name, error.message.removeprefix(f"{name}: cannot be removed: ")))
    return removed, failed
