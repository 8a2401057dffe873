"""The parts of uv.lock that are read, as uv writes them.

The format's version is 1; its revisions add keys that are not needed here. The project is the
package whose source is the lock's own folder. Its `metadata` repeats pyproject.toml; `dependencies`
and the like name locked packages, by version if there are several of a name.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

VERSION = 1


class Dependency(Struct, frozen=True):
    """A locked package that another one depends on."""

    name: str
    version: str = ""
    extra: tuple[str, ...] = ()
    marker: str = ""


class Entry(Struct, frozen=True):
    """A requirement as in pyproject.toml; the last seven keys are its source, if it has one."""

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    marker: str = ""
    index: str = ""
    git: str = ""
    url: str = ""
    path: Any = None
    directory: Any = None
    editable: Any = None
    virtual: Any = None


class Metadata(Struct, frozen=True, rename="kebab"):
    """What pyproject.toml states; markers of `requires_dist` tell the extras."""

    requires_dist: tuple[Entry, ...] = ()
    provides_extras: tuple[str, ...] = ()
    requires_dev: dict[str, tuple[Entry, ...]] = {}


class Package(Struct, frozen=True, rename="kebab", kw_only=True):
    """A locked package, or the project itself."""

    name: str
    version: str = ""
    source: dict[str, Any] = {}
    resolution_markers: tuple[str, ...] = ()
    """Where this version is used, if there are several: one of these is true."""
    dependencies: tuple[Dependency, ...] = ()
    optional_dependencies: dict[str, tuple[Dependency, ...]] = {}
    dev_dependencies: dict[str, tuple[Dependency, ...]] = {}
    metadata: Metadata = Metadata()


class Conflict(Struct, frozen=True):
    """An extra or a group that excludes others."""

    package: str
    extra: str = ""
    group: str = ""


class Manifest(Struct, frozen=True):
    """Inputs of the resolution that pyproject.toml states for uv."""

    overrides: tuple[Entry, ...] = ()


class Lock(Struct, frozen=True, rename="kebab", kw_only=True):
    """A lock."""

    version: int
    requires_python: str = ""
    conflicts: tuple[tuple[Conflict, ...], ...] = ()
    manifest: Manifest = Manifest()
    package: tuple[Package, ...] = ()
