"""Releases of a framework and their builds, from the tables in `profiles/releases/`.

The release is a project's choice, the build belongs to the hardware: PyTorch 2.7.1 exists for the
CPU, for CUDA 11.8, 12.6 and 12.8, for two versions of ROCm, for Intel GPUs and for Macs. A row of
`torch-builds.csv` (likewise `jax-builds.csv` and `tensorflow-builds.csv`) states what one build
contains and needs; `certainty` says how that is known (`certain`: read from a wheel or an index;
`script`: from the script that built it; `one`: a single source; `unverified`), and `source` names
lines of `sources.csv`. `pythons.csv` has Python itself.
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
    """One build of a release, for one platform."""

    release: str
    build: str
    """Such as "cu126", "rocm6.3", "xpu", "cpu", JAX's "cuda13"; "macos" is PyTorch's for Macs."""
    platform: types.Platform
    index: types.Source
    """Symbolic name of its index; `default` is PyPI, whose versions have no suffix."""
    pythons: tuple[str, ...]
    kernels: tuple[str, ...]
    """The GPUs with kernels in it: SM, gfx targets, Intel's families; empty if unknown."""
    partly: tuple[str, ...]
    """GPUs that only some of its libraries support."""
    ptx: bool
    """Whether it includes PTX of the newest SM."""
    driver: str
    """The oldest driver of the vendor on Linux."""
    windows_driver: str
    """The oldest Windows driver, for WSL."""
    floor: str
    """The oldest glibc, or macOS."""
    certainty: Literal["certain", "script", "one", "unverified"]

    def needs(self, *, wsl: bool = False) -> Needs:
        """Return its needs on a host; unverified kernels count as unknown."""
        needs = Needs(ptx=self.ptx, driver=self.windows_driver if wsl else self.driver)
        if self.certainty != "unverified":
            needs = structs.replace(needs, kernels=self.kernels, partly=self.partly)
        if self.platform == "macos/arm64":
            return structs.replace(needs, macos=self.floor)
        return structs.replace(needs, glibc=self.floor)


def _lines(table: str) -> list[str]:
    """Return the lines of a table; none if there is no such table."""
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
    """Return a framework's builds, the newest release first; none without a table."""
    first, lines = _table(framework)
    return _builds(first, reversed(lines))


def is_for(build: Build, accelerator: types.Accelerator) -> bool:
    """Return whether a build is for an accelerator."""
    return build.build.startswith(ACCELERATORS[accelerator].builds or accelerator)


@cache
def of_version(
    framework: types.Framework, version: str, platform: types.Platform | None, build: str = ""
) -> Build | None:
    """Return the build of a framework's version, such as "2.13.0+cu126", or None.

    Without a suffix it is `build`, else PyPI's; the first one if there are several.
    """
    release, _, local = version.partition("+")
    first, lines = _table(framework)
    name = local or build
    for row in _builds(first, (line for line in lines if line.startswith(f"{release},"))):
        if row.platform == platform and (row.build == name if name else row.index == "default"):
            return row
    return None


def ranges(framework: types.Framework, chosen: Collection[str]) -> str:
    """Format releases in words, such as "2.1.0 to 2.6.0, 2.14.1 and later"."""
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
    """A Python build for one platform that needs no installation."""

    python: types.FullPythonVersion
    platform: types.Platform
    file: types.FilePath
    sha256: types.Sha256
    source: types.Sentence
    """The source of the hash."""


@cache
def python_builds() -> dict[tuple[types.Platform, types.PythonVersion], PythonBuild]:
    """Return the newest build of each Python (X.Y) for each platform."""
    sources = dict(csv.reader(_lines("sources")))
    builds = {}
    for row in csv.DictReader(_lines("pythons")):
        build = decoding.convert({**row, "source": sources[row["source"]]}, PythonBuild)
        builds[build.platform, build.python.rpartition(".")[0]] = build
    return builds


class Unstated(Struct, frozen=True, kw_only=True):
    """A release of a package whose wheels do not declare all of their requirements.

    They lack a framework, NumPy, setuptools or a Python; if a Python cannot import it, it requires
    another release of itself.
    """

    distribution: types.Distribution
    version: str
    requires_dist: str
    """All of its requirements, including the undeclared ones, separated by " | "."""
    last: str
    """Its requirement on the framework, if no later release will be made; else empty."""


@cache
def unstated() -> list[Unstated]:
    """Return undeclared requirements of wheels on the index, from `unstated.csv`."""
    return decoding.convert([*csv.DictReader(_lines("unstated"))], list[Unstated])


class Release(Struct, frozen=True, kw_only=True):
    """A release of a framework, with the other needs of its environments."""

    release: str
    date: str
    """The day of the release."""
    constraints: tuple[str, ...] = ()
    """Undeclared requirements of its wheels, such as "numpy<2"."""
    companions: dict[str, str] = {}
    """Distribution → its version for this release: torchvision, torchaudio."""

    def range_of(self, name: str) -> SpecifierSet | None:
        """Return the versions of a distribution that its constraints allow; None without any."""
        from packaging.requirements import Requirement

        for need in map(Requirement, self.constraints):
            if need.name == name:
                return need.specifier
        return None


@cache
def table_of(framework: types.Framework) -> dict[str, Release]:
    """Return a framework's releases in the table, the newest first."""
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
"""The oldest releases that envbuilder is tested with."""


def newest(framework: types.Framework, day: str) -> str:
    """Return the newest release on a day, but none older than the tested ones."""
    rows = table_of(framework)
    limit = max(day, rows[OLDEST[framework]].date)
    return next(row.release for row in rows.values() if row.date <= limit)


def day(framework: types.Framework, release: str, wished: str | None) -> str | None:
    """Return the day for choosing packages, if one is given: not before their framework's."""
    row = table_of(framework).get(release)
    if wished and row:
        return max(wished, row.date)
    return wished


def rules(framework: types.Framework, release: str | None) -> tuple[str, ...]:
    """Return the undeclared requirements of a release's wheels."""
    row = table_of(framework).get(release or "")
    if row:
        return row.constraints
    return ()


class Chosen(Struct, frozen=True, kw_only=True):
    """A profile's builds of one release, one for each platform."""

    release: str
    builds: tuple[Build, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons that all of them support, the oldest first."""
        first, *others = self.builds
        shared = set(first.pythons).intersection(*(build.pythons for build in others))
        return tuple(python for python in first.pythons if python in shared)

    def is_older(self, release: str) -> bool:
        """Return whether another release is newer."""
        from packaging.version import InvalidVersion, Version

        try:
            return Version(self.release) < Version(release)
        except InvalidVersion:  # of a damaged lock
            return False

    @property
    def title(self) -> str:
        """The release and its build, such as "2.4.1 (cu121)"."""
        return f"{self.release} ({self.builds[0].build})"


@cache
def choices(
    framework: types.Framework,
    builds: tuple[str, ...],
    platforms: tuple[types.Platform, ...],
    release: str = "",
) -> dict[str, Chosen]:
    """Return release → the builds of it for a profile, the newest release first.

    A build on PyPI is preferred, since its hashes can be read everywhere; then the order of
    `builds` decides. Platforms without such a build are left out. `release`: only that one, even if
    it is newer than all in the tables.
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
    """Return a sentence if no table has a release; else empty."""
    if not release or release in table_of(framework):
        return ""
    title = FRAMEWORKS[framework].title
    return f"no table has {title} {release}: its GPUs and drivers are unknown"


def _like(older: Chosen, release: str) -> Chosen:
    """Return a release that no table has, with an older one's builds by name.

    PyPI's build may be for another version of CUDA.
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
