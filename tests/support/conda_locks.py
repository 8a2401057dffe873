"""Small conda locks, as `lock --backend conda` makes them."""

from __future__ import annotations

from envbuilder.packages.conda import lock as conda_locks
from envbuilder.packages.conda.lock import Lock, Package, Target
from envbuilder.profiles.profile import Profile


def lock_of_python(profile: Profile, build: str = "0") -> Lock:
    """The fresh lock of a profile that takes Python alone, for Linux on x86-64."""
    python = Package(
        name="python", version="3.11.2", build=build, build_number=0, subdir="linux-64",
        file=f"python-3.11.2-{build}.conda", channel="conda-forge", sha256="0" * 64, size=1 << 20,
    )  # fmt: skip
    target = Target(platform="linux/amd64", python="3.11", virtual_packages={}, packages=(python,))
    return Lock(
        schema=conda_locks.SCHEMA,
        profile=profile.name,
        inputs=conda_locks.inputs_digest(profile),
        channels=("conda-forge",),
        targets=(target,),
    )
