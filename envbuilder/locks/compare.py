"""Compare a lock with its profile and with the lock that it replaces.

Because of a dependency or an edit, a lock can contain a framework build for other hardware. Such a
build can be installed, but never uses the device. Apart from that, a new lock may add packages,
drop packages, or change their versions. The functions in this module have no side effects.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from envbuilder.core import types
from envbuilder.core.errors import first
from envbuilder.core.text import memory
from envbuilder.packages.interpreters import SOURCE
from envbuilder.packages.python.indexes import DEFAULT
from envbuilder.profiles import frameworks
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.lock import changed, inputs_digest
from envbuilder.profiles.profile import Profile, is_on_pypi
from envbuilder.profiles.requirements import applies, distribution
from envbuilder.project.lines import instead_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.profiles.lock import Decided, File, Lock, Target


_MOST_OTHERS = 5
"""Maximum number of differing packages to list for one lock."""
_DIGITS = 9
"""Number of digits of a commit or a source's hash to print."""


def own_lock(origin: tuple[Profile, Lock] | None) -> Lock | None:
    """Return the lock in `origin` if it was made for the profile in `origin`.

    Return None if the lock was made for another profile of the same name, or if `origin` is None.
    """
    if origin and origin[1].inputs == inputs_digest(origin[0]):
        return origin[1]
    return None


def foreign_files(profile: Profile, lock: Lock, origin: Lock | None) -> Iterator[str]:
    """Yield a message for each file of `lock` that is not meant for the profile's hardware.

    `origin` is the profile's own lock. The files of `lock` are compared with those of `origin`.
    """
    theirs: dict[tuple[str, str, str], File] = {}
    for target in origin.targets if origin else ():
        for file in target.of_kind("wheel"):
            theirs[target.platform, target.python, file.name] = file
    framework = FRAMEWORKS[profile.framework]
    foreign = framework.foreign(profile.accelerator)
    compilers = framework.kernel_compilers.get(profile.accelerator, frozenset())
    for platform, tool in lock.tools.items():
        if wrong := _objection(tool, profile, platform, None):
            yield f"{platform}: {tool.name} {tool.version} {wrong}"
    for target in lock.targets:
        if target.interpreter and target.interpreter.source != SOURCE:
            label = f"{target.platform} Python {target.python}"
            yield f"{label}: its interpreter is from {target.interpreter.source}, not from {SOURCE}"
        wheels = target.of_kind("wheel")
        present = {file.name for file in wheels} & compilers
        for file in wheels:
            expected = theirs.get((target.platform, target.python, file.name))
            wrong = _objection(file, profile, target.platform, expected)
            if present and file.name in foreign:
                wrong = f"is {min(present)} for other hardware: both install the same modules"
            if wrong:
                label = f"{target.platform} Python {target.python}"
                yield f"{label}: {file.name} {file.version} {wrong}"


def _objection(
    file: File, profile: Profile, platform: types.Platform, expected: File | None
) -> str:
    """Return the reason why a file is wrong for this hardware, or "" if the file is not wrong.

    `expected` is the file of the same package in the profile's own lock. The two files are compared
    only if their versions are equal, because a project may choose another release.
    """
    framework = FRAMEWORKS[profile.framework]
    is_build = file.name in framework.builds
    sources = {profile.indexes.get(file.name, DEFAULT)}
    if file.recipe and not is_build:
        return ""  # built from what its recipe names, which the project chose
    if is_build and is_on_pypi(profile, platform):
        sources.add(DEFAULT)
        if file.source == DEFAULT and file.name in framework.names and "+" in file.version:
            return "is a build for other hardware"
    if file.source not in sources:
        hardware = ", a build for other hardware" if is_build else ""
        return f"is from {file.source}, not from {min(sources)}{hardware}"
    same = expected if expected and expected.version == file.version else file
    other = is_build and same.sha256 != file.sha256
    return "differs from the profile's own lock" if other else ""


def edited(lock: Lock, after: Decided | None) -> Iterator[str]:
    """Yield a message for each project file that was edited after the lock was made from it.

    `after` contains the current digests of the files.
    """
    before = lock.decision.files if lock.decision else {}
    for file, digest in after.files.items() if after else ():
        if before.get(file, digest) != digest:
            yield f"{file} was edited after the lock was made"


