"""Read conda's environment.yml: packages from channels, and those of its `pip:` list.

Frameworks and CUDA are the profile's: conda's packages of them become requirements by their names
on PyPI, those of CUDA are left out, and so are the channels that hold nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped, first, shown
from envbuilder.profiles import frameworks
from envbuilder.project import lines
from envbuilder.project.requirements_txt import read_lines

LONGEST = 500
"""Maximum length of a spec."""

_SPEC = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9_./:-]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"(?P<rest>(?:[ =<>!~].*)?)\Z"
)
_VERSION = r"(?:==|!=|<=|>=|~=|=|<|>)?[0-9][A-Za-z0-9.*!]*"
_VERSIONS = re.compile(rf"{_VERSION}(?:[,|]{_VERSION})*\Z")
_CLAUSE = re.compile(r"(==|!=|<=|>=|~=|=|<|>)?([0-9][A-Za-z0-9.]*?)(\.?\*)?\Z")


class Spec(Struct, frozen=True):
    """A conda package and its versions."""

    name: str
    versions: str = ""
    """As in a `CondaSpec`, without blanks: `1.26.*`, `==1.26.4`, `>=1.26,<2`; empty for any."""
    channel: str = ""
    build: str = ""
    """The build, if it is an exact one."""

    def text(self) -> str:
        """Return the spec as profiles have it."""
        return f"{self.name} {self.versions}".rstrip()

    def specifier(self) -> str | None:
        """Return the versions as Python's packages have them (PEP 440); None if they cannot."""
        if not self.versions:
            return ""
        clauses = [_CLAUSE.match(clause) for clause in self.versions.split(",")]
        python = [_python_clause(*match.groups()) for match in clauses if match]
        return ",".join(python) if all(clauses) else None


def _python_clause(operator: str | None, version: str, star: str | None) -> str:
    if operator in {None, "=", "==", "!="}:
        equal = "!=" if operator == "!=" else "=="
        return f"{equal}{version}{'.*' if star or operator == '=' else ''}"
    return f"{operator}{version}"


def parse(text: str, where: str) -> Spec:
    """Return a spec: `numpy=1.26`, `channel::numpy>=1.26`.

    Raises `InvalidError` for forms that are not supported.
    """
    subject = f"{where}: {escaped(text, 100)}"
    match = _SPEC.match(text.strip())
    if match is None or len(text) > LONGEST:
        raise InvalidError(
            f"{subject}: not a conda package",
            "Write a name and perhaps versions, such as numpy=1.26 or numpy>=1.26,<2.",
        )
    versions, build = _versions_and_build(match["rest"], subject)
    if "*" in build:
        raise InvalidError(
            f"{subject}: a build by a pattern is not supported",
            "Delete the part after the version; what depends on the hardware is for the profile to"
            " choose.",
        )
    return Spec(match["name"].lower(), versions, match["channel"] or "", build)


def _versions_and_build(rest: str, subject: str) -> tuple[str, str]:
    """Return versions and build of what follows a name, such as `=1.26`, ` >=1.26, <2`."""
    rest, build = re.sub(r"\s*([,|=<>!~])\s*", r"\1", rest.strip()), ""
    # A single = matches all versions that begin so, unless a build follows: numpy=1.26.4=py312_0.
    if parts := re.match(r"(?:=(?!=))?([A-Za-z0-9.*]+)(?:=(?!=)|\s+)([A-Za-z0-9_.*]+)\Z", rest):
        versions, build = parts[1], parts[2] if parts[2].strip("*") else ""
        versions = f"{'' if '*' in versions else '=='}{versions}" if versions.strip("*.") else ""
    elif re.match(r"=(?!=)[^=<>!~,|]+\Z", rest):
        version = rest[1:].removesuffix("*").removesuffix(".")
        versions = f"{version}.*" if version else ""
    else:
        versions = "" if rest == "*" else re.sub(r"==(?=[^,|]*\*)", "", rest)
    if versions and not _VERSIONS.match(versions):
        raise InvalidError(
            f"{subject}: not a range of versions",
            "Write it like this: numpy=1.26, numpy==1.26.4, numpy>=1.26,<2.",
        )
    return versions, build


_IGNORED = frozenset({"name", "prefix"})
_KEYS = frozenset({"channels", "dependencies", "variables", *_IGNORED})
_FRAMEWORK_CHANNELS = ("pytorch", "nvidia")
_DEFAULTS = "defaults"
"""Anaconda's own channels, for which larger organizations need a licence."""
_NO_CHANNEL = "nodefaults"


def read_environment_yml(project: Path, file: str) -> lines.Listed:
    """Return what an environment lists; `file` is its path in the project.

    Raises `InvalidError`.
    """
    return _Reader(project, file).listed()


