"""The steps that make a conda environment, as data."""

from __future__ import annotations

from envbuilder.core import types
from envbuilder.packages.conda.lock import Package


class InstallConda(types.Action, frozen=True, kw_only=True):
    """Install conda packages into a prefix, without running any of their scripts."""

    packages: tuple[Package, ...]
    subdir: types.CondaSubdir
    folder: str
    """The folder of the archives: FOLDER/CHANNEL/SUBDIR/FILE."""
    channels: dict[types.Source, str]
    """Public URLs, which the prefix's own records name."""
    env: str
    """The path at which the prefix is made."""
    prefix: str
    """The final path of the prefix, which its files name."""
    cache: str
    """A temporary folder for this installation; the prefix shares nothing with another."""


class Rehome(types.Action, frozen=True, kw_only=True):
    """Point a virtual environment at the interpreter beside it, both at their final location."""

    env: str
    settings: dict[str, str]
    """The settings in pyvenv.cfg."""
    python: str
    """The interpreter, as the target of the link `bin/python`."""


class WriteActivation(types.Action, frozen=True, kw_only=True):
    """Write the scripts that activate a conda environment, with conda and without it."""

    env: str
    """The path at which the environment is made."""
    prefix: str
    """The final path of the environment."""
    venv: str
    """The final path of the virtual environment in it; empty if there is none."""
    variables: dict[types.Variable, str]
    preload: tuple[str, ...]
    """Final paths of libraries."""
