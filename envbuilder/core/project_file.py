"""What `envbuilder.yaml` says of a project: its environments, and for which hardware."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from envbuilder.core import types

DEFAULT = "default"
"""The environment that the top-level keys describe."""

_LIST = "Did you mean 'requirements'?"
HINTS = {
    **dict.fromkeys(
        ("packages", "dependencies", "deps", "pip", "add_requirements", "install_requires"), _LIST
    ),
    "extends": "A profile extends another, in profiles/NAME.yaml; a project names `profiles`.",
}
"""Common wrong keys → what to write instead."""

ProjectPath = Annotated[
    str,
    Meta(
        pattern=r"^(?!/)(?!(.*/)?\.\.(/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,200}\Z",
        description="the path of a file in the project, without `..`",
    ),
]
RequirementLine = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][^\x00-\x1f\x7f\\`$]{0,500}\Z",
        description="a package, such as rich>=13",
    ),
]
"""A requirement (PEP 508); the resolver's own parser checks the rest."""
Extra = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z",
        description="the name of an extra or a group",
    ),
]


class RequirementFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that lists requirements, and which of its lists count."""

    file: ProjectPath
    """Its path: `requirements.txt`, `pyproject.toml`, `uv.lock`, `pylock.toml`,
    `environment.yml`."""
    extras: tuple[Extra, ...] = ()
    """Optional dependencies of a `pyproject.toml` or `uv.lock` to include."""
    groups: tuple[Extra, ...] = ()
    """Dependency groups of a `pyproject.toml` or `uv.lock` to include."""


class Environment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an environment holds in addition to the profile of the hardware."""

    requirements: tuple[RequirementLine, ...] = ()
    """Packages (PEP 508 lines). PyTorch comes from the profile and need not be listed."""
    requirements_from: tuple[ProjectPath | RequirementFile, ...] = ()
    """Files that list more of them."""
    python: types.PythonVersion | None = None
    """The Python version; without it, the profile's default that the files allow."""
    system_packages: tuple[types.DebianPackage, ...] = ()
    """Debian packages to install in images."""
    environment: dict[types.Variable, types.VariableValue] = {}
    """Variables that are set inside."""


class Definition(Environment, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project: its top-level keys are the environment `default`."""

    profiles: tuple[types.Name, ...] | None = None
    """The profiles to support; by default all that are not opt-in."""
    environments: dict[types.Name, Environment] = {}
    """More environments: each has what the top-level keys list, and its own in addition."""
