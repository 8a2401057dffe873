"""Small conda locks, as `lock --backend conda` makes them."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace

from envbuilder.packages.conda import lock as conda_locks
from envbuilder.packages.conda.lock import Lock, Package, Target
from envbuilder.profiles.profile import Profile


def package(name: str, version: str = "1.0", build: str = "0", **changes: Any) -> Package:
    """A package whose content is its name."""
    made = Package(
        name=name, version=version, build=build, build_number=0, subdir="linux-64",
        file=f"{name}-{version}-{build}.conda", channel="conda-forge",
        sha256=hashlib.sha256(name.encode()).hexdigest(), size=len(name),
    )  # fmt: skip
    return replace(made, **changes)


def target_of(*packages: Package) -> Target:
    """The packages of a profile on Linux on x86-64, with Python 3.11."""
    return Target(platform="linux/amd64", python="3.11", virtual_packages={}, packages=packages)


def lock_of(profile: Profile, *packages: Package) -> Lock:
    """The fresh lock of a profile."""
    return Lock(
        schema=conda_locks.SCHEMA,
        profile=profile.name,
        inputs=conda_locks.inputs_digest(profile),
        channels=("conda-forge",),
        targets=(target_of(*packages),),
    )


def lock_of_python(profile: Profile, build: str = "0") -> Lock:
    """The fresh lock of a profile that takes Python alone."""
    return lock_of(profile, package("python", "3.11.2", build))
