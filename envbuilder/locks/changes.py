"""What a new lock of a profile changes: packages that came, left or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuilder.profiles.lock import Lock


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


def _versions(lock: Lock) -> dict[str, str]:
    """Return the versions of each package; targets may differ."""
    versions: dict[str, set[str]] = {}
    for file in (f for target in lock.targets for f in target.files if not f.role):
        versions.setdefault(file.name, set()).add(file.version)
    return {name: ", ".join(sorted(each)) for name, each in versions.items()}
