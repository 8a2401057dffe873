"""Define the table of backends, which specifies whether a backend makes an image or a folder.

Other modules use the table instead of comparing backend names. A new backend needs a row in the
table and a module in `builds/backends/` with a `prepare` function.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from envbuilder.core import types


class Backend(Struct, frozen=True, kw_only=True):
    """A way to turn a profile into an environment."""

    name: types.Backend
    makes: Literal["image", "prefix"]
    """Either `image`, an image for a container engine, or `prefix`, a folder on this machine. An
    environment in a folder uses the machine's C library, drivers and operating system."""
    automatic: bool = True
    """Whether the backend may be used without being requested. This is false for conda, which needs
    its own lock, and envbuilder ships no such lock. Nevertheless, conda is used if it is a
    profile's only backend."""


_TABLE = (
    Backend(name="docker", makes="image"),
    Backend(name="venv", makes="prefix"),
    Backend(name="conda", makes="prefix", automatic=False),
)
BACKENDS = {backend.name: backend for backend in _TABLE}
"""The backends by name, in order of preference."""
IMAGE: types.Backend = "docker"
"""The backend to use if an image is requested without specifying a backend."""
EXTERNAL: types.Backend = "venv"
"""The backend whose requirements apply to an interpreter that envbuilder did not build."""


def makes_image(name: str) -> bool:
    """Return whether a backend makes images."""
    return name in BACKENDS and BACKENDS[name].makes == "image"


def automatic(names: tuple[types.Backend, ...]) -> tuple[types.Backend, ...]:
    """Return the backends that may be used without being requested.

    If there are none among `names`, return all of `names`.
    """
    return tuple(name for name in names if BACKENDS[name].automatic) or names


PLATFORMS = tuple(p for p in types.PLATFORMS if p.startswith("linux/"))
"""The platforms for which images can be built."""
