"""The project itself as a package: its name, the folders of its modules, and its commands.

The values come from pyproject.toml, setup.cfg and setup.py. No code in these files is run: from
setup.py, only literals in its syntax tree are used. If several files specify the same value, the
file that comes first in the order above is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, escaped, first
from envbuilder.project.lines import read_text
from envbuilder.project.tables import as_list, mapping, parse_toml

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

FOLDER = ".envbuilder/project"
"""Folder in the project for the project's package metadata. Its subfolder `bin` contains the
commands."""
_OBJECT = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
_COMMAND = r"[A-Za-z0-9_][\w.-]{0,98}"
_VERSION = r"[0-9][0-9A-Za-z.!+-]{0,60}"
UNKNOWN = "0+unknown"
"""The version of a package if no file specifies its version."""
_MOST = 1000
"""Maximum number of commands, and of characters in a path, in an untrusted pyproject.toml."""
_NOT_INSTALLED = (("uv", "package"), ("poetry", "package-mode"), ("pdm", "distribution"))
"""Keys below `[tool]` that are set to false if the project itself is not to be installed."""


class Package(Struct, frozen=True, kw_only=True):
    """The package metadata of a project."""

    name: str
    version: str = UNKNOWN
    folders: tuple[str, ...] = (".",)
    """Folders in the project that contain the package's modules."""
    commands: Mapping[str, str] = {}
    """The target of each command, as MODULE:OBJECT."""
    notes: tuple[str, ...] = ()
    is_installed: bool = True
    """Whether the project's own tools install the project itself, and not just its requirements."""

    @property
    def programs(self) -> list[tuple[str, ...]]:
        """The arguments for `python` that start each of the package's commands."""
        return [("-m", target.partition(":")[0]) for target in self.commands.values()]

    @property
    def texts(self) -> dict[str, str]:
        """The content of each file that makes the project an installed package.

        Keys are the paths of the files in the project.
        """
        info = f"{FOLDER}/{re.sub(r'[-_.]+', '_', self.name)}-{self.version.replace('-', '_')}"
        entries = "".join(f"{name} = {target}\n" for name, target in self.commands.items())
        texts = {
            f"{info}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {self.name}\n"
            f"Version: {self.version}\n",
            f"{info}.dist-info/entry_points.txt": f"[console_scripts]\n{entries}",
        }
        for name, target in self.commands.items():
            module, _, value = target.partition(":")
            texts[f"{FOLDER}/bin/{name}"] = (
                "#!/usr/bin/env python\nimport sys\n\n"
                f"import {module}\n\nsys.exit(sys.modules[{module!r}].{value}())\n"
            )
        return texts

    def modules(self, project: Path) -> tuple[str, ...]:
        """Return the paths of the project's folders and files that contain its modules.

        If the top level is one of these folders, the packages and modules in it are returned
        instead, except for setup.py.
        """
        below = tuple(folder for folder in self.folders if folder != ".")
        if "." not in self.folders:
            return below
        names = sorted(path.name for path in project.iterdir() if _is_module(path))
        return (*(name for name in names if name != "setup.py"), *below)


class _Stated(Struct, kw_only=True):
    """The package metadata in one file, as it is written there."""

    name: Any
    version: Any
    """A string, or a table that says where to find the version."""
    folders: list[Any]
    commands: list[str]
    is_installed: bool = True
    has_extensions: bool = False


def of(settings: Settings) -> Package:
    """Return the package metadata of the project in the settings.

    Raise `InvalidError` if the project's files define no package.
    """
    assert settings.project is not None, "it has a definition"
    return read(settings.project)


