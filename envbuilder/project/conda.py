"""Read the conda packages in environment.yml, pixi.toml and the output of `conda list --export`.

Python packages become requirements under their names on the package index. With the conda backend,
they are instead taken from the channels. Other programs are installed from conda or Debian.

The profile provides the framework and CUDA. Therefore, CUDA packages are skipped, and so are
channels that contain nothing else. Libraries in an export are skipped, because other packages
require them anyway.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError, escaped, first, shown
from envbuilder.profiles import frameworks
from envbuilder.project import lines
from envbuilder.project.names import (
    debian_package,
    distribution_of,
    distributions_of,
    is_conda_library,
)
from envbuilder.project.requirements_txt import read_lines
from envbuilder.project.tables import (
    RequirementTables,
    as_list,
    chosen_names,
    lines_of_keys,
    mapping,
    parse_toml,
)

LONGEST = 500
"""Maximum number of characters in a package spec."""

_SPEC = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9_./:-]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"(?P<rest>(?:[ =<>!~].*)?)\Z"
)
_VERSION = r"(?:==|!=|<=|>=|~=|=|<|>)?[0-9][A-Za-z0-9.*!]*"
_VERSIONS = rf"{_VERSION}(?:[,|]{_VERSION})*\Z"
_ODD = r"=[0-9][A-Za-z0-9.]*_[A-Za-z0-9._]*=[A-Za-z0-9_.]+\Z"
"""Pattern of a version that only conda can have, followed by a build, as in an export."""
_CLAUSE = r"(==|!=|<=|>=|~=|=|<|>)?([0-9][A-Za-z0-9.]*?)(\.?\*)?\Z"


class Spec(Struct, frozen=True):
    """A conda package and the versions of it that are allowed."""

    name: str
    versions: str = ""
    """The allowed versions in the form of a `CondaSpec`, without spaces; empty for any version.

    Examples are `1.26.*`, `==1.26.4` and `>=1.26,<2`.
    """
    channel: str = ""
    build: str = ""
    """The build, if the spec names exactly one; otherwise empty."""

    def text(self) -> str:
        """Return the spec in the form that profiles use."""
        return f"{self.name} {self.versions}".rstrip()

    def specifier(self) -> str | None:
        """Return the allowed versions as a PEP 440 specifier; None if they have no equivalent."""
        if not self.versions:
            return ""
        clauses = []
        for clause in self.versions.split(","):
            match = re.match(_CLAUSE, clause)
            if not match:
                return None
            clauses.append(_python_clause(*match.groups()))
        return ",".join(clauses)


def _python_clause(operator: str | None, version: str, star: str | None) -> str:
    if operator not in {None, "=", "==", "!="}:
        return f"{operator}{version}"
    equal = "!=" if operator == "!=" else "=="
    begins = (star or operator == "=") and not re.search("[a-z]", version)  # not 19.10b0.*
    return f"{equal}{version}{'.*' if begins else ''}"


def parse(text: str, where: str) -> Spec:
    """Parse a package spec such as `numpy=1.26` or `channel::numpy>=1.26`.

    Raise `InvalidError` for forms that are not supported.
    """
    subject = f"{where}: {escaped(text, 100)}"
    match = _SPEC.match(text.strip())
    if match is None or len(text) > LONGEST:
        raise InvalidError(
            f"{subject} is not a conda package",
            "Write a name and optional versions, such as numpy=1.26 or numpy>=1.26,<2.",
        )
    versions, build = _versions_and_build(match["rest"], subject)
    return Spec(match["name"].lower(), versions, match["channel"] or "", build)


def _versions_and_build(rest: str, subject: str) -> tuple[str, str]:
    """Parse the text after a package's name in a spec, and return the versions and the build.

    Examples of the text are `=1.26` and ` >=1.26, <2`.
    """
    rest = re.sub(r"\s*([,|=<>!~])\s*", r"\1", rest.strip())
    build = ""
    # A single = matches all versions that begin so, unless a build follows: numpy=1.26.4=py312_0.
    if parts := re.match(r"={0,2}([A-Za-z0-9.*]+)(?:=(?!=)|\s+)([A-Za-z0-9_.*]+)\Z", rest):
        versions = parts[1]
        build = parts[2] if parts[2].strip("*") else ""
        if not versions.strip("*."):
            versions = ""
        elif "*" not in versions:
            versions = f"=={versions}"
    elif re.match(r"=(?!=)[^=<>!~,|]+\Z", rest):
        version = rest[1:].removesuffix("*").removesuffix(".")
        versions = f"{version}.*" if version else ""
    else:
        versions = "" if rest == "*" else re.sub(r"==(?=[^,|]*\*)", "", rest)
    if versions and not re.match(_VERSIONS, versions):
        raise InvalidError(
            f"{subject} is not a range of versions",
            "Write, for example, numpy=1.26, numpy==1.26.4 or numpy>=1.26,<2.",
        )
    return versions, build


def distributions(packages: Iterable[lines.Line]) -> frozenset[str]:
    """Return the package index's names for those conda packages that are Python packages."""
    names = (distribution_of(parse(p.text, p.where).name) for p in packages)
    return frozenset(filter(None, names))


