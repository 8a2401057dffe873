"""Framework releases and their builds, read from the tables in `profiles/releases/`.

A project chooses the release, and the hardware determines the build. For example, PyTorch 2.7.1 has
builds for the CPU, for CUDA 11.8, 12.6 and 12.8, for two versions of ROCm, for Intel GPUs and for
Macs.

Each row of `torch-builds.csv`, `jax-builds.csv` and `tensorflow-builds.csv` describes what one
build contains and what it needs. The column `certainty` says how this is known: `certain` if it was
read from a wheel or an index, `script` if it was read from the script that built the wheel, `one`
if it comes from a single source, and `unverified` if it was not verified. The column `source`
refers to lines of `sources.csv`. `pythons.csv` lists builds of Python itself.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, structs

from envbuilder.core import decoding, resources, types
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.gpus.accelerator import Needs
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from packaging.specifiers import SpecifierSet


class Build(Struct, frozen=True, kw_only=True):
    """One build of a framework release, for one platform."""

    release: str
    build: str
    """The name of the build, such as "cu126", "rocm6.3", "xpu", "cpu" or JAX's "cuda13". PyTorch's
    build for Macs is named "macos"."""
    platform: types.Platform
    index: types.Source
    """The symbolic name of the index that offers the build. `default` is PyPI, where version
    numbers have no suffix that identifies the build."""
    pythons: tuple[str, ...]
    kernels: tuple[str, ...]
    """The GPUs for which the build contains kernels, as SM versions, gfx targets or Intel GPU
    families. Empty if unknown."""
    partly: tuple[str, ...]
    """GPUs that only some of the build's libraries support."""
    ptx: bool
    """Whether the build includes PTX for the newest SM version."""
    driver: str
    """The oldest working version of the vendor's Linux driver."""
    windows_driver: str
    """The oldest working version of the vendor's Windows driver, which WSL uses."""
    floor: str
    """The oldest version of glibc, or of macOS, with which the build works."""
    certainty: Literal["certain", "script", "one", "unverified"]

    def needs(self, *, wsl: bool = False) -> Needs:
        """Return what the build needs from a host.

        Under WSL, the result contains the required Windows driver instead of the Linux driver. If
        the build's data is not verified, its kernels are treated as unknown.
        """
        needs = Needs(ptx=self.ptx, driver=self.windows_driver if wsl else self.driver)
        if self.certainty != "unverified":
            needs = structs.replace(needs, kernels=self.kernels, partly=self.partly)
        if self.platform == "macos/arm64":
            return structs.replace(needs, macos=self.floor)
        return structs.replace(needs, glibc=self.floor)


def _lines(table: str) -> list[str]:
    """Return the lines of a table, or an empty list if the table does not exist."""
    path = resources.profiles_dir() / "releases" / f"{table}.csv"
    if path.exists():
        return path.read_text(encoding="utf-8").splitlines()
    return []


@cache
def _table(framework: types.Framework) -> tuple[str, tuple[str, ...]]:
    """Return the header and the rows of a framework's table of builds, as text."""
    first, *others = _lines(f"{framework}-builds") or [""]
    return first, tuple(others)


def _builds(first: str, lines: Iterable[str]) -> tuple[Build, ...]:
    rows = []
    for row in csv.DictReader((first, *lines)):
        lists = {name: row[name].split() for name in ("pythons", "kernels", "partly")}
        rows.append({**row, **lists, "ptx": row["ptx"] == "true"})
    return decoding.convert(rows, tuple[Build, ...])


@cache
def every(framework: types.Framework) -> tuple[Build, ...]:
    """Return all builds of a framework, newest release first.

    Return an empty tuple if there is no table for the framework.
    """
    first, lines = _table(framework)
    return _builds(first, reversed(lines))


def is_for(build: str, accelerator: types.Accelerator) -> bool:
    """Return whether a build, such as "cu126", is for an accelerator."""
    return build.startswith(ACCELERATORS[accelerator].builds or accelerator)


