"""Determine what a profile's wheels need from a host, before anything is downloaded.

The lock states the versions of torch, CUDA and ROCm, and in its wheels' file names those of the C
library and macOS. Tables state which kernels that torch contains and which driver that CUDA needs.
What a profile states itself (`requires`) takes precedence: its torch may be a custom build.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.accelerators import ACCELERATORS
from envbuilder.profiles.finding import Needs
from envbuilder.profiles.profile import sm_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.core import types
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

_GLIBC = re.compile(r"manylinux_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
_MACOS = re.compile(r"macosx_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
# PEP 600: the glibc versions of legacy manylinux tags.
_OLD_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}


def needs(
    profile: Profile, lock: Lock | None, platform: types.Platform, *, wsl: bool = False
) -> Needs:
    """Return what a profile's wheels for one platform need. All Pythons have the same torch.

    `wsl`: under WSL, where the driver is that of Windows.
    """
    requires = profile.requires
    stated = Needs(
        sm=sm_of(requires, platform),
        sm_ptx=requires.sm_ptx,
        gfx=requires.gfx,
        gfx_partly=requires.gfx_partly,
        nvidia_driver=requires.nvidia_driver,
        macos=requires.macos,
    )
    target = profile_lock.first(lock, platform)
    if target is None:
        return stated
    wheels = tuple(f.basename for f in target.of_kind("wheel"))
    locked = ACCELERATORS[profile.accelerator].locked(target, _system(wheels), wsl)
    return Needs(
        sm=stated.sm or locked.sm,
        sm_ptx=stated.sm_ptx if stated.sm else locked.sm_ptx,
        gfx=stated.gfx or locked.gfx,
        gfx_partly=stated.gfx_partly if stated.gfx else locked.gfx_partly,
        nvidia_driver=stated.nvidia_driver or locked.nvidia_driver,
        macos=stated.macos or locked.macos,
        glibc=locked.glibc,
    )


@lru_cache(maxsize=64)  # asked for every backend of every profile, several times in one command
def _system(wheels: tuple[str, ...]) -> Needs:
    """Return the versions of macOS and the C library that wheels of these file names need."""
    return Needs(
        macos=_newest(_oldest_macos(name) for name in wheels),
        glibc=_newest(_oldest_glibc(name) for name in wheels),
    )


def _tags(name: str) -> list[str]:
    """Return the platform tags of a wheel, any of which is sufficient."""
    return name.removesuffix(".whl").rpartition("-")[2].split(".")


def _oldest_glibc(name: str) -> tuple[int, int] | None:
    versions = []
    for tag in _tags(name):
        if match := _GLIBC.match(tag):
            versions.append((int(match[1]), int(match[2])))
        versions += [version for old, version in _OLD_GLIBC.items() if tag.startswith(old)]
    return min(versions, default=None)


def _oldest_macos(name: str) -> tuple[int, int] | None:
    matches = (_MACOS.match(tag) for tag in _tags(name))
    return min(((int(m[1]), int(m[2])) for m in matches if m), default=None)


def _newest(versions: Iterable[tuple[int, int] | None]) -> str:
    """Return the newest of the versions that the wheels need; empty if none is known."""
    newest = max((v for v in versions if v), default=None)
    return f"{newest[0]}.{newest[1]}" if newest else ""
