"""Read a source's build backend and requirements from its files, without running its code."""

from __future__ import annotations

import ast
import email.parser
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError

FILES = re.compile(r"pyproject\.toml|PKG-INFO|requires\.txt")
"""Matches the names of files that contain metadata. Even a large source has few of them."""
_TEXT = 4 << 20
"""Maximum size in bytes of a file that is read for its metadata."""
_BOUND = re.compile(r"([<>=!~]+)\s*([^\s,()]+)")
_SECTIONS = re.compile(r"\[([A-Za-z0-9._-]*)(?::(.*))?\]\Z")
_T = TypeVar("_T")


class Metadata(Struct, frozen=True, kw_only=True):
    """The name, version and requirements of a release."""

    name: str = ""
    version: str
    requires_dist: tuple[str, ...] = ()
    requires_python: str = ""


class Backend(Struct, frozen=True, rename="kebab"):
    """The build backend of a source (PEP 517). As in pip, the default is setuptools."""

    requires: tuple[str, ...] = ("setuptools", "wheel")
    build_backend: str = "setuptools.build_meta:__legacy__"
    backend_path: tuple[str, ...] = ()


class _Project(Struct, frozen=True, rename="kebab"):
    """The `[project]` table of a pyproject.toml (PEP 621)."""

    name: str
    version: str
    requires_python: str = ""
    dependencies: tuple[str, ...] = ()
    optional_dependencies: dict[str, tuple[str, ...]] = {}
    dynamic: frozenset[str] = frozenset()


def backend(folder: Path) -> Backend:
    """Return the build backend that a source declares in its pyproject.toml, or the default."""
    return _part(folder, "build-system", Backend) or Backend()


def _part(folder: Path, table: str, kind: type[_T]) -> _T | None:
    """Return a table from a source's pyproject.toml; None if it is missing or has invalid values.

    Raise `BuildError` for invalid TOML.
    """
    try:
        return decoding.convert(tomllib.loads(_read(folder / "pyproject.toml")).get(table), kind)
    except msgspec.ValidationError:
        return None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BuildError(f"its pyproject.toml is not valid TOML: {error}") from error


def _read(path: Path) -> str:
    with suppress(OSError):
        return files.read(path, _TEXT).decode("utf-8", "replace")
    return ""


def extends_cuda(folder: Path) -> bool:
    """Return whether a source's setup.py mentions PyTorch's `CUDAExtension`."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.walk(ast.parse(_read(folder / "setup.py"))):
            names = (getattr(node, field, "") for field in ("id", "attr", "name"))
            if "CUDAExtension" in names:
                return True
    return False


def declared(folder: Path) -> Metadata | None:
    """Return the metadata that a source declares as final, or None if a build may change it.

    The metadata is read from the PKG-INFO of a source distribution (metadata version 2.2 or later)
    or from the `[project]` table of pyproject.toml. It is final if no relevant field is dynamic.
    """
    info = metadata(_read(folder / "PKG-INFO"))
    if info and not info[1]:
        return info[0]
    project = _part(folder, "project", _Project)
    open_parts = {"version", "dependencies", "optional-dependencies"}
    if project is None or project.dynamic & open_parts:
        return None
    extras = project.optional_dependencies.items()
    return Metadata(
        name=project.name,
        version=project.version,
        requires_dist=(
            *map(requirement, project.dependencies),
            *(requirement(line, extra) for extra, lines in extras for line in lines),
        ),
        requires_python=project.requires_python,
    )


def requirement(line: str, extra: str = "", condition: str = "") -> str:
    """Return a normalized requirement, limited to an extra and a condition if these are given.

    In requirements of old releases, version bounds that are not valid today (`pytz >=2011k`) are
    dropped. Text that is not a requirement is kept, so that uv reports it.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    text, _, marker = line.partition(";")
    parts = [text.strip() for text in (marker, condition) if text.strip()]
    every = [f"({part})" for part in parts] + ([f'extra == "{extra}"'] if extra else [])
    end = f" ; {' and '.join(every)}" if every else ""
    for need in (text.strip(), modern(text)):
        with suppress(InvalidRequirement):
            return str(Requirement(need + end))
    return text.strip() + end


def modern(text: str) -> str:
    """Convert a requirement or Python specifier from an old syntax to today's syntax.

    An example of an old requirement is `numpy (>=1.,<2.*)`.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    bounds = []
    for operator, version in _BOUND.findall(text):
        any_patch = "" if operator in {"==", "!="} else ".*"
        with suppress(InvalidSpecifier):
            bounds.append(str(SpecifierSet(operator + version.removesuffix(any_patch).rstrip("."))))
    return re.split(r"[<>=!~(]", text)[0].strip() + ",".join(bounds)


def metadata(text: str) -> tuple[Metadata, bool] | None:
    """Return the content of a METADATA or PKG-INFO file, and whether a build may change it.

    Return None if the text is not the content of such a file.
    """
    message = email.parser.Parser().parsestr(text, headersonly=True)
    version = message.get("Version")
    form = message.get("Metadata-Version", "")
    if not version or not re.fullmatch(r"\d\.\d", form):
        return None
    dynamic = {field.lower() for field in message.get_all("Dynamic", [])}
    parsed = Metadata(
        name=message.get("Name", ""),
        version=version,
        requires_dist=tuple(
            requirement(" ".join(line.split())) for line in message.get_all("Requires-Dist", [])
        ),
        requires_python=modern(message.get("Requires-Python", "")),
    )
    open_fields = {"version", "requires-dist", "requires-python", "provides-extra"}
    return parsed, form < "2.2" or bool(dynamic & open_fields)


def recorded(folder: Path) -> Metadata | None:
    """Return the metadata that setuptools wrote into a source distribution.

    The requirements may differ from those of a build on another machine. Return None if there is no
    PKG-INFO.
    """
    info = metadata(_read(folder / "PKG-INFO"))
    if info is None:
        return None
    written = sorted(folder.glob("*.egg-info/requires.txt")) + sorted(
        folder.glob("*/*.egg-info/requires.txt")
    )
    lines = []
    section = ""
    condition = ""
    for line in _read(written[0]).splitlines() if written else ():
        if heading := _SECTIONS.match(line.strip()):
            section = heading[1]
            condition = heading[2] or ""
        elif line.strip():
            lines.append(requirement(line, section, condition))
    return replace(info[0], requires_dist=info[0].requires_dist or tuple(lines))
