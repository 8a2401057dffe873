"""What a new lock of a profile changes: packages that came, left or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def claims(lock: Lock) -> list[str]:
    """Return a line if no index stated some hashes; the lock's reason names each file."""
    names = dict.fromkeys(file.name for file in lock.files if file.provenance != "read")
    if not names:
        return []
    return [f"hashes from public lock files, which the download confirms: {', '.join(names)}"]


def grouped(lines: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return each line once, by a heading that names the locks (the keys) that it holds for.

    Those for most locks come first. There is no heading if there is one lock alone.
    """
    holders: dict[str, list[str]] = {}
    for label, each in lines.items():
        for line in dict.fromkeys(each):
            holders.setdefault(line, []).append(label)
    result: dict[str, list[str]] = {}
    for line, labels in sorted(holders.items(), key=lambda item: -len(item[1])):
        result.setdefault(_heading(labels, lines), []).append(line)
    return result


def _heading(labels: Sequence[str], every: Iterable[str]) -> str:
    others = [label for label in every if label not in labels]
    if len(others) + len(labels) == 1:
        return ""
    if not others:
        return "every lock:"
    if len(others) < len(labels):
        return f"every lock but {', '.join(others)}:"
    return f"{', '.join(labels)}:"


def _versions(lock: Lock) -> dict[str, str]:
    """Return the versions of each package; targets may differ."""
    versions: dict[str, set[str]] = {}
    for file in (f for target in lock.targets for f in target.files if not f.role):
        versions.setdefault(file.name, set()).add(file.version)
    return {name: ", ".join(sorted(each)) for name, each in versions.items()}
