"""The steps that make a conda environment, as data."""

from __future__ import annotations

from envbuilder.core import types as words
from envbuilder.core.step import Action
from envbuilder.packages.conda.lock import Package


class InstallConda(Action, frozen=True, kw_only=True):
    """Install conda packages into a prefix, without running any script of theirs."""

    packages: tuple[Package, ...]
    subdir: words.CondaSubdir
    folder: str
    """Where their archives are: FOLDER/CHANNEL/SUBDIR/FILE."""
    channels: dict[words.Source, str]
    """Public URLs, which the prefix's own records name."""
    env: str
    """Where the prefix is made."""
    prefix: str
    """Where it will be: what its files name."""
    cache: str
    """A folder for what is only needed meanwhile; the prefix shares nothing with another."""


class Rehome(Action, frozen=True, kw_only=True):
    """Let a virtual environment find the interpreter beside it where both will be."""

    env: str
    settings: dict[str, str]
    """What pyvenv.cfg says."""
    python: str
    """The interpreter, as `bin/python` leads to it."""


class WriteActivation(Action, frozen=True, kw_only=True):
    """Write the scripts that activate a conda environment, by conda and without it."""

    env: str
    """Where it is made."""
    prefix: str
    """Where it will be."""
    venv: str
    """The virtual environment in it, where it will be; empty where there is none."""
    variables: dict[words.Variable, str]
    preload: tuple[str, ...]
    """Libraries, where they will be."""
