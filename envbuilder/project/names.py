"""Recognize packages by other names: conda's names, module names and misspelled names.

The tables and their sources are in `profiles/names/`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, partial

from msgspec import Struct

from envbuilder.core import files, resources, types
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import table

_SHORTEST = 4
"""Minimum length of names to compare. Shorter names are all similar to each other."""

_GENERIC = frozenset(
    {"azure", "common", "config", "data", "dataset", "google", "google-cloud", "tools", "utils"}
)
"""Modules that many repositories or packages contain, named like popular packages."""

WITH_FRAMEWORK = frozenset(
    {
        "apex",
        "causal-conv1d",
        "detectron2",
        "flash-attn",
        "fused-ssim",
        "mamba-ssm",
        "pytorch3d",
        "simple-knn",
        "diff-gaussian-rasterization",
        "tinycudann",
        "torchsort",
        "torch-cluster",
        "torch-scatter",
        "torch-sparse",
        "torch-spline-conv",
        "nvdiffrast",
        "mmcv",
        "mmcv-full",
        "natten",
        "pyg-lib",
        "gsplat",
        "xformers",
        "torchsparse",
    }
)
"""Packages that import the framework while they are built, without declaring it as a dependency.

The import is usually in setup.py.
"""


class _Conda(Struct, frozen=True, forbid_unknown_fields=True):
    """Mappings from conda packages to packages on the package index and in Debian."""

    python: dict[str, types.Distribution]
    debian: dict[str, types.DebianPackage]
    libraries: tuple[str, ...]


class _Limited(Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that only some platforms and Python versions need, or that none of them needs."""

    where: str
    why: str
    names: frozenset[types.Distribution]


class _Imports(Struct, frozen=True, forbid_unknown_fields=True):
    """Mappings from module names and other common names to packages on the package index."""

    meant: dict[str, types.Distribution]
    modules: dict[str, types.Requirement]
    limited: tuple[_Limited, ...]


_conda = cache(partial(table, "conda.yaml", _Conda))


def _listed(file: str) -> list[str]:
    """Return the lines of a file in `profiles/names/`, excluding comments."""
    text = files.read_text(resources.profiles_dir() / "names" / file)
    return [line for line in text.splitlines() if not line.startswith("#")]


@cache
def _python_of_conda() -> Mapping[str, str]:
    """Return a mapping from conda's Python packages to their names on the package index.

    If a conda package contains several Python packages, their names are separated by commas.
    """
    rows = (line.partition(" ") for line in _listed("conda-python.txt"))
    return {name: others or name for name, _, others in rows}


@cache
def _imports() -> _Imports:
    read = table("imports.yaml", _Imports)
    meant = {types.canonical(name): other for name, other in read.meant.items()}
    modules = {types.canonical(name): other for name, other in read.modules.items()}
    return _Imports(meant, modules, read.limited)


@cache
def _popular_names() -> frozenset[str]:
    """Return the names of popular packages."""
    names = {*" ".join(_listed("known.txt")).split()}
    for known in (_conda().python, _imports().meant, _imports().modules):
        names.update(map(types.canonical, known.values()))
    return frozenset(names.union(*(row.builds for row in frameworks.FRAMEWORKS.values())))


# Conda's names


def distribution_of(name: str) -> str:
    """Return the package index name of a conda package, or an empty string if there is none.

    The result is empty if the conda package is not a Python package. It is also empty if the conda
    package contains several packages with other names, because the user must choose one of them.
    """
    held = distributions_of(name)
    return held[0] if len(held) == 1 else ""


def distributions_of(name: str) -> tuple[str, ...]:
    """Return the package index names of the Python packages in a conda package.

    The names come only from tables. A package of the same name on the index proves nothing, since a
    conda program may have the same name as an unrelated package there.
    """
    names = _conda()
    if frameworks.is_conda_runtime(name):
        return ()
    if known := frameworks.of_conda(name) or names.python.get(name):
        return (known,)
    if name in names.debian or name in names.libraries:
        return ()
    held = _python_of_conda().get(types.canonical(name), "")
    return tuple(held.split(",")) if held else ()


def debian_package(name: str) -> str:
    """Return the Debian package for a conda package, or an empty string if none is known."""
    return _conda().debian.get(name, "")


def is_conda_library(name: str) -> bool:
    """Return whether a conda package is listed only because other packages depend on it."""
    names = _conda()
    if name in names.libraries:
        return True
    is_known = name in names.debian or bool(distributions_of(name))
    return not is_known and any(fnmatchcase(name, pattern) for pattern in names.libraries)


# Names on the package index (normalised)


def alias_of(name: str) -> str:
    """Return the package that users mean by a name, usually the package with that same name."""
    return _imports().meant.get(name, name)


def needed_where(name: str) -> tuple[str, str]:
    """Return the marker that limits a package to the targets that need it, and a note about why.

    Both are empty for a package without such a limit.
    """
    for limited in _imports().limited:
        if name in limited.names:
            return limited.where, limited.why
    return "", ""


def of_modules() -> Mapping[str, str]:
    """Return the package of each module whose name differs from its package's name.

    Keys are the normalized names of the modules.
    """
    return {**_imports().meant, **_imports().modules}


@cache
def known_modules() -> Mapping[str, str]:
    """Return the packages of all modules in the tables, by normalized module name.

    Names that repositories often use for their own modules are omitted.
    """
    return {**{name: name for name in sorted(_popular_names() - _GENERIC)}, **of_modules()}


def distribution_of_module(name: str) -> str:
    """Return the package that provides a module, or an empty string if no table lists it."""
    return known_modules().get(types.canonical(name), "")


def mistaken(name: str) -> str:
    """Return the package that a user probably meant by a misspelled name.

    Return an empty string if no similar package is known. The result is also empty for the name of
    a popular package, which is assumed to be correct.
    """
    if is_popular(name):
        return ""
    similar = (known for known in _popular_names() if _nearly(name, known))
    return _imports().modules.get(name) or min(similar, default="")


def _nearly(name: str, other: str) -> bool:
    """Return whether two names differ only by one letter, by two swapped letters, or by dashes."""
    shorter, longer = sorted((name, other), key=len)
    if len(longer) - len(shorter) > 1 or len(shorter) < _SHORTEST or len(longer) == _SHORTEST:
        return name.replace("-", "") == other.replace("-", "")
    at = len(posixpath.commonprefix([name, other]))
    rest = shorter[at:]
    more = longer[at:]
    if len(rest) < len(more):
        return rest == more[1:]
    return rest[1:] == more[1:] or (rest[:2] == more[:2][::-1] and rest[2:] == more[2:])


def nearest(name: str) -> str:
    """Return the package that a user probably meant by a name that is not on any index.

    Return an empty string if no such package is known.
    """
    known = of_modules().get(name) or distribution_of(name)
    return known if known and known != name else mistaken(name)


def is_popular(name: str) -> bool:
    """Return whether a package is popular, so that its name is unlikely to be a mistake."""
    return name in _popular_names()