def decided_again(before: Lock | None, after: Decided | None) -> str:
    """Return a message that says how and why the framework release or Python version changed.

    Return an empty string if neither has changed since the earlier lock, or if the project's limits
    on them are still the same.
    """
    earlier = before.decision if before else None
    if earlier is None or after is None or earlier.limits == after.limits:
        return ""
    moved = []
    if earlier.release != after.release:
        moved.append(f"release {earlier.release} → {after.release}")
    if earlier.python != after.python:
        moved.append(f"Python {earlier.python} → {after.python}")
    limits = {*after.limits}
    reasons = {"no longer": {*earlier.limits} - limits, "now": limits.difference(earlier.limits)}
    changes_by_kind = [
        f"{word} {', '.join(sorted(lines))}" for word, lines in reasons.items() if lines
    ]
    return f"{', '.join(moved)}: {'; '.join(changes_by_kind)}" if moved else ""


def later_day(decided: Decided | None) -> str:
    """Return a message if the date limit on packages is the day of the framework release.

    Return an empty string if the project sets `as_of` itself, or if there is no date limit.
    """
    if decided is None or not decided.as_of or f"as_of {decided.as_of}" in decided.limits:
        return ""
    return (
        f"as_of: packages are from {decided.as_of} or before, the day of release {decided.release}"
    )


def in_images(lock: Lock) -> str:
    """Return a line that lists the Debian packages that wheels need in container images.

    Return an empty string if the wheels need none.
    """
    for target in lock.targets:
        if needs := target.system_packages:
            packages = ", ".join(name for name, wheels in needs.items() if wheels)
            wheels = ", ".join(sorted({*itertools.chain.from_iterable(needs.values())}))
            size = memory(sum(deb.room for deb in target.of_kind("deb")))
            return f"in images: {packages} for {wheels} ({size})"
    return ""


def dependency_problems(profile: Profile, target: Target) -> Iterator[str]:
    """Yield a message for each missing required wheel and for each wheel that nothing requires.

    Yield nothing for a profile's own lock, because such a lock does not record requirements.
    """
    from packaging.requirements import Requirement

    if not any(package.requires for package in target.packages):
        return
    wheels = {package.name: package.requires for package in target.packages}
    todo = [
        types.canonical(need.name)
        for need in map(Requirement, profile.requirements)
        if applies(need.marker, target.platform, target.python)
    ]
    reached: set[str] = set()
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += wheels.get(name, ())
    for name, requires in wheels.items():
        yield from (f"{r} is missing, but {name} requires it" for r in requires if r not in wheels)
    yield from (f"nothing requires {name}" for name in sorted(wheels.keys() - reached))


def changes(before: Lock | None, after: Lock) -> list[str]:
    """Return a line for each package that was added, removed or changed.

    Return an empty list if there is no earlier lock to compare with, or if either lock has no
    targets.
    """
    if before is None or not before.targets or not after.targets:
        return []
    old = _versions(before)
    new = _versions(after)
    result = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            result.append(f"+ {name} {new[name]}")
        elif name not in new:
            result.append(f"- {name} {old[name]}")
        elif old[name] != new[name]:
            result.append(f"{name} {old[name]} → {new[name]}")
    return result


def moved(changes: Iterable[str]) -> Iterator[str]:
    """Yield the lines that describe a changed version.

    Lines about framework builds and runtime libraries are left out.
    """
    for line in changes:
        name = line.partition(" ")[0]
        if "→" in line and not (frameworks.of_build(name) or frameworks.is_runtime(name)):
            yield line


def differences(locks: Iterable[tuple[str, str, Lock | None]]) -> Iterator[tuple[str, str]]:
    """Yield a label and a message for each lock that differs from others of its environment.

    The message lists the packages whose version is not the most common one in the environment. Each
    item of `locks` contains the name of an environment (which may be empty), a label and a lock.
    Frameworks and their companions may have any version. Debian packages are not compared, because
    they depend on each profile's base image.
    """
    versions: dict[tuple[str, str], dict[str, str]] = {}
    counts: dict[tuple[str, str], Counter[str]] = {}
    for environment, label, lock in locks:
        if environment and lock:
            versions[environment, label] = _versions(lock, of_python=True)
            for name, version in versions[environment, label].items():
                counts.setdefault((environment, name), Counter())[version] += 1
    for (environment, label), versions_of_lock in versions.items():
        others = []
        for name, version in sorted(versions_of_lock.items()):
            usual = counts[environment, name].most_common(1)[0][0]
            if version != usual and not (frameworks.of_build(name) or frameworks.is_runtime(name)):
                others.append(f"{name} {version} ({usual})")
        if others:
            yield label, f"versions differ from other profiles: {first(others, _MOST_OTHERS)}"


