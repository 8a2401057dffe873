"""What a file requires, in one form for all kinds of files."""

from __future__ import annotations

from msgspec import Struct


class Line(Struct, frozen=True):
    """A requirement, and where it stands."""

    text: str
    """As PEP 508 has it, with normalised names; of conda packages, a spec as in a profile's
    `conda.packages`."""
    where: str
    """For messages, such as "requirements.txt:3"."""
    locked: bool = False
    """Whether a lock states it: a choice that was made once, which nobody asks for."""


class Listed(Struct, frozen=True, kw_only=True):
    """The requirements of a file."""

    requirements: tuple[Line, ...] = ()
    constraints: tuple[Line, ...] = ()
    """The versions that packages may have if they are installed, whoever requires them: exact ones
    of a lock (`name==version`, perhaps with a marker), and those of a constraints file."""
    python: str = ""
    """The Python versions that it allows, as a specifier (`>=3.10`); empty if it states none.

    It may name patch releases: to check a version such as 3.12, try all of them.
    """
    conda: tuple[Line, ...] = ()
    """Packages from conda channels, without Python itself."""
    channels: tuple[str, ...] = ()
    """The channels that they come from, in order."""
    included: tuple[str, ...] = ()
    """Other files of the project that it names, and that were read with it."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was left out, and why."""
