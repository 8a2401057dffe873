"""Combine a profile's own requirements with the inherited ones.

The code has no side effects. The key `requirements` replaces the inherited list, and
`add_requirements` adds to it. A replacement must still contain what the profile expects: the
framework, and the extension that verification checks.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from envbuilder.core import resources, types
from envbuilder.core.decoding import decode, place
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import parse_shipped, read_text
from envbuilder.profiles.frameworks import DEFAULT, FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from packaging.markers import Marker

    from envbuilder.profiles.releases import Build

ADD = "add_requirements"
"""The key that lists requirements to add to the inherited ones."""
_REPLACE = "requirements"
_PACKAGES = (
    f"List packages from PyPI under '{ADD}', which adds to the extended profile's list, or under"
    f" '{_REPLACE}', which replaces it."
)
HINTS = {
    ADD: f"Did you mean '{ADD}'?",
    **dict.fromkeys(
        (
            "packages",
            "package",
            "dependencies",
            "dependency",
            "deps",
            "pip",
            "pip_packages",
            "python_packages",
            "python_requirements",
            "install_requires",
            "libraries",
        ),
        _PACKAGES,
    ),
}
"""Hints for keys that users often write by mistake."""


_SYSTEMS: dict[types.Platform, tuple[str, str]] = {
    "linux/amd64": ("Linux", "x86_64"),
    "linux/arm64": ("Linux", "aarch64"),
    "macos/arm64": ("Darwin", "arm64"),
}


_T = TypeVar("_T")
SAME = (
    (
        "opencv-contrib-python",
        "opencv-python",
        "opencv-contrib-python-headless",
        "opencv-python-headless",
    ),
    ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
)
"""Groups of packages that install the same modules, the most complete package first. That package
replaces the others, as the packages' authors advise: the README of opencv-python says "select only
one". NCCL has the CUDA runtime linked in."""