@cache
def of_version(
    framework: types.Framework, version: str, platform: types.Platform | None, build: str = ""
) -> Build | None:
    """Find the build for a framework version, such as "2.13.0+cu126".

    If the version has no suffix, return the build named `build` or, if `build` is empty, PyPI's
    build. If several builds match, return the first one. Return None if no table lists such a
    build.
    """
    release, _, local = version.partition("+")
    first, lines = _table(framework)
    name = local or build
    for row in _builds(first, (line for line in lines if line.startswith(f"{release},"))):
        if row.platform == platform and (row.build == name if name else row.index == "default"):
            return row
    return None


def ranges(framework: types.Framework, chosen: Collection[str]) -> str:
    """Format releases as ranges, such as "2.1.0 to 2.6.0, 2.14.1 and later"."""
    order = [*dict.fromkeys(build.release for build in every(framework))]
    spans: list[tuple[int, int]] = []  # (newest, oldest) as places in `order`
    for position, release in enumerate(order):
        if release not in chosen:
            continue
        if spans and spans[-1][1] == position - 1:
            spans[-1] = (spans[-1][0], position)
        else:
            spans.append((position, position))
    texts = []
    for newest, oldest in spans:
        if newest == oldest:
            texts.append(order[oldest])
        elif newest == 0:
            texts.append(f"{order[oldest]} and later")
        else:
            texts.append(f"{order[oldest]} to {order[newest]}")
    return ", ".join(reversed(texts))


class PythonBuild(Struct, frozen=True, kw_only=True):
    """A build of Python for one platform that runs without being installed."""

    python: types.FullPythonVersion
    platform: types.Platform
    file: types.FilePath
    sha256: types.Sha256
    source: types.Sentence
    """Where the hash was found."""


@cache
def python_builds() -> dict[tuple[types.Platform, types.PythonVersion], PythonBuild]:
    """Return the newest Python build for each platform and Python version (X.Y)."""
    sources = dict(csv.reader(_lines("sources")))
    builds = {}
    for row in csv.DictReader(_lines("pythons")):
        build = decoding.convert({**row, "source": sources[row["source"]]}, PythonBuild)
        builds[build.platform, build.python.rpartition(".")[0]] = build
    return builds


class Unstated(Struct, frozen=True, kw_only=True):
    """A package release whose wheels do not declare all of their requirements.

    The undeclared requirements are for a framework, NumPy, setuptools or a Python version. If the
    release cannot be imported with some Python version, `requires_dist` requires another release of
    the same package for that version.
    """

    distribution: types.Distribution
    version: str
    requires_dist: str
    """All requirements, including the undeclared ones, separated by " | "."""
    last: str
    """The requirement for the framework, if the package will have no later release. Otherwise
    empty."""


@cache
def unstated() -> list[Unstated]:
    """Return the package releases with undeclared requirements, from `unstated.csv`."""
    return decoding.convert([*csv.DictReader(_lines("unstated"))], list[Unstated])


class Release(Struct, frozen=True, kw_only=True):
    """A framework release, with the additional requirements of environments that contain it."""

    release: str
    date: str
    """The day of the release (YYYY-MM-DD)."""
    constraints: tuple[str, ...] = ()
    """Requirements that the release's wheels do not declare, such as "numpy<2"."""
    companions: dict[str, str] = {}
    """The versions of torchvision and torchaudio that belong to this release."""

    def range_of(self, name: str) -> SpecifierSet | None:
        """Return the versions of the distribution `name` that the release's constraints allow.

        Return None if the constraints do not limit the distribution.
        """
        from packaging.requirements import Requirement

        for need in map(Requirement, self.constraints):
            if need.name == name:
                return need.specifier
        return None


@cache
def table_of(framework: types.Framework) -> dict[str, Release]:
    """Return the releases of a framework by version, newest first."""
    return {
        row["release"]: Release(
            release=row["release"],
            date=row["date"],
            constraints=tuple(filter(None, row["constraints"].split("; "))),
            companions={n: row[n] for n in FRAMEWORKS[framework].companions if row.get(n)},
        )
        for row in reversed(list(csv.DictReader(_lines(framework))))
    }


OLDEST: dict[types.Framework, str] = {"torch": "1.13.1", "jax": "0.4.30", "tensorflow": "2.13.0"}
"""The oldest release of each framework with which envbuilder is tested."""


