"""Check that a project's lock holds the hardware's own framework, and files of known sources. Pure.

A dependency or an edit can replace it by one that installs and never uses the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.packages.python.indexes import DEFAULT
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.profiles.lock import File, Lock
    from envbuilder.profiles.profile import Profile


def objections(profile: Profile, lock: Lock, origin: Lock | None) -> Iterator[str]:
    """Yield what is not the hardware's own; `origin` is the lock of the profile itself."""
    theirs = {
        (target.platform, target.python, file.name): file
        for target in (origin.targets if origin else ())
        for file in target.of_kind("wheel")
    }
    framework = FRAMEWORKS[profile.framework]
    foreign = framework.foreign(profile.accelerator)
    compilers = framework.kernel_compilers.get(profile.accelerator, frozenset())
    for platform, tool in lock.tools.items():
        if wrong := _objection(tool, profile, None):
            yield f"{platform}: {tool.name} {tool.version} {wrong}"
    for target in lock.targets:
        wheels = target.of_kind("wheel")
        present = {file.name for file in wheels} & compilers
        for file in wheels:
            wrong = _objection(
                file, profile, theirs.get((target.platform, target.python, file.name))
            )
            if present and file.name in foreign:
                wrong = f"is {min(present)} for other hardware: both install the same modules"
            if wrong:
                where = f"{target.platform} Python {target.python}"
                yield f"{where}: {file.name} {file.version} {wrong}"


def _objection(file: File, profile: Profile, expected: File | None) -> str:
    """Return why a file is not the hardware's own; `expected` is the one that the profile locks."""
    is_build = file.name in FRAMEWORKS[profile.framework].builds
    source = profile.indexes.get(file.name, DEFAULT)
    if file.source != source:
        hardware = ": another hardware's build" if is_build else ""
        return f"is from {file.source}, not from {source}{hardware}"
    if expected is None:
        return ""
    if expected.sha256 != file.sha256:
        return "is not the file that the profile locks" if is_build else ""
    # By the same source, nothing more was learned of it.
    if expected.by == file.by and expected.provenance != file.provenance:
        return f"is '{expected.provenance}' in the profile's lock, not '{file.provenance}'"
    return ""
