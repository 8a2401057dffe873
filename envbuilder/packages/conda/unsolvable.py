"""Say why conda packages cannot be solved for a target, and what to do about it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.core.text import clipped
from envbuilder.packages.conda.lock import SUBDIRS
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core import types
    from envbuilder.packages.conda.lock import Package
    from envbuilder.profiles.profile import Profile

_LONGEST = 600
_PREAMBLE = "Cannot solve the request because of: "
_TREE = re.compile(r"^[│├└─ ]+")
_NO_CANDIDATE = re.compile(r"No candidates were found for (\S+) (\S+)\.")


class UnsolvableError(Exception):
    """No choice of packages satisfies a target; one sentence."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def declared(profile: Profile, platform: types.Platform) -> dict[str, str]:
    """Return what a profile says that machines of a platform have."""
    return profile.conda.virtual_packages.get(platform, {})


def explained(
    text: str, profile: Profile, platform: types.Platform, origin: Profile | None
) -> UnsolvableError:
    """Return the error for a failure of py-rattler's solver.

    `origin`: the profile that this one is a project's variant of.
    """
    plain = text.strip().removeprefix(_PREAMBLE)
    if match := _NO_CANDIDATE.fullmatch(plain):
        spec = match[1] if match[2] == "*" else f"{match[1]} {match[2]}"
        channels = " and ".join(profile.conda.channels)
        verb = "have" if profile.conda.channels[1:] else "has"
        plain = f"{channels} {verb} no {spec} for {SUBDIRS[platform]}"
    reason = clipped(" ".join(_TREE.sub("", line) for line in plain.splitlines()), _LONGEST)
    return UnsolvableError(reason, _hint(plain, profile, platform, origin))


def _hint(text: str, profile: Profile, platform: types.Platform, origin: Profile | None) -> str:
    missing = sorted({w for w in text.replace(",", " ").split() if w.startswith("__")})
    if missing:
        virtual = declared(profile, platform)
        says = ", ".join(f"{n} {virtual[n]}" if n in virtual else f"no {n}" for n in missing)
        return (
            f"The profile declares {says} for {platform} (conda.virtual_packages): what the"
            " machine has is said there, and never taken from the one that locks."
        )
    if origin is None:
        return "Change the profile's conda.packages."
    of_project = [p for p in profile.conda.packages if p not in origin.conda.packages]
    lists = f"The project's files list {', '.join(of_project) or 'no conda packages'}"
    if origin.conda.packages:
        lists += f", profile '{origin.name}' {', '.join(origin.conda.packages)}"
    return f"{clipped(lists, _LONGEST)}. Change the files, or list what PyPI has under pip:."


def require_no_framework(profile: Profile, packages: Sequence[Package]) -> None:
    """Raise `UnsolvableError` if conda packages bring the framework beside that of the profile."""
    framework = FRAMEWORKS[profile.framework]
    present = {package.name: package for package in packages if framework.in_conda(package.name)}
    if not present or profile.conda.framework == "conda":
        return
    others = [package for package in packages if package.name not in present]
    pairs = ((p, name) for name in sorted(present) for p in others if name in p.dependencies)
    dependent, name = next(pairs, (None, min(present)))
    what = f"{name} {present[name].version} of {present[name].channel}"
    says = f"{dependent.name} {dependent.version} requires {what}" if dependent else what
    raise UnsolvableError(
        f"{says}, but {framework.title} comes from the profile's wheels",
        f"List {dependent.name if dependent else name} under pip: in environment.yml instead.",
    )