def newest(framework: types.Framework, day: str) -> str:
    """Return the newest release that was available on a given day.

    If even the oldest tested release is from a later day, return the oldest tested release.
    """
    rows = table_of(framework)
    limit = max(day, rows[OLDEST[framework]].date)
    return next(row.release for row in rows.values() if row.date <= limit)


def day(framework: types.Framework, release: str, wished: str | None) -> str | None:
    """Return the date limit for packages: the last day whose package releases may be used.

    The limit is `wished`, or the day of the framework's release if that day is later. Return None
    if `wished` is None.
    """
    row = table_of(framework).get(release)
    if wished and row:
        return max(wished, row.date)
    return wished


def rules(framework: types.Framework, release: str | None) -> tuple[str, ...]:
    """Return the requirements that the wheels of a framework release do not declare."""
    row = table_of(framework).get(release or "")
    if row:
        return row.constraints
    return ()


class Chosen(Struct, frozen=True, kw_only=True):
    """The builds of one release that a profile uses, one for each platform."""

    release: str
    builds: tuple[Build, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Python versions that all of the builds support, oldest first."""
        first, *others = self.builds
        shared = set(first.pythons).intersection(*(build.pythons for build in others))
        return tuple(python for python in first.pythons if python in shared)

    def is_older(self, release: str) -> bool:
        """Return whether this release is older than `release`."""
        from packaging.version import InvalidVersion, Version

        try:
            return Version(self.release) < Version(release)
        except InvalidVersion:  # of a damaged lock
            return False

    @property
    def title(self) -> str:
        """The release and the name of its build, such as "2.4.1 (cu121)"."""
        return f"{self.release} ({self.builds[0].build})"


@cache
def choices(
    framework: types.Framework,
    builds: tuple[str, ...],
    platforms: tuple[types.Platform, ...],
    release: str = "",
) -> dict[str, Chosen]:
    """Return the builds that a profile would use for each release, newest release first.

    For each platform, a build on PyPI is preferred, because its hashes can be read on every
    machine. Otherwise, the first available build in the order of `builds` is used. Platforms for
    which none of these builds exists are omitted. If `release` is given, return only that release,
    even if it is newer than all releases in the tables.
    """
    first, lines = _table(framework)
    prefix = f"{release}," if release else ""
    taken: dict[str, list[Build]] = {}
    for row in _builds(first, (line for line in reversed(lines) if line.startswith(prefix))):
        if row.build in builds and row.platform in platforms:
            taken.setdefault(row.release, []).append(row)
    result = {}
    for name, rows in taken.items():
        rows.sort(key=lambda b: (b.index != "default", builds.index(b.build)))
        best = {row.platform: row for row in reversed(rows)}
        found_builds = [best[platform] for platform in platforms if platform in best]
        # Another version of CUDA is another environment; a Mac's build may be the CPU's.
        kind = _kind(found_builds[0])
        result[name] = Chosen(
            release=name, builds=tuple(b for b in found_builds if _kind(b) == kind)
        )
    if unknown(framework, release):
        for chosen in choices(framework, builds, platforms).values():
            if chosen.is_older(release):
                return {release: _like(chosen, release)}
        return {}
    return result


def _kind(build: Build) -> str:
    return build.build.replace("macos", "cpu")


def unknown(framework: types.Framework, release: str | None) -> str:
    """Return a sentence saying that no table lists a release.

    Return an empty string if a table lists it, or if `release` is empty or None.
    """
    if not release or release in table_of(framework):
        return ""
    title = FRAMEWORKS[framework].title
    return f"{title} {release} is in no table, so its GPUs and drivers are unknown"


def _like(older: Chosen, release: str) -> Chosen:
    """Return a release that no table lists, with the same build names as an older release.

    There is one exception: because the new release on PyPI may be built for another CUDA version,
    its CUDA build is just named "cuda".
    """
    nothing: dict[str, Any] = {
        "kernels": (),
        "partly": (),
        "ptx": False,
        "floor": "",
        "driver": "",
        "windows_driver": "",
        "certainty": "unverified",
    }
    builds = []
    for build in older.builds:
        name = build.build
        if build.index == "default":
            name = re.sub(r"^cu\d+$", "cuda", name)
        builds.append(structs.replace(build, release=release, build=name, **nothing))
    return Chosen(release=release, builds=tuple(builds))