class _Reader:
    """Collects the packages of an environment, by where they come from."""

    def __init__(self, project: Path, file: str) -> None:
        self._project, self._file, self._where = project, file, escaped(file)
        self._text = lines.read_text(project, file)
        self._data = decoding.parse_yaml(self._text, self._where)
        self._requirements: list[lines.Line] = []
        self._conda: list[lines.Line] = []
        self._pip: list[tuple[str, str]] = []
        self._pythons: list[lines.Line] = []
        self._left_out: list[str] = []
        self._renamed: dict[str, frameworks.Framework | None] = {}
        self._built: list[str] = []

    def listed(self) -> lines.Listed:
        self._require_keys()
        every = self._channels()
        others = (*_FRAMEWORK_CHANNELS, _DEFAULTS, _NO_CHANNEL)
        channels = tuple(c for c in every if c not in others)
        for spec, where in self._specs():
            self._take(spec, where, channels)
        from_pip = read_lines(self._project, self._file, self._pip)
        return lines.Listed(
            requirements=(*self._requirements, *from_pip.requirements),
            constraints=from_pip.constraints,
            pythons=tuple(self._pythons),
            conda=tuple(self._conda),
            channels=channels,
            read_from=from_pip.read_from,
            notes=tuple(f"{self._where}: {note}." for note in self._notes(every, channels)),
        )

    def _place(self, *path: object) -> str:
        return decoding.place(self._where, self._text, [str(part) for part in path])

    def _require_keys(self) -> None:
        for key in self._data:
            if key not in _KEYS:
                raise InvalidError(
                    f"{self._place(key)}: {escaped(key, 60)}: unknown key",
                    f"Remove the key; environments have {', '.join(sorted(_KEYS))}.",
                )
        if self._data.get("variables"):
            raise InvalidError(
                f"{self._place('variables')}: variables: are not read from this file",
                "Move them to environment: in envbuilder.yaml.",
            )

    def _list(self, key: str) -> list[Any]:
        value = [] if self._data.get(key) is None else self._data[key]
        if not isinstance(value, list):
            raise InvalidError(f"{self._place(key)}: {key}: expected a list")
        if len(value) > lines.MOST:
            raise InvalidError(f"{self._place(key)}: {key}: more than {lines.MOST} entries")
        return value

    def _channels(self) -> list[str]:
        channels = self._list("channels")
        for number, channel in enumerate(channels):
            try:
                decoding.convert(channel, types.Source)
            except msgspec.ValidationError as error:
                raise InvalidError(
                    f"{self._place('channels', number)}: {shown(str(channel))}:"
                    " channels are listed by name only",
                    "Write a name such as conda-forge, and set its URL up on each machine.",
                ) from error
        return channels

    def _specs(self) -> Iterator[tuple[Spec, str]]:
        """Yield the packages from channels with their places; collect the lines for pip."""
        for number, item in enumerate(self._list("dependencies")):
            where = self._place("dependencies", number)
            if isinstance(item, str):
                yield parse(item, where), where
            elif isinstance(item, dict) and set(item) == {"pip"}:
                self._take_pip(number, item["pip"])
            else:
                raise InvalidError(
                    f"{where}: {shown(str(item))}: expected a package, or pip: with a list",
                    "Write a name and perhaps versions, such as numpy=1.26.",
                )

    def _take_pip(self, number: int, items: Any) -> None:
        for index, item in enumerate(items if isinstance(items, list) else [items]):
            where = self._place("dependencies", number, "pip", index)
            if not isinstance(item, str) or "\n" in item:
                raise InvalidError(
                    f"{where}: {shown(str(item))}: expected one package for pip",
                    "Write one item per package, such as - rich>=13.",
                )
            self._pip.append((where, item))

    def _take(self, spec: Spec, where: str, channels: tuple[str, ...]) -> None:
        if frameworks.is_conda_runtime(spec.name):
            self._left_out.append(spec.name)
        elif name := frameworks.of_conda(spec.name):
            self._requirements.append(_of_pypi(spec, name, where))
            self._renamed[spec.name] = frameworks.of_build(name)
        elif spec.name == "python":
            if spec.versions:
                text = _of_pypi(spec, spec.name, where).text.removeprefix(spec.name)
                self._pythons.append(lines.Line(text, where))
        elif spec.name != "pip":
            if spec.channel and channels[:1] != (spec.channel,):
                raise InvalidError(
                    f"{where}: {escaped(f'{spec.channel}::{spec.name}', 100)}: a channel for a"
                    " single package is not supported, unless it is the first one of channels",
                    f"Write {spec.name} only, or put the channel first under channels.",
                )
            self._conda.append(lines.Line(spec.text(), where))
            self._built += [spec.name] if spec.build else []

    def _notes(self, every: list[str], channels: tuple[str, ...]) -> Iterator[str]:
        """Yield what of the file is left out or changed; `channels` of all are kept."""
        if self._renamed:
            brought = filter(None, self._renamed.values())
            decides = " and ".join(dict.fromkeys(map(lines.profile_decides, brought)))
            yield f"{_joined(self._renamed)}: taken as requirements from PyPI, since {decides}"
        if self._left_out:
            yield f"left out, since the profile decides on CUDA: {_joined(self._left_out)}"
        if dropped := [c for c in every if c in _FRAMEWORK_CHANNELS]:
            yield (
                "left out, since the profile decides where the framework comes from: the channels"
                f" {_joined(dropped)}"
            )
        if self._built:
            yield (
                "builds are left out, since each is for one platform; versions stay:"
                f" {_joined(self._built)}"
            )
        if _DEFAULTS in every and self._conda:
            yield (
                "left out, since it takes a licence of Anaconda's: the channel defaults. Its"
                f" packages come from {_joined(channels) or 'conda-forge'}"
            )


def _of_pypi(spec: Spec, name: str, where: str) -> lines.Line:
    specifier = spec.specifier()
    if specifier is None:
        raise InvalidError(
            f"{where}: {escaped(spec.text(), 100)}: PyPI's packages cannot have these versions",
            f"Write one range, such as {spec.name}>=2.0,<3.",
        )
    return lines.line(lines.parse(f"{name}{specifier}", where), where)


def _joined(names: Iterable[str]) -> str:
    """Return the first six names, each once, and how many more there are."""
    return first(list(dict.fromkeys(names)), 6)