def first_missing(packages: Iterable[lines.Line], have: Collection[str]) -> lines.Line | None:
    """Return the first conda package that is not in `have`, or None if `have` contains all of them.

    `have` contains the names of requirements and system packages. A conda package is also
    considered present if `have` contains its name on the package index or in Debian.
    """
    for package in packages:
        name = parse(package.text, package.where).name
        elsewhere = {types.canonical(name), *distributions_of(name), debian_package(name)}
        if elsewhere.isdisjoint(have):
            return package
    return None


_IGNORED = frozenset({"name", "prefix"})
_KEYS = frozenset({"channels", "dependencies", *_IGNORED})
_FRAMEWORK_CHANNELS = ("pytorch", "nvidia")
_DEFAULTS = "defaults"
"""Name of Anaconda's own channels, for which larger organizations need a license."""
_NO_CHANNEL = "nodefaults"
_CHANNEL_URL = re.compile(
    r"https?://(?:conda|repo)\.anaconda\.(?:org|com)/(pkgs/)?([a-z0-9-]+)/?\Z"
)


class Packages:
    """A collector that sorts a file's conda packages by kind."""

    def __init__(self, channels: Iterable[str] = ()) -> None:
        self._every = list(channels)
        self._marker = ""
        self._requirements: list[lines.Line] = []
        self._conda: list[lines.Line] = []
        self._pythons: list[lines.Line] = []
        self._cuda: list[str] = []
        self._libraries: list[str] = []
        self._programs: list[str] = []
        self._frameworks: list[str] = []
        self._brought: list[frameworks.Framework] = []
        self._replaced: list[str] = []
        self._renamed: list[str] = []
        self._built: list[str] = []
        self._any_version: list[str] = []

    def take(self, text: str, where: str, marker: str = "") -> None:
        """Add a conda package that the file lists.

        The environment marker in `marker` limits the package to certain targets. Raise
        `InvalidError` if the package's spec in `text` is not supported.
        """
        self._marker = marker
        match = _SPEC.match(text.strip())
        name = match["name"].lower() if match else ""
        if frameworks.is_conda_runtime(name):
            self._cuda.append(name)
        elif name and is_conda_library(name):
            self._libraries.append(name)
        elif match and re.match(_ODD, match["rest"]):
            self._any_version.append(text.strip())
            self._add(Spec(name, channel=match["channel"] or "", build="any"), where)
        else:
            self._add(parse(text, where), where)

    def _add(self, spec: Spec, where: str) -> None:
        name = spec.name
        channel = spec.channel.rpartition("/")[2]
        if channel and channel not in self._every and lines.is_valid(channel, types.Source):
            self._every.append(channel)
        if name == "python":
            if spec.versions:
                text = self._wheel(spec, name, where).text.removeprefix(name)
                self._pythons.append(lines.Line(text, where))
        elif of_framework := frameworks.of_conda(name):
            self._frameworks.append(name)
            self._brought += filter(None, [frameworks.of_build(of_framework)])
            self._requirements.append(self._wheel(spec, of_framework, where))
        elif name in {"setuptools", "wheel"} and spec.build:
            self._libraries.append(name)  # an export lists what conda's Python brings along
        elif name not in {"pip", "nomkl"}:
            if python := distribution_of(name):
                self._requirements.append(self._wheel(spec, python, where))
            else:
                self._programs.append(name)
            self._conda.append(lines.Line(spec.text(), where))
            if spec.build:
                self._built.append(name)

    def _wheel(self, spec: Spec, name: str, where: str) -> lines.Line:
        """Convert a conda package to a requirement for pip under the given name.

        If pip has no equivalent for conda's version limits, the requirement allows any version.
        """
        specifier = spec.specifier()
        if name != types.canonical(spec.name) and not frameworks.of_build(name):
            # What is named otherwise is often numbered otherwise: opencv 4.5.1 is 4.5.1.48.
            self._renamed.append(f"{spec.name} as {name}")
            specifier = specifier and re.sub(r"\A==([0-9.]+)\Z", r"==\1.*", specifier)
        try:
            if specifier is not None:
                needed = lines.with_marker(f"{name}{specifier}", self._marker)
                return lines.line(lines.parse(needed, where), where)
        except InvalidError:
            pass  # a version that only conda can have
        self._any_version.append(spec.text())
        return lines.Line(lines.with_marker(types.canonical(name), self._marker), where)

    def listed(self, where: str, of_pip: lines.Listed) -> lines.Listed:
        """Return the collected packages, merged with the file's requirements for pip.

        If pip's list sets the version of a package, it takes precedence.
        """
        others = (*_FRAMEWORK_CHANNELS, _DEFAULTS, _NO_CHANNEL)
        channels = tuple(c for c in self._every if c not in others)
        pinned = {li.name for li in of_pip.requirements if re.search("[=<>~]", li.text)}
        of_conda = []
        for line in self._requirements:
            if line.name in pinned:
                self._replaced.append(line.name)
            else:
                of_conda.append(line)
        notes = (type(note)(f"{where}: {note}.") for note in self._notes(channels))
        of_channels = lines.Listed(
            requirements=tuple(of_conda),
            pythons=tuple(self._pythons),
            conda=tuple(self._conda),
            channels=channels if self._conda else (),
            system=tuple(dict.fromkeys(filter(None, map(debian_package, self._programs)))),
            notes=tuple(notes),
        )
        return lines.joined([of_channels, of_pip])

    def _notes(self, channels: tuple[str, ...]) -> Iterator[str]:
        """Yield notes on packages that were skipped or changed.

        `channels` contains the channels in use.
        """
        if self._frameworks:
            decides = " and ".join(dict.fromkeys(map(lines.profile_decides, self._brought)))
            yield f"{_joined(self._frameworks)}: taken as requirements from PyPI, since {decides}"
        changed = {
            "the list for pip takes precedence, as it comes later": self._replaced,
            "taken by their names on the package index": self._renamed,
            "taken in any version, since the index cannot have these versions": self._any_version,
        }
        for sentence, names in changed.items():
            if names:
                yield f"{sentence}: {_joined(names)}"
        yield from _of_programs(self._programs)
        dropped = {
            "the profile decides on CUDA:": self._cuda,
            "other packages contain such libraries:": self._libraries,
            "the profile decides where the framework comes from: the channels": [
                channel for channel in self._every if channel in _FRAMEWORK_CHANNELS
            ],
        }
        for reason, names in dropped.items():
            if names:
                yield lines.Dropped(f"left out, since {reason} {_joined(names)}")
        if self._built:
            yield (
                "builds are left out, since each is for one platform, and versions are kept:"
                f" {_joined(self._built)}"
            )
        if _DEFAULTS in self._every and self._conda:
            yield lines.Dropped(
                "left out: the channel defaults, which requires a licence from Anaconda. With the"
                f" conda backend, its packages come from {_joined(channels) or 'conda-forge'}"
            )


