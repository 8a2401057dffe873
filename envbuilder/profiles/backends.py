"""The table of backends: what each one makes, so that no other module compares names.

A new backend is a row here and a module in `builds/backends/` with its `prepare`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from envbuilder.core import types


class Backend(Struct, frozen=True, kw_only=True):
    """A way to turn a profile into an environment."""

    name: types.Backend
    makes: Literal["image", "prefix"]
    """An image for a container engine, or a folder of this machine, which uses its C library,
    drivers and operating system."""
    automatic: bool = True
    """Whether it is used without being requested. conda is not, unless a profile has nothing else:
    it needs its own lock, and none is shipped."""


_TABLE = (
    Backend(name="docker", makes="image"),
    Backend(name="venv", makes="prefix"),
    Backend(name="conda", makes="prefix", automatic=False),
)
BACKENDS = {backend.name: backend for backend in _TABLE}
"""Name → backend, the preferred one first."""
IMAGE: types.Backend = "docker"
"""The backend used if only an image is requested."""
EXTERNAL: types.Backend = "venv"
"""The backend whose requirements apply to an interpreter that envbuilder did not build."""


def makes_image(name: str) -> bool:
    """Return whether a backend makes images."""
    return name in BACKENDS and BACKENDS[name].makes == "image"


def automatic(names: tuple[types.Backend, ...]) -> tuple[types.Backend, ...]:
    """Return those of a profile's backends that are used without being requested."""
    return tuple(name for name in names if BACKENDS[name].automatic) or names


PLATFORMS = tuple(p for p in types.PLATFORMS if p.startswith("linux/"))
"""Platforms of images."""
