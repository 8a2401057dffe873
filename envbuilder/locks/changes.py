"""What a new lock of a profile changes: packages that came, left or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


def lines(before: Lock | None, after: Lock) -> list[str]:
    """Return a line for each package that changed; none for a first lock, where all are new."""
    if before is None or not before.targets or not after.targets:
        return []
    old, new = _versions(before), _versions(after)
    result = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            result.append(f"+ {name} {new[name]}")
        elif name not in new:
            result.append(f"- {name} {old[name]}")
        elif old[name] != new[name]:
            result.append(f"{name} {old[name]} → {new[name]}")
    return result


def unmoved(before: Lock | None, after: Lock, profile: Profile, names: Iterable[str]) -> list[str]:
    """Return a line for each package that was to be upgraded and was not, with the reason."""
    from packaging.utils import canonicalize_name

    old, new = _versions(before) if before else {}, _versions(after)
    fixed = dict(_fixed(profile))
    result = []
    for name in sorted({canonicalize_name(name) for name in names} & old.keys()):
        if old[name] == new.get(name):
            pin = fixed.get(name)
            why = f"{pin} is required" if pin else "it is the newest that fits the others"
            result.append(f"{name} {old[name]} stays: {why}")
    return result


def _fixed(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the packages of which a profile states the version, and how."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, (*profile.constraints, *profile.requirements)):
        if any(s.operator in {"==", "==="} for s in requirement.specifier):
            yield canonicalize_name(requirement.name), str(requirement)


def _versions(lock: Lock) -> dict[str, str]:
    """Return the versions of each package; targets may differ."""
    versions: dict[str, set[str]] = {}
    for file in (f for target in lock.targets for f in target.files if not f.role):
        versions.setdefault(file.name, set()).add(file.version)
    return {name: ", ".join(sorted(each)) for name, each in versions.items()}
