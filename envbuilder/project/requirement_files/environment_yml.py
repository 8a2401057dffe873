"""Read conda's environment.yml: packages from channels, and those of its `pip:` list.

Frameworks and CUDA are the profile's: conda's packages of them become requirements by their names
on PyPI, those of CUDA are left out, and so are the channels that hold nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import parse_yaml, place
from envbuilder.core.text import escaped, shown
from envbuilder.profiles import frameworks
from envbuilder.project.requirement_files import (
    conda_spec,
    requirement,
    requirements_txt,
    text_file,
)
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.profiles.frameworks import Framework

_IGNORED = frozenset({"name", "prefix"})
_KEYS = frozenset({"channels", "dependencies", "variables", *_IGNORED})
_FRAMEWORK_CHANNELS = ("pytorch", "nvidia")
_DEFAULTS = "defaults"
"""Anaconda's own channels, for which larger organizations need a licence."""
_NO_CHANNEL = "nodefaults"


def read(project: Path, file: str) -> Listed:
    """Return what an environment lists; `file` is its path in the project.

    Raises `InvalidError`.
    """
    text = text_file.read_text(project, file)
    return _Reader(project, file, text).listed()


class _Reader:
    """Collects the packages of an environment, by where they come from."""

    def __init__(self, project: Path, file: str, text: str) -> None:
        self._project, self._file, self._text = project, file, text
        self._where = escaped(file)
        self._data = parse_yaml(text, self._where)
        self._requirements: list[Line] = []
        self._conda: list[Line] = []
        self._pip: list[tuple[str, str]] = []
        self._python: list[str] = []
        self._left_out: list[str] = []
        self._renamed: list[str] = []
        self._brought: list[Framework] = []
        self._built: list[str] = []

    def listed(self) -> Listed:
        self._require_keys()
        listed_channels = self._channels()
        others = (*_FRAMEWORK_CHANNELS, _DEFAULTS, _NO_CHANNEL)
        channels = tuple(c for c in listed_channels if c not in others)
        for spec, where in self._specs():
            self._take(spec, where, channels)
        from_pip = requirements_txt.read_lines(self._project, self._file, self._pip)
        dropped = [c for c in listed_channels if c in _FRAMEWORK_CHANNELS]
        notes = [*self._notes(dropped)]
        if _DEFAULTS in listed_channels and self._conda:
            notes.append(
                f"{self._where}: left out, since it takes a licence of Anaconda's: the channel"
                f" defaults. Its packages come from {_joined([*channels]) or 'conda-forge'}."
            )
        return Listed(
            requirements=(*self._requirements, *from_pip.requirements),
            constraints=from_pip.constraints,
            python=",".join(self._python),
            conda=tuple(self._conda),
            channels=channels,
            included=from_pip.included,
            notes=tuple(notes),
        )

    def _place(self, *path: object) -> str:
        return place(self._where, self._text, [str(part) for part in path])

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
        value = self._data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InvalidError(f"{self._place(key)}: {key}: expected a list")
        if len(value) > requirement.MOST:
            raise InvalidError(f"{self._place(key)}: {key}: more than {requirement.MOST} entries")
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

    def _specs(self) -> Iterator[tuple[conda_spec.Spec, str]]:
        """Yield the packages from channels with their places; collect the lines for pip."""
        for number, item in enumerate(self._list("dependencies")):
            where = self._place("dependencies", number)
            if isinstance(item, str):
                yield conda_spec.parse(item, where), where
            elif isinstance(item, dict) and set(item) == {"pip"}:
                self._take_pip(number, item["pip"])
            else:
                raise InvalidError(
                    f"{where}: {shown(str(item))}: expected a package, or pip: with a list",
                    "Write a name and perhaps versions, such as numpy=1.26.",
                )

    def _take_pip(self, number: int, lines: Any) -> None:
        for index, line in enumerate(lines if isinstance(lines, list) else [lines]):
            where = self._place("dependencies", number, "pip", index)
            if not isinstance(line, str) or "\n" in line:
                raise InvalidError(
                    f"{where}: {shown(str(line))}: expected one package for pip",
                    "Write one item per package, such as - rich>=13.",
                )
            self._pip.append((where, line))

    def _take(self, spec: conda_spec.Spec, where: str, channels: tuple[str, ...]) -> None:
        if frameworks.is_conda_runtime(spec.name):
            self._left_out.append(spec.name)
        elif name := frameworks.of_conda(spec.name):
            self._requirements.append(self._of_pypi(spec, name, where))
            self._renamed.append(spec.name)
            self._brought += filter(None, [frameworks.of_build(name)])
        elif spec.name == "python":
            if spec.versions:
                line = self._of_pypi(spec, spec.name, where)
                self._python.append(line.text.removeprefix(spec.name))
        elif spec.name != "pip":
            self._require_first(spec, where, channels)
            self._conda.append(_line(spec, where))
            self._built += [spec.name] if spec.build else []

    def _of_pypi(self, spec: conda_spec.Spec, name: str, where: str) -> Line:
        specifier = spec.specifier()
        if specifier is None:
            raise InvalidError(
                f"{where}: {escaped(spec.text(), 100)}: these versions cannot be stated for PyPI",
                f"Write one range, such as {spec.name}>=2.0,<3.",
            )
        return requirement.line(requirement.parse(f"{name}{specifier}", where), where)

    def _require_first(self, spec: conda_spec.Spec, where: str, channels: tuple[str, ...]) -> None:
        """Raise `InvalidError` unless a package's channel is the one that is asked first anyway."""
        if spec.channel and channels[:1] != (spec.channel,):
            raise InvalidError(
                f"{where}: {escaped(f'{spec.channel}::{spec.name}', 100)}: a channel for a single"
                " package is not supported, unless it is the first one of channels",
                f"Write {spec.name} only, or put the channel first under channels.",
            )

    def _notes(self, channels: list[str]) -> Iterator[str]:
        if self._renamed:
            decides = " and ".join(dict.fromkeys(map(requirement.profile_decides, self._brought)))
            yield (
                f"{self._where}: {_joined(self._renamed)}: taken as requirements from PyPI, since"
                f" {decides}."
            )
        if self._left_out:
            yield (
                f"{self._where}: left out, since the profile decides on CUDA:"
                f" {_joined(self._left_out)}."
            )
        if channels:
            yield (
                f"{self._where}: left out, since the profile decides where the framework comes"
                f" from: the channels {_joined(channels)}."
            )
        if self._built:
            yield (
                f"{self._where}: builds are left out, since each is for one platform; versions"
                f" stay: {_joined(self._built)}."
            )


def _line(spec: conda_spec.Spec, where: str) -> Line:
    try:
        return Line(decoding.convert(spec.text(), types.CondaSpec), where)
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"{where}: {escaped(spec.text(), 100)}: this form of versions is not supported",
            "Write it like this: numpy=1.26, numpy==1.26.4, numpy>=1.26,<2.",
        ) from error


def _joined(names: list[str]) -> str:
    shown = list(dict.fromkeys(names))
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    return f"{', '.join(shown[:6])}{more}"