def left_out(profile: Profile, requirements: Iterable[str]) -> Iterator[str]:
    """Yield notes on requirements that are replaced or left out because of the hardware."""
    without = []
    for name in dict.fromkeys(map(distribution, requirements)):
        other = instead_of(name, profile)
        if not other:
            without.append(name)
        elif other != name:
            yield f"{other} for {name}"
    if without:
        yield f"without {' and '.join(without)}"


def other_cuda(profile: Profile, requirements: Iterable[str]) -> Iterator[str]:
    """Yield a message for each requirement made for a CUDA version other than the framework's."""
    build = profile.build_on(profile.platforms[0])
    if build is None or profile.accelerator != "cuda":
        return
    for name in dict.fromkeys(map(distribution, requirements)):
        cuda = frameworks.cuda_of(name)
        if cuda and cuda != frameworks.cuda_of(build.build):
            yield (
                f"{name} is made for CUDA {cuda}, for which profile '{profile.name}' has no build"
                f" of {build.release}"
            )


def _versions(lock: Lock, *, of_python: bool = False) -> dict[str, str]:
    """Return the version of each package, by package name.

    If a package has different versions for different targets, they are joined with commas. With
    `of_python`, only Python packages are included.
    """
    versions: dict[str, set[str]] = {}
    for target in lock.targets:
        for file in target.packages if of_python else target.fetched(managed=True):
            if not file.role:
                versions.setdefault(file.name, set()).add(_version(file))
    return {name: ", ".join(sorted(found_versions)) for name, found_versions in versions.items()}


def _version(file: File) -> str:
    """Return a file's version.

    If the project specifies the source of the file, the commit or hash of the source is appended.
    """
    recipe = file.recipe
    if recipe and "/" in recipe.location:
        return f"{file.version} ({(recipe.commit or recipe.sha256)[:_DIGITS]})"
    return file.version


def check(profile: Profile, lock: Lock) -> tuple[str, ...]:
    """Return the reasons why a lock no longer fits its profile.

    Return an empty tuple if the lock fits. No other files are read.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    from envbuilder.packages.debian.suite import is_current

    reasons = []
    if lock.profile != profile.name:
        reasons.append(f"the lock is for profile '{lock.profile}'")
    if what := changed(profile, lock):
        reasons.append(f"{what} changed after the lock was made")
    if lock.state == "unlocked":
        return tuple(reasons)
    required = {*itertools.product(profile.platforms, profile.python.supported)}
    present = {(t.platform, t.python) for t in lock.targets}
    lacking = {(p, v) for p, v in required - present if f"{p} {v}" not in lock.missing}
    for verb, pairs in (("has no", lacking), ("has an unnecessary", present - required)):
        reasons += [f"it {verb} target {p} with Python {v}" for p, v in sorted(pairs)]
    others = sorted({f.version for f in lock.tools.values()} - {profile.tools.uv})
    reasons += [f"uv is {version}, not {profile.tools.uv}" for version in others]
    for target in lock.targets:
        target_name = f"{target.platform} Python {target.python}"
        pins = {types.canonical(f.name): f.version for f in target.packages}
        for line in profile.requirements:
            need = Requirement(line)
            if not applies(need.marker, target.platform, target.python):
                continue
            pin = pins.get(types.canonical(need.name))
            if pin is None:
                reasons.append(f"{target_name}: {need.name} is missing")
            elif not need.specifier.contains(Version(pin), prereleases=True):
                reasons.append(f"{target_name}: {need.name} {pin} does not satisfy {need}")
        reasons += (f"{target_name}: {problem}" for problem in dependency_problems(profile, target))
        if not is_current(profile, target):
            reasons.append(f"{target_name}: the base image is not the profile's")
    return tuple(reasons)
