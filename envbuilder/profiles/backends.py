"""The table of backends and what each one makes, so that no other module compares names.

A new backend needs a row in this table and a module in `builds/backends/` with its `prepare`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from envbuilder.core import types


class Backend(Struct, frozen=True, kw_only=True):
    """A way to turn a profile into an environment."""

    name: types.Backend
    makes: Literal["image", "prefix"]
    """`image`: an image for a container engine. `prefix`: a folder on this machine, whose
    environment uses the machine's C library, drivers and operating system."""
    automatic: bool = True
    """Whether the backend may be used without being requested. conda may not be, unless it is a
    profile's only backend: it needs its own lock, and envbuilder ships none."""


_TABLE = (
    Backend(name="docker", makes="image"),
    Backend(name="venv", makes="prefix"),
    Backend(name="conda", makes="prefix", automatic=False),
)
BACKENDS = {backend.name: backend for backend in _TABLE}
"""The backends by name, in order of preference."""
IMAGE: types.Backend = "docker"
"""The backend to use if an image is requested without naming a backend."""
EXTERNAL: types.Backend = "venv"
"""The backend whose requirements apply to an interpreter that envbuilder did not build."""


def makes_image(name: str) -> bool:
    """Return whether a backend makes images."""
    return name in BACKENDS and BACKENDS[name].makes == "image"


def automatic(names: tuple[types.Backend, ...]) -> tuple[types.Backend, ...]:
    """Return the backends of a profile that may be used without being requested.

    If there are none, return all of them.
    """
    return tuple(name for name in names if BACKENDS[name].automatic) or names


PLATFORMS = tuple(p for p in types.PLATFORMS if p.startswith("linux/"))
"""The platforms for which images can be built."""
