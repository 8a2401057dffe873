"""What conda, mamba, micromamba and pixi are given: their own files, made from profile and locks.

They name channels by what everybody can reach: the shipped URL, or for a channel of the user's own
the one that is set, never with what opens it. A name that conda would look up elsewhere than we do
is not written as a name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from envbuilder.core import types as words
from envbuilder.core.errors import InvalidError
from envbuilder.host.model import X86_FLAGS
from envbuilder.packages.conda import records
from envbuilder.packages.conda.lock import SUBDIRS, again
from envbuilder.packages.python import indexes
from envbuilder.profiles import needs as wheels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.packages.conda.lock import Lock, Package, Target
    from envbuilder.profiles.lock import Lock as WheelLock
    from envbuilder.profiles.profile import Profile

ANACONDA = "https://conda.anaconda.org"
"""Where conda, mamba and pixi look for a channel that is only a name."""
_TOKEN = re.compile(r"/t/[^/]+(?=/|\Z)")
_PIXI_KEYS = {"__cuda": "cuda", "__glibc": "glibc", "__linux": "linux", "__osx": "macos"}
_BASELINE = {"linux-64": "x86_64", "linux-aarch64": "aarch64", "osx-arm64": "m1"}
"""The microarchitecture that every machine of a platform has."""


class Channel(Struct, frozen=True, kw_only=True):
    """A channel as files for others name it."""

    name: words.Source
    url: str
    """Without credentials."""
    private: bool
    """Our own URL for it holds credentials: others need theirs."""

    @property
    def entry(self) -> str:
        """What a list of channels says: the name, where that means this very URL."""
        return self.name if self.url == f"{ANACONDA}/{self.name}" else self.url


def channel_urls(names: Iterable[str], settings: Settings) -> dict[str, str]:
    """URLs of channels: the shipped ones, whatever mirror is set; else what the user set.

    Raises `InvalidError` for a name that has none.
    """
    shipped = indexes.upstreams()
    return {n: shipped[n].url if n in shipped else indexes.url(n, settings) for n in names}


def channels(names: Iterable[str], urls: Mapping[str, str]) -> tuple[Channel, ...]:
    """Channels as rendered files name them; `InvalidError` for a folder of this machine."""
    return tuple(_channel(name, urls[name]) for name in names)


def _channel(name: str, url: str) -> Channel:
    parts = urlsplit(url)
    if parts.scheme == "file":
        raise InvalidError(
            f"the channel '{name}' is a folder of this machine, which no file for others can name",
            f"Serve it over http, and set its URL in {indexes.variable(name)}.",
        )
    host = parts.netloc.rpartition("@")[2]
    public = urlunsplit((parts.scheme, host, _TOKEN.sub("", parts.path), "", "")).rstrip("/")
    return Channel(name=name, url=public, private=public != url.rstrip("/"))


def targets(lock: Lock, python: str) -> tuple[Target, ...]:
    """The lock's targets for one Python; `InvalidError` when there are none."""
    found = tuple(t for t in lock.targets if t.python == python)
    if not found:
        known = ", ".join(sorted({t.python for t in lock.targets}))
        raise InvalidError(
            f"the conda lock of '{lock.profile}' has no Python {python}",
            f"It covers Python {known}. Make it anew: {again(lock.profile)}",
        )
    return found


# ---- environment.yml


def at_a_glance(profile: Profile, lock: WheelLock) -> tuple[tuple[str, str], ...]:
    """What differs by hardware, as label and text: what it needs, and what a solver may assume."""
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


def _needs(profile: Profile, lock: WheelLock, platform: words.Platform) -> Iterator[str]:
    needed = wheels.needs(profile, lock, platform)
    if needed.nvidia_driver:
        yield f"NVIDIA driver {needed.nvidia_driver} or newer"
    if needed.sm:
        newer = " and newer" if needed.sm_ptx else ""
        yield f"a GPU of compute capability {' '.join(needed.sm)}{newer}"
    if profile.requires.intel_gpu:
        yield "an Intel GPU, and Intel's GPU runtime (Level Zero) from the system"
    if profile.accelerator == "mps":
        yield "Apple silicon"
    # Those of x86 mean nothing elsewhere.
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
    """Virtual packages in one line."""
    return ", ".join(f"{name} {text}" for name, text in sorted(virtual.items()))