def _of_programs(names: Iterable[str]) -> Iterator[str]:
    """Yield notes on packages that are not on the package index, with suggested replacements."""
    debian = {name: debian_package(name) for name in names}
    if of_debian := {name: package for name, package in debian.items() if package}:
        packages = ", ".join(dict.fromkeys(of_debian.values()))
        instead = f"Use system_packages: [{packages}], or --backend conda"
        yield f"not Python packages: {_joined(of_debian)}. {instead}"
    others = []
    for name, package in debian.items():
        several = _joined(distributions_of(name))
        if not package:
            others.append(f"{name} ({several})" if several else name)
    if others:
        yield lines.Needed(
            f"no Python package of this name: {_joined(others)}. Use --backend conda or, if the"
            " package index has the same package, list it under requirements:"
        )


def _joined(names: Iterable[str]) -> str:
    """Join the first six distinct names, followed by the number of remaining names, if any."""
    return first(list(dict.fromkeys(names)), 6)


# environment.yml


def read_environment_yml(project: Path, file: str) -> lines.Listed:
    """Read the packages in an environment.yml; `file` is its path relative to the project.

    Raise `InvalidError` if the file is invalid.
    """
    return _Reader(project, file).listed()


def read_conda_list(project: Path, file: str) -> lines.Listed:
    """Read the output of `conda list --export`, which has lines such as `name=version=build`.

    Packages from PyPI have the build `pypi_0`. Raise `InvalidError` if the file is invalid.
    """
    packages = Packages()
    of_pip = []
    for number, raw in enumerate(lines.read_text(project, file).splitlines()[: lines.MOST], 1):
        where = f"{escaped(file)}:{number}"
        spec = raw.strip()
        if match := re.fullmatch(r"([A-Za-z0-9._-]+)=([^=]+)=pypi_0", spec):
            of_pip.append((where, f"{match[1]}=={match[2]}"))
        elif spec and not spec.startswith(("#", "@")):
            packages.take(spec, where)
    return packages.listed(escaped(file), read_lines(project, file, of_pip))


