"""Read the Python environment in use on this machine, whichever tool created it.

Only the environment's files are read, and none of its programs is run. The files are untrusted, so
each of them is read only up to a size limit. A file that cannot be read is treated as missing.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.host.snapshot import Reader
from envbuilder.packages.python import libraries
from envbuilder.payload.origins import DRIVER
from envbuilder.profiles.frameworks import FRAMEWORKS, of_build, of_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Environment variables that contain the folder of the active environment."""
_LIMIT = 256 << 10
"""Maximum number of bytes to read from a file. The requirements in METADATA come before its
description."""
_MOST = 20_000
"""Maximum number of names to read from a folder."""
_PYTHON = re.compile(r"python(3\.[0-9]{1,2})")
_SITES = (
    "{0}/lib/python{1}/site-packages",
    "{0}/lib64/python{1}/site-packages",
    "{0}/local/lib/python{1}/dist-packages",
    "{0}/lib/python3/dist-packages",
)
"""Package folders below a prefix. The last two are used by Debian."""
_INFO = re.compile(r"([A-Za-z0-9][\w.]*)-([^-]{1,100})(?:-py3[^-]*)?\.(?:dist|egg)-info")
_CODE = re.compile(r"^__version__\b[^=\n]*=\s*['\"]([^'\"\n]{1,80})", re.MULTILINE)
_RUNTIME = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([0-9]+)\.?([0-9]*)", re.MULTILINE)
_BUILDS = {"cuda": "cu{}{}", "hip": "rocm{}.{}", "xpu": "xpu"}
_LOCAL = re.compile(r"cpu|xpu|cu[0-9]+|rocm[0-9]+(\.[0-9]+)*")


class Package(Struct, frozen=True, kw_only=True):
    """An installed distribution."""

    name: str
    """The normalized name."""
    version: str
    """The version stated by the package's code, or by METADATA if the code states none. A PyTorch
    version includes its build, as in "2.5.1+cu124"."""
    metadata: str
    """The version stated by METADATA."""
    site: str
    """The package folder that contains the distribution."""
    installer: str
    requires: list[str]

    @property
    def release(self) -> str:
        """The version without its build, and without conda-forge's build number (".post")."""
        return self.version.partition("+")[0].partition(".post")[0]

    @property
    def build(self) -> str:
        """The build, such as "cu126", "rocm6.3" or "cpu".

        This is "" if the version does not specify a build. For a build from source, it is also "",
        whatever its local version is.
        """
        local = self.version.partition("+")[2]
        return local if _LOCAL.fullmatch(local) else ""

    @property
    def versions(self) -> tuple[str, ...]:
        """The forms of the version that can be compared with a requirement."""
        return self.version, self.metadata, self.release


class Place(Struct, frozen=True, kw_only=True):
    """The location of an environment, and how it was found."""

    python: str
    because: str
    """How the environment was found: an option, a variable, the folder `.venv`, or PATH."""
    prefix: str
    version: str
    """The version of the environment's Python (X.Y), or "" if unknown."""
    tool: str
    """The tool that manages the environment's packages."""
    project: str = ""
    """The folder to change to before using the tool, or "" if the tool can be used in any folder or
    in the current one."""


class Installed(Struct, frozen=True, kw_only=True):
    """An installed Python environment, as described by its files."""

    place: Place
    lost: str
    """The missing file that the link to the environment's Python points to, or "" if that Python
    exists."""
    packages: dict[str, Package]
    others: list[Package]
    """Framework packages that are hidden by another copy earlier on the environment's path."""
    hiding: list[str]
    """Modules in the current folder or on PYTHONPATH that are imported instead of an installed
    framework."""

    @property
    def frameworks(self) -> dict[types.Framework, Package]:
        """The installed distribution of each framework, without companions such as torchvision."""
        named = {of_name(name): package for name, package in self.packages.items()}
        return {key: package for key, package in named.items() if key}

    def is_of_conda(self, package: Package) -> bool:
        """Return whether a distribution came from a conda channel.

        pip and uv write their own names into the INSTALLER file of each distribution that they
        install.
        """
        return self.place.tool in {"conda", "pixi"} and package.installer in {"", "conda"}