class _Hardware(Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that work only on certain hardware, from `profiles/names/hardware.yaml`."""

    nvidia: tuple[str, ...]
    elsewhere: dict[str, types.Distribution]
    macs: dict[types.Distribution, types.Distribution]
    not_for_macs: tuple[types.Distribution, ...]
    strangers: tuple[types.Distribution, ...]


def table(name: str, form: type[_T]) -> _T:
    """Read a table of package names that is shipped with envbuilder, as an instance of `form`."""
    path = resources.profiles_dir() / "names" / name
    return decode(parse_shipped(read_text(path), path), form, path.name)


_hardware = cache(partial(table, "hardware.yaml", _Hardware))


def on_hardware(name: str, accelerator: types.Accelerator) -> str:
    """Return the package to install instead of `name` on hardware with the given accelerator.

    If the package works on this hardware, return its own name. If nothing can be installed in its
    place, return an empty string.
    """
    hardware = _hardware()
    if accelerator == "mps":
        if name in hardware.not_for_macs:
            return ""
        name = hardware.macs.get(name, name)
    if accelerator == "cuda" or not any(fnmatchcase(name, p) for p in hardware.nvidia):
        return name
    for pattern, other in hardware.elsewhere.items():
        if fnmatchcase(name, pattern):
            return other
    return ""


def strangers() -> frozenset[str]:
    """Return names that belong to unrelated packages on the public index.

    Projects that require one of these names mean a different package.
    """
    return frozenset(_hardware().strangers)


def for_other_hardware(accelerator: types.Accelerator) -> frozenset[str]:
    """Return the packages that need hardware other than the given accelerator.

    Packages that are known only by a name pattern are not included.
    """
    if accelerator == "cuda":
        return frozenset()
    return frozenset(name for name in _hardware().nvidia if "*" not in name)


_PINNED = r"[\w.-]+(?:\[[\w.,-]*\])? ?== ?([0-9][\w.+!]*)(?: ?;.*)?"


class _Lists(Struct, frozen=True, kw_only=True):
    requirements: tuple[types.Requirement, ...] = ()
    add_requirements: tuple[types.Requirement, ...] = ()


def distribution(requirement: str) -> str:
    """Return the normalized name of the distribution that a requirement refers to."""
    return types.canonical(re.split(r"[^A-Za-z0-9._-]", requirement)[0])


def pin(requirement: str, names: Collection[str] = ()) -> str:
    """Return the only version that a requirement allows.

    Return an empty string if the requirement allows several versions. If `names` is given, also
    return an empty string if the distribution is not among these normalized names.
    """
    if "==" not in requirement or (names and distribution(requirement) not in names):
        return ""
    # Most are; to import the parser of all others takes longer than to read all profiles.
    if plain := re.fullmatch(_PINNED, requirement):
        return plain[1]
    from packaging.requirements import Requirement

    specifier = Requirement(requirement).specifier
    exact = [s.version for s in specifier if s.operator == "=="]
    if len(specifier) == len(exact) == 1 and "*" not in exact[0]:
        return exact[0]
    return ""


def applies(marker: Marker | None, platform: types.Platform, python: str, extra: str = "") -> bool:
    """Return whether an environment marker is true for a platform and a Python version.

    If `marker` is None, the result is always true. `extra` is the requested extra of the package
    that declares the requirement.
    """
    if marker is None:
        return True
    system, machine = _SYSTEMS[platform]
    return marker.evaluate(
        {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": system.lower(),
            "platform_system": system,
            "platform_machine": machine,
            "os_name": "posix",
            # As uv has it for a platform that is not the machine's own.
            "platform_release": "",
            "platform_version": "",
            "extra": extra,
        }
    )


def combined(
    name: str, data: Mapping[str, Any], inherited: Mapping[str, Any], where: str, text: str
) -> dict[str, Any]:
    """Return a profile's own keys, with its final requirements in place of `add_requirements`.

    `inherited` contains the keys of the extended profile. It is empty if the profile does not
    extend another. Raise `InvalidError` if the lists cannot be combined.
    """
    result = dict(data)
    spot = partial(place, where, text)
    decode({key: data[key] for key in (ADD, _REPLACE) if key in data}, _Lists, where, text)
    parent = data.get("extends")
    if ADD not in data:
        if _REPLACE in data and parent is not None:
            _require_complete(name, data, inherited, spot)
        return result
    added: list[str] = result.pop(ADD)
    if parent is None:
        raise InvalidError(
            f"{spot([ADD])}: {ADD}: '{name}' does not extend a profile, so there is nothing to"
            " add to",
            f"Use '{_REPLACE}', or extend a profile, for example: extends: cpu",
        )
    if _REPLACE in data:
        raise InvalidError(
            f"{spot([ADD])}: {ADD}: the profile also has {_REPLACE}, which replaces the inherited"
            " list",
            f"Remove '{_REPLACE}' to keep the requirements of '{parent}', or else '{ADD}'.",
        )
    before = _listed(inherited.get(_REPLACE))
    _require_new(added, before, spot, str(parent))
    return {**result, _REPLACE: [*before, *added]}


def _require_new(
    added: Sequence[str], before: Sequence[str], spot: Callable[[list[str]], str], parent: str
) -> None:
    """Raise `InvalidError` if an added package is already inherited or is added twice."""
    origins = {distribution(line): (line, f"the requirements of '{parent}'") for line in before}
    for line in added:
        earlier = origins.get(distribution(line))
        if earlier:
            raise InvalidError(
                f"{spot([ADD])}: {ADD}: {line}: {earlier[1]} already contain {earlier[0]}",
                f"Remove the line. To change the version in '{parent}', write the whole list under"
                f" '{_REPLACE}', which replaces the inherited one.",
            )
        origins[distribution(line)] = (line, f"the lines above under '{ADD}'")


def _require_complete(
    name: str,
    data: Mapping[str, Any],
    inherited: Mapping[str, Any],
    spot: Callable[[list[str]], str],
) -> None:
    """Raise `InvalidError` if a list that replaces the inherited one lacks a needed package."""
    remaining = {*map(distribution, data[_REPLACE])}
    needed = set[str]()
    for alternatives in _expected(data, inherited):
        if not alternatives & remaining:
            needed |= alternatives
    lost = [line for line in _listed(inherited.get(_REPLACE)) if distribution(line) in needed]
    if lost:
        names = " and no ".join(dict.fromkeys(map(distribution, lost)))
        raise InvalidError(
            f"{spot([_REPLACE])}: '{name}' has no {names}, because {_REPLACE}: replaces the list"
            f" of '{data['extends']}'",
            f"Repeat {' and '.join(lost)}, or use {ADD}: instead, which keeps the inherited list.",
        )


def _expected(data: Mapping[str, Any], inherited: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """Yield sets of distribution names; the requirements must include at least one of each set.

    Verification needs at least one distribution from each set.
    """
    framework = FRAMEWORKS.get(data.get("framework", inherited.get("framework", DEFAULT)))
    if framework is None:  # which decoding the profile reports
        return
    yield framework.names
    expects = {**_mapping(inherited.get("expects")), **_mapping(data.get("expects"))}
    extension = framework.extensions.get(str(expects.get("extension")))
    if extension:
        yield frozenset({extension})


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def _listed(value: Any) -> list[str]:
    """Return only the strings in a list of requirements.

    Everything else is ignored, because the types are checked later, when the profile is decoded.
    """
    lines: Iterable[Any] = value if isinstance(value, list) else ()
    return [line for line in lines if isinstance(line, str)]


def of_builds(line: str, framework: types.Framework, builds: Sequence[Build]) -> Iterator[str]:
    """Yield a framework requirement, pinned to the version of each platform's build.

    If this version is the same on all platforms, yield the requirement only once. For JAX, an extra
    of the requirement selects the build.
    """
    name = line
    marker = ""
    if name != distribution(line):
        from packaging.requirements import Requirement

        need = Requirement(line)
        extras = {builds[0].build if re.fullmatch(r"cuda1\d", e) else e for e in need.extras}
        name = need.name + (f"[{','.join(sorted(extras))}]" if extras else "")
        by_hardware = need.marker and "python" not in str(need.marker)
        # As it was written, so that the digest of the inputs stays.
        marker = ("; " + str(need.marker).replace('"', "'")) if by_hardware else ""
    versions = {
        b.platform: f"{b.release}+{b.build}"
        if framework == "torch" and b.index != "default"
        else b.release
        for b in builds
    }
    if len(set(versions.values())) == 1:
        yield f"{name}=={versions[builds[0].platform]}{marker}"
        return
    for platform, version in versions.items():
        yield f"{name}=={version}; platform_machine == '{types.machine(platform)}'"


def same_version(in_file: str, locked: str) -> bool:
    """Return whether the version in a wheel's file name equals the locked version."""
    if in_file.replace("_", "-") == locked.replace("_", "-"):
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(in_file.replace("_", "-")) == Version(locked)
    except InvalidVersion:
        return False