class _Reader:
    """A reader of an environment.yml, which lists conda packages and requirements for pip."""

    def __init__(self, project: Path, file: str) -> None:
        self._project = project
        self._file = file
        self._where = escaped(file)
        self._text = lines.read_text(project, file)
        self._data = decoding.parse_yaml(self._text, self._where)
        self._pip: list[tuple[str, str]] = []
        self._notes: list[str] = []

    def listed(self) -> lines.Listed:
        self._note_keys()
        packages = Packages(self._channels())
        for text, where in self._specs():
            packages.take(text, where)
        merged = packages.listed(self._where, read_lines(self._project, self._file, self._pip))
        return replace(merged, notes=(*self._notes, *merged.notes))

    def _place(self, *path: object) -> str:
        return decoding.place(self._where, self._text, [*map(str, path)])

    def _note_keys(self) -> None:
        for key, value in self._data.items():
            if key == "variables" and isinstance(value, dict) and value:
                names = _joined(escaped(str(name), 60) for name in value)
                self._notes.append(
                    lines.Needed(
                        f"{self._place(key)}: variables are not read: {names}. Write the ones you"
                        " need under environment: in envbuilder.yaml."
                    )
                )
            elif key not in _KEYS and value:
                self._notes.append(
                    lines.Dropped(f"{self._place(key)}: {escaped(key, 60)}: left out.")
                )

    def _list(self, key: str) -> list[Any]:
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InvalidError(f"{self._place(key)}: {key}: expected a list")
        if len(value) > lines.MOST:
            raise InvalidError(f"{self._place(key)}: {key}: more than {lines.MOST} entries")
        return value

    def _channels(self) -> list[str]:
        channels = []
        for number, channel in enumerate(self._list("channels")):
            name = str(channel)
            if by_url := _CHANNEL_URL.match(name):
                name = _DEFAULTS if by_url[1] else by_url[2]
            if lines.is_valid(name, types.Source):
                channels.append(name)
                continue
            place = self._place("channels", number)
            lines.require_public(str(channel), place)
            self._notes.append(
                lines.Dropped(
                    f"{place}: {shown(str(channel))}: left out, since channels are listed by"
                    " name, and each machine's settings have their URLs."
                )
            )
        return channels

    def _specs(self) -> Iterator[tuple[str, str]]:
        """Yield each conda package with its location in the file, and collect the lines for pip."""
        for number, item in enumerate(self._list("dependencies")):
            where = self._place("dependencies", number)
            if isinstance(item, str):
                yield item, where
            elif isinstance(item, dict) and set(item) == {"pip"}:
                self._take_pip(number, item["pip"])
            elif item is not None:
                raise InvalidError(
                    f"{where}: {shown(str(item))}: expected a package, or pip: with a list",
                    "Write a name and optional versions, such as numpy=1.26.",
                )

    def _take_pip(self, number: int, items: Any) -> None:
        for index, item in enumerate(as_list(items)):
            where = self._place("dependencies", number, "pip", index)
            if item is None:
                continue
            if not isinstance(item, str) or "\n" in item:
                raise InvalidError(
                    f"{where}: {shown(str(item))}: expected one package for pip",
                    "Write one item per package, such as - rich>=13.",
                )
            self._pip.append((where, item))