def find(executable: Path | None, environ: Mapping[str, str], ours: str) -> Installed | None:
    """Return the environment of `executable` or, if it is None, the environment in use.

    The environment in use is the active one. If none is active, it is the `.venv` in the current
    folder. If there is no `.venv`, it is the environment of the first Python on PATH. Return None
    if no environment is found. `ours` is the prefix of envbuilder's own Python, which is skipped on
    PATH. Raise `InvalidError` if `executable` is not an interpreter.
    """
    named = [(f"{environ[name]}/bin/python", name) for name in filter(environ.get, ACTIVE)]
    if environ.get("PWD"):
        named.append((f"{environ['PWD']}/.venv/bin/python", ".venv"))
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder != f"{ours}/bin":
            named += [(f"{folder}/python", "PATH"), (f"{folder}/python3", "PATH")]
    if executable:
        named = [(str(executable.absolute()), "--python")]
    reader = Reader(Path("/"))
    for python, because in filter(lambda pair: os.path.lexists(pair[0]), named):
        if reader.file(python, 2) != "#!":
            return _look(reader, Path(python), because, environ)
        if executable:
            raise InvalidError(
                f"{python} is a script, not a Python interpreter",
                "Name the interpreter that the script runs. To find it, run `python -c 'import sys;"
                " print(sys.executable)'`.",
            )
        break  # what a shim would start is not known
    return None


