"""What a file requires, in one form for all kinds of files."""

from __future__ import annotations

from msgspec import Struct


class Line(Struct, frozen=True):
    """A requirement, and where it stands."""

    text: str
    """As PEP 508 has it; of conda packages, a spec as in a profile's `conda.packages`."""
    where: str
    """For messages, such as "requirements.txt:3"."""


class Listed(Struct, frozen=True, kw_only=True):
    """The requirements of a file."""

    requirements: tuple[Line, ...] = ()
    versions: tuple[Line, ...] = ()
    """Exact versions to keep, of whatever is installed (`name==version`, perhaps with a marker)."""
    python: str = ""
    """The Python versions that it allows, as a specifier (`>=3.10`); empty if it states none."""
    conda: tuple[Line, ...] = ()
    """Packages from conda channels, without Python itself."""
    channels: tuple[str, ...] = ()
    """The channels that they come from, in order."""
    notes: tuple[str, ...] = ()
    """Sentences for users about what was left out."""