# pixi.toml, and tool.pixi of a pyproject.toml

_SYSTEMS = {"linux": "linux", "osx": "darwin", "unix": ""}
"""Value of `sys_platform` in markers for each prefix of a pixi platform. Empty means all
systems."""


def read_pixi(
    project: Path, file: str, extras: Sequence[str], groups: Sequence[str]
) -> lines.Listed:
    """Read the requirements in a pixi.toml or in the `tool.pixi` table of a pyproject.toml.

    `groups` are the names of pixi features. Requirements in tables for Linux or macOS apply only to
    these platforms. Tables for other platforms are ignored. Raise `InvalidError` if the file is
    invalid.
    """
    chosen_names("extra", extras, (), file)
    text = lines.read_text(project, file)
    where = escaped(file)
    data = parse_toml(text, file)
    if file.endswith("pyproject.toml"):
        data = mapping(mapping(data.get("tool")).get("pixi"))
    about = mapping(data.get("workspace") or data.get("project"))
    features = {
        types.canonical(name): feature for name, feature in mapping(data.get("feature")).items()
    }
    chosen = sorted(chosen_names("group", groups, features, file))
    parts = [data, *map(mapping, map(features.get, chosen))]
    of_pypi = RequirementTables(file, lines_of_keys(text))
    channels_value = about.get("channels")
    channels = channels_value if isinstance(channels_value, list) else []
    names = [str(mapping(channel).get("channel", channel)) for channel in channels]
    packages = Packages(name for name in names if lines.is_valid(name, types.Source))
    for table in parts:
        for marker, target in _parts(table):
            of_pypi.marker = marker
            of_pypi.take("pypi-dependencies", target.get("pypi-dependencies"))
            for name, spec in mapping(target.get("dependencies")).items():
                line = of_pypi.lines.get(name, ": dependencies")
                packages.take(_pixi_spec(name, spec), f"{where}{line}", marker)
    return packages.listed(where, of_pypi.listed())


def _parts(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of a pixi feature, each with a marker for the platforms to which it applies.

    The marker is empty for tables that apply to all platforms, such as the feature's main table.
    """
    yield "", table
    for platform, target in mapping(table.get("target")).items():
        for begin, system in _SYSTEMS.items():
            if platform.startswith(begin):
                yield (f'sys_platform == "{system}"' if system else ""), mapping(target)


def _pixi_spec(name: str, spec: Any) -> str:
    """Convert a conda package in a pixi.toml to the format used in environment.yml."""
    table = spec if isinstance(spec, dict) else {"version": spec}
    version = str(table.get("version", "")).strip().removeprefix("*")
    channel = f"{table['channel']}::" if isinstance(table.get("channel"), str) else ""
    bare = re.match(r"[0-9][^,|<>=!~]*\Z", version)
    return f"{channel}{name}{'=' if bare else ''}{version}"