def _look(reader: Reader, python: Path, because: str, environ: Mapping[str, str]) -> Installed:
    real = Path(os.path.realpath(python))
    prefix = str(real.parent.parent)
    config: dict[str, str] = {}
    for folder in (python.parent, python.parent.parent):
        if text := reader.file(f"{folder}/pyvenv.cfg", _LIMIT):
            prefix = str(folder)
            config = dict(re.findall(r"^([\w-]+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    names = (real.name, *reader.folder(f"{prefix}/lib"))
    version = next((match[1] for match in map(_PYTHON.match, names) if match), "")
    packages: dict[str, Package] = {}
    others = []
    for site in _sites(prefix, version, config, environ):
        for package in _packages(reader, site):
            first = packages.setdefault(package.name, package)
            if first.site != site and of_build(package.name):
                others.append(package)
    tool = _tool(reader, prefix, version, config, packages)
    return Installed(
        place=Place(
            python=str(python),
            because=because,
            prefix=prefix,
            version=version,
            tool=tool,
            project=_project(tool, prefix, environ.get("PWD")),
        ),
        lost="" if real.exists() else str(real),
        packages=packages,
        others=others,
        hiding=[*_hiding(reader, packages, environ)],
    )


def _project(tool: str, prefix: str, current: str | None) -> str:
    """Return the project folder to change to before using a tool.

    Return "" if the tool can be used in any folder or in the current one.
    """
    folder = prefix.partition("/.pixi/")[0]
    if tool in {"uv project", "pdm", "poetry"}:
        folder = str(Path(prefix).parent)
    if folder == prefix or "/pypoetry/" in prefix:
        return ""
    return "" if current in {None, folder} else folder


def _hiding(
    reader: Reader, packages: Mapping[str, Package], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield the paths of modules that have the same name as a framework and hide it.

    Python finds these modules first, and imports them instead of the framework.
    """
    folders = (environ.get("PWD"), *environ.get("PYTHONPATH", "").split(os.pathsep))
    for folder in filter(None, dict.fromkeys(folders)):
        for name in FRAMEWORKS:
            path = f"{folder}/{name}.py"
            if name in packages and reader.file(path, 1) is not None:
                yield path


def _sites(
    prefix: str, version: str, config: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, None]:
    """Return a dictionary whose keys are the package folders, in Python's search order."""
    user = f"{environ.get('HOME')}/.local"
    roots = [prefix] if config else [user, prefix]
    if config.get("include-system-site-packages") == "true":
        roots += [user, str(Path(config.get("home", "")).parent)]
    sites = [site for site in environ.get("PYTHONPATH", "").split(os.pathsep) if site]
    for root in roots:
        sites += [site.format(root, version) for site in _SITES]
    return dict.fromkeys(map(os.path.realpath, sites))


def _packages(reader: Reader, site: str) -> Iterator[Package]:
    """Yield the distributions that are installed in a package folder."""
    for folder in reader.folder(site, _MOST):
        if match := _INFO.fullmatch(folder):
            name = types.canonical(match[1])
            text = reader.file(f"{site}/{folder}/METADATA", _LIMIT) or ""
            head = text.replace("\r", "").partition("\n\n")[0]
            code = of_build(name) and reader.file(f"{site}/{name}/version.py", _LIMIT)
            yield Package(
                name=name,
                version=_stated(code or "", match[2]),
                metadata=match[2],
                site=site,
                installer=(reader.file(f"{site}/{folder}/INSTALLER", 80) or "").strip().lower(),
                requires=re.findall("^Requires-Dist: *(.+)", head, re.MULTILINE),
            )


def _stated(code: str, version: str) -> str:
    """Return the version given in `code`, including its build if `code` specifies one.

    `code` is the text of a framework's version.py. If it contains no version, return `version`.
    """
    if match := _CODE.search(code):
        version = match[1]
    release, _, local = version.partition("+")
    if _LOCAL.fullmatch(local) or "\ncuda" not in code:
        return version
    if runtime := _RUNTIME.search(code):
        return f"{release}+{_BUILDS[runtime[1]].format(runtime[2], runtime[3])}"
    return f"{release}+cpu"


def _tool(
    reader: Reader,
    prefix: str,
    version: str,
    config: Mapping[str, str],
    packages: Mapping[str, Package],
) -> str:
    """Return the tool that manages an environment's packages."""
    beside = reader.folder(str(Path(prefix).parent), _MOST)
    by = [package.installer for package in packages.values() if of_name(package.name)]
    signs = {
        "envbuilder": any(
            "envbuilder.json" in reader.folder(str(folder))
            for folder in (prefix, Path(prefix).parent)
        ),
        "pixi": "/.pixi/envs/" in prefix,
        "conda": "conda-meta" in reader.folder(prefix),
        "uv project": "uv.lock" in beside,
        "pdm": "pdm.lock" in beside,
        "poetry": "poetry.lock" in beside or "/pypoetry/" in prefix,
        "system": not config
        and "EXTERNALLY-MANAGED" in reader.folder(f"{prefix}/lib/python{version}"),
        "uv": "uv" in by or ("uv" in config and not any(by)),
    }
    return next((tool for tool, holds in signs.items() if holds), "pip")


def lacking(
    env: Installed, key: types.Framework, system: bytes, environ: Mapping[str, str]
) -> list[str]:
    """Return the shared libraries that a framework needs but that are not installed anywhere.

    `system` contains the names of the libraries that are known to the system's loader. Libraries
    that come with drivers are ignored, because they are not part of environments.
    """
    site = Path(env.frameworks[key].site)
    needs = {}
    for name in (FRAMEWORKS[key].names | FRAMEWORKS[key].parts) & env.packages.keys():
        for path in (*_libraries(site, f"{name}/*.so*"), *_libraries(site, f"{name}/*/*.so*")):
            with suppress(OSError, struct.error, ValueError), path.open("rb") as file:
                needs[str(path.relative_to(site))] = libraries.needed_by(file)
    brought: list[str] = []
    for folder in {package.site for package in env.packages.values()}:
        for pattern in ("nvidia/*/lib/*.so*", "*.libs/*.so*", "_rocm_sdk*/lib/*.so*"):
            brought += (path.name for path in _libraries(Path(folder), pattern))
    further = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in (f"{env.place.prefix}/lib", *filter(None, further)):
        brought += (path.name for path in _libraries(Path(folder), "*.so*"))
    return sorted(
        name
        for name in libraries.unmet(needs, brought)
        if not DRIVER.match(name) and f"{name}\0".encode() not in system
    )


def _libraries(folder: Path, pattern: str) -> list[Path]:
    return [*islice(filter(Path.is_file, folder.glob(pattern)), _MOST)]