def cuda(profile: Profile) -> str:
    """The CUDA version that the profile says the driver has; empty for none."""
    stated = (v.get("__cuda", "") for v in profile.conda.virtual_packages.values())
    return next((text for text in stated if text), "")


# ---- @EXPLICIT


def explicit_name(target: Target) -> str:
    """What the explicit list of a target is called."""
    return f"conda-{target.subdir}-py{target.python.replace('.', '')}.txt"


def explicit_lines(target: Target, found: Iterable[Channel]) -> tuple[str, ...]:
    """One URL a package and the sha256 of what must be there, dependencies first.

    conda and mamba install such a list in its order, without solving.
    """
    roots = {c.name: c.url for c in found}
    return tuple(
        f"{roots[p.channel]}/{p.as_file.file}#{p.sha256}" for p in _ordered(target.packages)
    )


def _ordered(packages: Iterable[Package]) -> tuple[Package, ...]:
    """Dependencies first, else by name; a circle, as of python and pip, is cut where it is met."""
    by_name = {p.name: p for p in sorted(packages, key=lambda p: p.name)}
    done: dict[str, Package] = {}
    open_: list[tuple[str, bool]] = [(name, False) for name in reversed(by_name)]
    entered: set[str] = set()
    while open_:
        name, left = open_.pop()
        if left:
            done.setdefault(name, by_name[name])
        elif name not in entered:
            entered.add(name)
            needed = {d.partition(" ")[0] for d in by_name[name].depends} & by_name.keys()
            open_.append((name, True))
            open_ += [(n, False) for n in sorted(needed - entered, reverse=True)]
    return tuple(done.values())


# ---- pixi


def pixi_lock(
    profile: Profile, found: tuple[Target, ...], known: tuple[Channel, ...], head: str
) -> str:
    """The pixi.lock of these targets, below the comment `head`; `ToolError` without py-rattler."""
    records.require_rattler()
    import tempfile
    from pathlib import Path

    from rattler import LockChannel, LockFile, LockPlatform, Subdir

    platforms = [
        LockPlatform(
            pixi_name(profile, target),
            subdir=Subdir(target.subdir),
            virtual_packages=[
                f"{name}={text}" if "=" in text else f"{name}={text}=0"
                for name, text in sorted(target.virtual_packages.items())
            ],
        )
        for target in found
    ]
    roots = {c.name: f"{c.url}/" for c in known}
    made = LockFile(platforms)
    made.set_channels("default", [LockChannel(root) for root in roots.values()])
    for target, platform in zip(found, platforms, strict=True):
        for package in target.packages:
            root = roots[package.channel]
            record = records.record(package, f"{root}{package.as_file.file}", root)
            made.add_conda_package("default", platform, record)
    with tempfile.TemporaryDirectory(prefix="envbuilder-pixi-") as folder:
        path = Path(folder) / "pixi.lock"
        made.to_path(path)
        return head + path.read_text(encoding="utf-8")


def pixi_name(profile: Profile, target: Target) -> str:
    """What pixi calls a platform that it is told more of: not just by the folder of channels."""
    return f"{profile.name}-{target.subdir}"


def pixi_platform(target: Target) -> dict[str, str]:
    """What pixi.toml says that a platform's machines have, in pixi's words.

    `__unix` goes without saying, and so does the oldest microarchitecture.
    """
    virtual = target.virtual_packages
    said = {key: virtual[name] for name, key in _PIXI_KEYS.items() if name in virtual}
    build = virtual.get("__archspec", "").partition("=")[2]
    if build and build != _BASELINE[target.subdir]:
        said["archspec"] = build
    return said


def pixi_dependencies(wanted: Iterable[str]) -> dict[str, str]:
    """Names and versions of what is asked of the channels; any version is `*`."""
    parted = (spec.partition(" ") for spec in wanted)
    return {name: version or "*" for name, _, version in parted}