def read(project: Path) -> Package:
    """Read a project's package metadata; raise `InvalidError` if its files define no package."""
    values = list[_Stated]()
    for file, reader in _READERS.items():
        if (project / file).is_file() and (value := reader(project)):
            values.append(value)
    if not values:
        raise InvalidError(
            f"install_project: {' or '.join(FILES)} must define a package",
            "To import from folders of the project, write python_path: [.]",
        )
    name = ""
    folders = list[str]()
    commands = dict[str, str]()
    odd = list[str]()
    for value in values:
        if not name and isinstance(value.name, str) and re.fullmatch(_NAME, value.name):
            name = value.name
        folders += [folder for folder in _strings(value.folders) if _is_folder(project, folder)]
        for entry in value.commands:
            command, _, target = entry.partition("=")
            command = command.strip()
            target = re.sub(r"\s*\[.*\]\s*\Z|\s", "", target)
            if (
                re.fullmatch(_COMMAND, command)
                and re.fullmatch(_OBJECT, target)
                and len(commands) < _MOST
            ):
                commands.setdefault(command, target)
            else:
                odd.append(escaped(entry, 60))
    folders = list(dict.fromkeys(folders)) or [_usual_folder(project)]
    versions = (_version(project, folders, value.version) for value in values)
    notes = [f"commands that cannot be made: {first(odd, 3)}"] if odd else []
    if any(value.has_extensions for value in values):
        notes.append("extensions of the project are not built")
    return Package(
        name=name or types.canonical(re.sub(r"[^A-Za-z0-9]+", "-", project.name).strip("-") or "x"),
        version=next(filter(None, versions), UNKNOWN),
        folders=tuple(folders),
        commands=commands,
        notes=tuple(notes),
        is_installed=all(value.is_installed for value in values),
    )


