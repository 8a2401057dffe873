"""What the builds of one command share: layers that are made once, and turns at what is scarce."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from envbuilder.build.image.layer_cache import MadeLayers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

_DOWNLOADS = 2
"""Profiles whose files are fetched at a time. Each fetch has several connections of its own; the
second one looks for its files while the first one's large ones are on their way."""
_FEWEST, _MOST = 2, 4
"""Builds at a time on this machine, however few or many cores it has. Of two, one computes while
the engine unpacks what the other has made; each holds some hundred MB of memory."""


class Sharing:
    """The layers of some builds, and their turns.

    Each buildx instance builds one profile at a time, beside those of this machine.
    """

    def __init__(self, instances: Mapping[str, str], cores: int | None = None) -> None:
        """`instances`: profiles → the buildx instance that builds them; the others build here."""
        self.layers = MadeLayers()
        self.downloads: AbstractContextManager[object] = threading.Semaphore(_DOWNLOADS)
        self._instances = dict(instances)
        self._turns: dict[str, AbstractContextManager[object]] = {
            name: threading.Semaphore(1) for name in instances.values()
        }
        self._local = threading.Semaphore(builds_at_once(cores or _cores()))

    def turn(self, profile: str) -> AbstractContextManager[object]:
        """Return what a profile's build holds while it runs."""
        return self._turns.get(self._instances.get(profile, ""), self._local)


def builds_at_once(cores: int) -> int:
    """Return how many builds run at a time on a machine with some cores."""
    return min(max(cores // 2, _FEWEST), _MOST)


def _cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
