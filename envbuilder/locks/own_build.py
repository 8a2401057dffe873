"""Check that a project's lock still holds the hardware's own build of the framework. Pure.

A dependency or an edit can replace it by one that installs and never uses the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


def objections(profile: Profile, lock: Lock, origin: Lock | None) -> Iterator[str]:
    """Yield what is not the hardware's own; `origin` is the lock of the profile itself."""
    theirs = {
        (target.platform, target.python, file.name): file
        for target in (origin.targets if origin else ())
        for file in target.of_kind("wheel")
    }
    framework = FRAMEWORKS[profile.framework]
    builds, foreign = framework.builds, framework.foreign(profile.accelerator)
    compilers = framework.kernel_compilers.get(profile.accelerator, frozenset())
    for target in lock.targets:
        where = f"{target.platform} Python {target.python}"
        present = {file.name for file in target.of_kind("wheel")} & compilers
        for file in target.of_kind("wheel"):
            if present and file.name in foreign:
                yield (
                    f"{where}: {file.name} {file.version} is {min(present)} for other hardware:"
                    " both install the same modules"
                )
            if file.name not in builds:
                continue
            source = profile.indexes.get(file.name, file.source)
            expected = theirs.get((target.platform, target.python, file.name))
            if file.source != source:
                yield (
                    f"{where}: {file.name} {file.version} is from {file.source}, not from {source}:"
                    " another hardware's build"
                )
            elif expected is not None and expected.sha256 != file.sha256:
                yield f"{where}: {file.name} {file.version} is not the file that the profile locks"
