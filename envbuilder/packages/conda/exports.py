"""Render a profile and its locks as native files of conda, mamba and micromamba.

These files name channels by URLs that are valid for any reader: the shipped URL, or for a channel
of the user's own the configured one, never with credentials. A channel is written as a bare name
only if conda resolves that name to the same URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import is_public, public
from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import OTHER_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.packages.conda.lock import Lock, Package, Target
    from envbuilder.profiles.profile import Profile

ANACONDA = "https://conda.anaconda.org"
"""The base URL at which conda and mamba look for a channel given by name only."""


class Channel(Struct, frozen=True, kw_only=True):
    """A channel as it is named in files for other users."""

    name: types.Source
    url: str
    """Without credentials."""
    private: bool
    """The configured URL holds credentials: other users need their own."""

    @property
    def entry(self) -> str:
        """Return the entry for a list of channels: the name, if it stands for this very URL."""
        return self.name if self.url == f"{ANACONDA}/{self.name}" else self.url


def channel_urls(names: Iterable[str], settings: Settings) -> dict[str, str]:
    """Return the URLs of channels: the shipped ones, regardless of mirrors; else the user's.

    Raise `InvalidError` for a name that has none.
    """
    shipped = indexes.upstreams()
    return {n: shipped[n].url if n in shipped else indexes.url(n, settings) for n in names}


def channels(names: Iterable[str], urls: Mapping[str, str]) -> tuple[Channel, ...]:
    """Return channels as rendered files name them; raise `InvalidError` for a local folder."""
    return tuple(_channel(name, urls[name]) for name in names)


def _channel(name: str, url: str) -> Channel:
    if urlsplit(url).scheme == "file":
        raise InvalidError(
            f"the channel '{name}' is a folder on this machine,"
            " which a file for other machines cannot name",
            f"Serve it over http, and set its URL in {indexes.variable(name)}.",
        )
    return Channel(name=name, url=public(url).rstrip("/"), private=not is_public(url))


def targets(lock: Lock, python: str) -> tuple[Target, ...]:
    """Return the lock's targets for one Python; raise `InvalidError` if there are none."""
    selected = tuple(t for t in lock.targets if t.python == python)
    if not selected:
        covered = ", ".join(sorted({t.python for t in lock.targets}))
        raise InvalidError(
            f"the conda lock of '{lock.profile}' has no Python {python}",
            f"It covers Python {covered}. {OTHER_PYTHON}",
        )
    return selected


def virtual_text(virtual: Mapping[str, str]) -> str:
    """Return virtual packages in one line."""
    return ", ".join(f"{name} {text}" for name, text in sorted(virtual.items()))


def cuda(profile: Profile) -> str:
    """Return the CUDA version that the profile declares for the driver; empty if none."""
    stated = (v.get("__cuda", "") for v in profile.conda.virtual_packages.values())
    return next((text for text in stated if text), "")


# ---- @EXPLICIT


def explicit_name(target: Target) -> str:
    """Return the file name of a target's explicit list."""
    return f"conda-{target.subdir}-py{target.python.replace('.', '')}.txt"


def explicit_lines(target: Target, channels: Iterable[Channel]) -> tuple[str, ...]:
    """Return one URL per package with the sha256 of its file, dependencies first.

    conda and mamba install such a list in its order, without solving.
    """
    roots = {c.name: c.url for c in channels}
    return tuple(
        f"{roots[p.channel]}/{p.as_file.file}#{p.sha256}" for p in _ordered(target.packages)
    )


def _ordered(packages: Iterable[Package]) -> list[Package]:
    """Sort packages by name, dependencies first; break cycles, such as that of python and pip."""
    by_name = {p.name: p for p in sorted(packages, key=lambda p: p.name)}
    ordered: list[Package] = []
    entered: set[str] = set()

    def enter(name: str) -> None:
        if name not in entered:
            entered.add(name)
            for other in sorted(by_name[name].dependencies & by_name.keys()):
                enter(other)
            ordered.append(by_name[name])

    for name in by_name:
        enter(name)
    return ordered
