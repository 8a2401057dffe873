"""Render a profile and its locks as native files of conda, mamba, micromamba and pixi.

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
from envbuilder.host.model import X86_FLAGS
from envbuilder.packages.conda import prefixes
from envbuilder.packages.conda.lock import SUBDIRS, Lock, Package, Target
from envbuilder.packages.python import indexes
from envbuilder.profiles import accelerators, lock as profile_lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock as WheelLock
    from envbuilder.profiles.profile import Profile

ANACONDA = "https://conda.anaconda.org"
"""The base URL at which conda, mamba and pixi look for a channel given by name only."""
_PIXI_KEYS = {"__cuda": "cuda", "__glibc": "glibc", "__linux": "linux", "__osx": "macos"}
_BASELINE = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "osx-arm64": "m1"}
"""The microarchitecture that every machine of a platform has."""


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
            f"It covers Python {covered}. {profile_lock.OTHER_PYTHON}",
        )
    return selected


# ---- environment.yml


def at_a_glance(profile: Profile, lock: WheelLock) -> tuple[tuple[str, str], ...]:
    """Return what depends on hardware, as label and text: requirements and solver assumptions."""
    rows: list[tuple[str, str]] = [("accelerator", profile.accelerator)]
    for platform in profile.platforms:
        virtual = profile.conda.virtual_packages.get(platform, {})
        rows.append((SUBDIRS[platform], ", ".join(_needs(profile, lock, platform)) or "anything"))
        rows.append(("", f"made for {virtual_text(virtual)}" if virtual else ""))
    if profile.conda.packages:
        of = ", ".join(profile.conda.channels)
        rows.append(("from conda", f"{', '.join(profile.conda.packages)}, of {of}"))
    if profile.preload:
        libraries = ", ".join(profile.preload)
        rows.append(("not in here", f"{libraries}, which envbuilder preloads in what it builds"))
    return tuple((label, text) for label, text in rows if text)


def _needs(profile: Profile, lock: WheelLock, platform: types.Platform) -> Iterator[str]:
    needed = accelerators.needs(profile, lock, platform)
    if needed.nvidia_driver:
        yield f"NVIDIA driver {needed.nvidia_driver} or newer"
    row = accelerators.needed(profile)
    if needed.kernels and row.targets:
        newer = " and newer" if needed.ptx else ""
        perhaps = f"; perhaps {' '.join(needed.partly)}" if needed.partly else ""
        yield f"{row.targets} {' '.join(needed.kernels)}{newer}{perhaps}"
    if row.hardware:
        yield row.hardware
    # The x86 flags mean nothing on other platforms.
    flags = [
        f for f in profile.requires.cpu_flags if platform == "linux/amd64" or f not in X86_FLAGS
    ]
    if flags:
        yield f"a processor with {' '.join(flags)}"
    if needed.macos:
        yield f"macOS {needed.macos}"
    if needed.glibc:
        yield f"glibc {needed.glibc}"


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


# ---- pixi


def pixi_lock(
    profile: Profile, targets: tuple[Target, ...], channels: tuple[Channel, ...], head: str
) -> str:
    """Return the pixi.lock of these targets, below the comment `head`.

    Raise `ToolError` without py-rattler.
    """
    prefixes.require_rattler()
    import tempfile
    from pathlib import Path

    from rattler import LockChannel, LockFile, LockPlatform, Subdir

    platforms = []
    for target in targets:
        virtual = []
        for name, text in sorted(target.virtual_packages.items()):
            build = "" if "=" in text else "=0"
            virtual.append(f"{name}={text}{build}")
        subdir = Subdir(target.subdir)
        name = pixi_name(profile, target)
        platforms.append(LockPlatform(name, subdir=subdir, virtual_packages=virtual))
    roots = {c.name: f"{c.url}/" for c in channels}
    lock_file = LockFile(platforms)
    lock_file.set_channels("default", [LockChannel(root) for root in roots.values()])
    for target, platform in zip(targets, platforms, strict=True):
        for package in target.packages:
            root = roots[package.channel]
            record = prefixes.record(package, f"{root}{package.as_file.file}", root)
            lock_file.add_conda_package("default", platform, record)
    with tempfile.TemporaryDirectory(prefix="envbuilder-pixi-") as folder:
        path = Path(folder) / "pixi.lock"
        lock_file.to_path(path)
        return head + path.read_text(encoding="utf-8")


def pixi_name(profile: Profile, target: Target) -> str:
    """Return pixi's name for a platform with declared virtual packages, not just its subdir."""
    return f"{profile.name}-{target.subdir}"


def pixi_platform(target: Target) -> dict[str, str]:
    """Return what pixi.toml declares about a platform's machines, with pixi's keys.

    `__unix` and the oldest microarchitecture are implied.
    """
    virtual = target.virtual_packages
    declared = {key: virtual[name] for name, key in _PIXI_KEYS.items() if name in virtual}
    build = virtual.get("__archspec", "").partition("=")[2]
    if build and build != _BASELINE[target.subdir]:
        declared["archspec"] = build
    return declared


def pixi_dependencies(wanted: Iterable[str]) -> dict[str, str]:
    """Return the names and versions requested from the channels; any version is `*`."""
    parted = (spec.partition(" ") for spec in wanted)
    return {name: version or "*" for name, _, version in parted}