def _is_folder(project: Path, text: str) -> bool:
    path = PurePosixPath(text)
    inside = not path.is_absolute() and ".." not in path.parts and len(text) < _MOST
    try:
        folder = (project / path).resolve()
        return inside and folder.is_dir() and folder.is_relative_to(project.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def _is_module(path: Path) -> bool:
    return (path.suffix == ".py" and path.is_file()) or (path / "__init__.py").is_file()


def _usual_folder(project: Path) -> str:
    """Return the folder in which build backends look for modules by default.

    This is `src` if it contains modules and is not itself a package; otherwise, it is `.`.
    """
    source = project / "src"
    holds = source.is_dir() and any(map(_is_module, source.iterdir()))
    return "src" if holds and not (source / "__init__.py").exists() else "."


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a list, or a single string, as normalized paths."""
    for item in as_list(value):
        if isinstance(item, str) and item:
            yield str(PurePosixPath(item))


def _version(project: Path, folders: Iterable[str], value: Any) -> str:
    """Return the version that a value specifies, or an empty string if it is unknown.

    The value is the version itself, or a reference to the module or text file that contains it.
    """
    if isinstance(value, str):
        return value if re.fullmatch(_VERSION, value) else ""
    places = mapping(value)
    module, _, name = str(places.get("attr", "")).rpartition(".")
    below = module.replace(".", "/")
    modules = [*_strings(places.get("path"))]
    if module:
        for folder in folders:
            modules += [f"{folder}/{below}.py", f"{folder}/{below}/__init__.py"]
    for file in (*modules, *_strings(places.get("file"))):
        if _is_folder(project, str(PurePosixPath(file).parent)) and (project / file).is_file():
            with suppress(InvalidError):
                text = read_text(project, file).strip()
                if file in modules:
                    from envbuilder.project.setup_files import read_python, text_of

                    text = text_of(read_python(project, file).names.get(name or "__version__"))
                return _version(project, (), text)
    return ""


# The files


def _table(data: Any, *keys: str) -> Any:
    """Return the value at a path of keys in nested tables, or an empty table if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return {} if data is None else data


def _pyproject(project: Path) -> _Stated | None:
    """Return the values in pyproject.toml, or None if the file defines no package."""
    data = parse_toml(read_text(project, "pyproject.toml"), "pyproject.toml")
    metadata = mapping(data.get("project"))
    tool = mapping(data.get("tool"))
    poetry = mapping(tool.get("poetry"))
    if not metadata and not poetry:
        return None
    wheel = _table(tool, "hatch", "build", "targets", "wheel", "packages")
    backend = str(_table(data, "build-system", "build-backend") or "")
    folders: list[Any] = [
        _table(tool, "setuptools", "package-dir", ""),
        *_strings(_table(tool, "setuptools", "packages", "find", "where")),
        *(p.get("from", ".") for p in _list(poetry.get("packages")) if isinstance(p, dict)),
        *(str(PurePosixPath(each).parent) for each in _strings(wheel)),
        _table(tool, "pdm", "build", "package-dir"),
        _table(tool, "maturin", "python-source"),
        _table(tool, "uv", "build-backend", "module-root")
        or ("src" if "uv_build" in backend else ""),
    ]
    version = metadata.get("version") or poetry.get("version")
    dynamic = _table(tool, "setuptools", "dynamic", "version") or _table(tool, "hatch", "version")
    commands = dict[str, str]()
    for scripts in (poetry.get("scripts"), metadata.get("gui-scripts"), metadata.get("scripts")):
        for name, value in mapping(scripts).items():
            table = mapping(value)  # as Poetry may write it
            target = table.get("reference", table.get("callable", value))
            if isinstance(target, str):
                commands[name] = f"{name} = {target}"
    return _Stated(
        name=metadata.get("name") or poetry.get("name"),
        version=version or dynamic,
        folders=folders,
        commands=list(commands.values()),
        is_installed=all(_table(tool, *keys) is not False for keys in _NOT_INSTALLED),
        has_extensions=bool(_table(tool, "setuptools", "ext-modules")) or "maturin" in backend,
    )


def _setup_cfg(project: Path) -> _Stated | None:
    """Return the values in setup.cfg, or None if the file defines no package."""
    from envbuilder.project.setup_files import cfg_sections  # most projects have none

    sections = cfg_sections(project, "setup.cfg")
    if not {"metadata", "options"} & {*sections}:
        return None
    metadata = sections.get("metadata", {})
    options = sections.get("options", {})
    kind, _, target = metadata.get("version", "").partition(":")
    roots = re.findall(r"^\s*=([^\n,]*)", options.get("package_dir", ""), re.MULTILINE)
    scripts = sections.get("options.entry_points", {}).get("console_scripts", "")
    return _Stated(
        name=metadata.get("name"),
        version={kind: target.strip()} if target else kind,
        folders=[*map(str.strip, roots), sections.get("options.packages.find", {}).get("where")],
        commands=scripts.strip().splitlines(),
    )


def _setup_py(project: Path) -> _Stated | None:
    """Return the literal arguments of the `setup` call in setup.py, or None if there is no call."""
    from envbuilder.project.setup_files import FileReference, Text, read_python, text_of

    try:
        keywords = read_python(project, "setup.py").setup
    except InvalidError:
        return None
    if keywords is None:
        return None
    version = keywords.get("version")
    version = {"file": version.path} if isinstance(version, FileReference) else text_of(version)
    entries = keywords.get("entry_points")
    if isinstance(entries, Text):  # as in setup.cfg, but in the section of its name
        section = re.search(r"\[\s*console_scripts\s*\]([^\[]*)", entries.text)
        commands = section[1] if section else ""
    else:
        scripts = as_list(mapping(entries).get("console_scripts"))
        commands = "\n".join(map(text_of, scripts))
    return _Stated(
        name=text_of(keywords.get("name")),
        version=version,
        folders=[text_of(_table(keywords, "package_dir", ""))],
        commands=[line for line in commands.splitlines() if line.strip()],
        has_extensions="ext_modules" in keywords,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_READERS = {"pyproject.toml": _pyproject, "setup.cfg": _setup_cfg, "setup.py": _setup_py}
FILES = tuple(_READERS)
"""The files that may contain package metadata. Each value is taken from the first file that has
it."""
